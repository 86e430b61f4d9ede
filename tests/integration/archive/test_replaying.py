"""Replays on a real Kafka and a real Postgres: in chunks, within a bound, by the present registry."""

import datetime as dt
import itertools

import orjson
import pytest

from delivery import errors
from delivery.config import settings
from delivery.registry_model import EndpointStatus
from delivery.webhooks.events import opaque
from delivery.webhooks.http import guard
from delivery.webhooks.sending import payload
from subscriptions_db.manifest import manifest
from subscriptions_db.registration import apply, endpoint_status
from subscriptions_db.replays import progress, requests
from subscriptions_db.replays.requests import ReplayOne, ReplayRange, ReplayState
from subscriptions_db.secrets import keyring
from tests.integration.archive.replays import AVRO, DOCUMENT, LONG_AGO
from tests.support import builders, framing
from tests.support.schema_registry import SchemaRegistry

pytestmark = pytest.mark.integration


def test_a_time_range_is_replayed_in_chunks_within_a_bound(world):
    world.max_records = 2
    world.publish(*range(7))
    replay = world.ask()
    world.carry_out(replay_max_pending=4)
    assert (world.replay(replay).handed_over, world.replay(replay).state) == (4, ReplayState.RUNNING)
    progress.add_counts(world.connection, [progress.ReplayCounts(replay, delivered=1, dead_lettered=1)])
    world.carry_out(replay_max_pending=4)
    assert world.handed_over() == [("ep1", f"e{number}", replay) for number in range(6)]
    progress.add_counts(world.connection, [progress.ReplayCounts(replay, delivered=2, skipped=1)])
    world.carry_out(replay_max_pending=4)
    shown = world.replay(replay)
    assert (shown.state, shown.handed_over, shown.records, shown.delivered, shown.is_whole) == (ReplayState.DONE, 7, 7, 3, True)


def test_a_replay_delivers_each_record_of_its_range_and_no_other(world):
    """Regression: after a record ahead of its time, all records were left out, and a record out of the range was delivered."""
    since, until = dt.datetime(2026, 5, 10, tzinfo=dt.UTC), dt.datetime(2026, 5, 11, tzinfo=dt.UTC)
    world.publish_at(*(since + dt.timedelta(hours=hours) for hours in (-1, 0, 48, 1, -1, 2, 24, 23)))
    replay = world.ask(since=since, until=until)
    world.carry_out()
    assert [event_id for _, event_id, _ in world.handed_over()] == ["e1", "e3", "e5", "e7"]
    shown = world.replay(replay)
    assert (shown.state, shown.records, shown.handed_over, shown.is_whole) == (ReplayState.DONE, 7, 4, True)


def test_a_replay_stops_at_a_whole_chunk_that_is_an_hour_past_its_range(world):
    world.max_records = 2
    since, until = dt.datetime(2026, 5, 10, tzinfo=dt.UTC), dt.datetime(2026, 5, 11, tzinfo=dt.UTC)
    world.publish_at(*(since + dt.timedelta(hours=hours) for hours in (0, 48, 48, 24.5, 48, 1, 25, 25, 48, 48)))
    replay = world.ask(since=since, until=until)
    world.carry_out()
    shown = world.replay(replay)
    assert (shown.state, shown.records) == (ReplayState.DONE, 8)
    assert [event_id for _, event_id, _ in world.handed_over()] == ["e0", "e5"]


def test_a_step_advances_a_replay_however_slow_the_machine_is(world):
    """Regression: `fanout archive --once` ended before its replays when a second passed until the first chunk."""
    world.publish(1)
    world.ask()
    replayer = world.replayer()
    assert replayer.step(world.connection, once=True, clock=itertools.count(0, 5).__next__) > 0
    replayer.close()


def test_many_replays_of_a_customer_delay_no_replay_of_another(world):
    """Regression: a replay had one chunk in each rotation over all replays, also over the thousand of another customer."""
    many = [world.ask(f"many{number}") for number in range(8)]
    world.connection.execute("insert into customers (customer_id) values ('c2')")
    other = requests.ask(world.connection, "c2", "ep3", ReplayRange(since=LONG_AGO, until=dt.datetime.now(dt.UTC))).replay_id
    replayer, tried = world.replayer(), []
    replayer._advance = lambda _, replay: not tried.append(replay.replay_id)
    clock = itertools.chain([0.0] * 60, itertools.repeat(9.0)).__next__
    replayer.step(world.connection, clock=clock)
    assert tried[: 2 * len(many)] == [replay_id for own in many for replay_id in (own, other)]


def test_while_the_archive_is_behind_replays_take_half_of_the_time(world):
    """Regression: a replay took a second after each 500 archived records, so the archive fell further behind."""
    world.publish(1)
    world.ask()
    replayer = world.replayer()
    steps = [
        replayer.step(world.connection, is_behind=is_behind, clock=lambda now=now: now) > 0
        for now, is_behind in [(100.0, True), (100.9, True), (100.9, False)]
    ]
    world.ask("ep2")
    steps += [replayer.step(world.connection, is_behind=True, clock=lambda now=now: now) > 0 for now in (101.8, 101.9)]
    assert steps == [True, False, False, False, True]
    replayer.close()


def test_events_that_came_before_their_tenant_was_registered_are_replayed(world):
    """As docs/operations.md#rejected-records says: the lanes reject such events, and a replay needs no second publishing."""
    world.publish_raw(orjson.dumps({"id": "e0", "tenant_id": "late"}))
    world.publish(1)
    world.ask("ep2")
    world.carry_out()
    assert [event_id for _, event_id, _ in world.handed_over()] == ["e1"]
    ring = keyring.KeyRing.from_settings(settings.KeysSettings(ring={"k1": keyring.generate()}))
    with_tenant = DOCUMENT | {"tenants": [{"id": "t1"}, {"id": "late"}]}
    apply.apply(world.connection, manifest.check(with_tenant, guard.Guard()), ring)
    world.ask("ep1")
    world.carry_out()
    assert [event_id for endpoint, event_id, _ in world.handed_over() if endpoint == "ep1"] == ["e0", "e1"]


def test_replays_and_resends_decode_and_wait_for_the_schema_registry(world):
    with SchemaRegistry() as registry:
        world.document["schema_registry"] = {"topic_pattern": ".+", "url": registry.url, "wait_s": 0.01}
        number = registry.register("order", orjson.dumps(AVRO).decode())
        values = [{"id": f"e{number}", "tenant_id": "t1"} for number in range(2)]
        world.publish_raw(*(framing.framed(number, framing.avro(AVRO, value)) for value in values))
        replay = world.ask()
        event = builders.event(event_id="e1", source=world.topic)
        resend = world.ask_again("ep1", event, "s1", world.topic, offset=1)
        registry.stop()
        with pytest.raises(errors.SchemaRegistryUnavailable):
            world.carry_out()
        assert (world.handed_over(), world.replay(replay).records) == ([], 0)
        registry.start()
        world.carry_out()
    assert sorted(world.handed_over()) == sorted([("ep1", "e0", replay), ("ep1", "e1", replay), ("ep1", "e1", resend)])
    assert all(orjson.loads(event.data) in values for _, _, event in world.entries())
    assert {world.replay(replay_id).state for replay_id in (replay, resend)} == {ReplayState.DONE}


def test_replays_and_resends_send_the_original_payload(world):
    schema = {"type": "record", "name": "Order", "fields": [{"name": name, "type": "string"} for name in ("id", "tenant_id")]}
    world.connection.execute("update endpoints set payload = 'original' where endpoint_id = 'ep1'")
    with SchemaRegistry() as registry:
        world.document["schema_registry"] = {"topic_pattern": ".+", "url": registry.url}
        number = registry.register("order", orjson.dumps(schema).decode())
        value = framing.framed(number, framing.avro(schema, {"id": "e1", "tenant_id": "t1"}))
        world.publish_raw(value)
        webhook_id = payload.webhook_id(builders.event(event_id="e1", source=world.topic), "s1")
        delivery = ReplayOne(webhook_id=webhook_id, subscription_id="s1", topic=world.topic, partition=0, offset=0)
        replay = world.ask()
        resend = requests.ask(world.connection, "c1", "ep1", delivery).replay_id
        world.carry_out()
    found = {entry.replay: opaque.as_bytes(event.data, event.opaque) for _, entry, event in world.entries()}
    assert found == {replay: value, resend: value}


def test_a_replay_to_a_paused_endpoint_waits_and_others_run(world):
    world.publish(1)
    paused, other = world.ask(), world.ask("ep2")
    endpoint_status.set_status(world.connection, "ep1", EndpointStatus.PAUSED, None)
    world.carry_out()
    assert world.handed_over() == [("ep2", "e1", other)]
    assert world.replay(paused).state is ReplayState.RUNNING
    assert progress.resumable(world.connection, max_pending=1) == [], "it costs no step"
    endpoint_status.set_status(world.connection, "ep1", EndpointStatus.ACTIVE, None)
    world.carry_out()
    assert world.replay(paused).state is ReplayState.DONE


def test_a_replay_to_a_paused_endpoint_fails_when_the_endpoint_is_deleted(world):
    world.publish(1)
    replay = world.ask()
    endpoint_status.set_status(world.connection, "ep1", EndpointStatus.PAUSED, None)
    world.carry_out()
    world.connection.execute("delete from endpoints where endpoint_id = 'ep1'")
    world.carry_out()
    assert (world.replay(replay).state, world.replay(replay).reason) == (ReplayState.FAILED, "endpoint_deleted")


def test_a_replay_follows_the_present_registry_and_its_request(world):
    world.publish(1)
    after = dt.datetime.now(dt.UTC) + dt.timedelta(minutes=1)
    nothing = [world.ask("ep1", event_types=["user.*"]), world.ask("ep2", since=after, until=after + dt.timedelta(days=1))]
    world.carry_out()
    assert [(world.replay(replay_id).state, world.replay(replay_id).handed_over) for replay_id in nothing] == [
        (ReplayState.DONE, 0)
    ] * 2
    world.connection.execute("update subscriptions set event_type = 'user' where subscription_id = 's1'")
    world.connection.execute("delete from endpoints where endpoint_id = 'ep2'")
    changed, gone = world.ask(), world.ask("ep2")
    world.carry_out()
    assert (world.replay(changed).state, world.replay(changed).handed_over) == (ReplayState.DONE, 0)
    assert (world.replay(gone).state, world.replay(gone).reason) == (ReplayState.FAILED, "endpoint_deleted")
    assert world.handed_over() == []


def test_a_cancelled_replay_stops_and_permits_another(world):
    world.max_records = 1
    world.publish(*range(3))
    replay = world.ask()
    world.carry_out(replay_max_pending=1)
    assert requests.cancel(world.connection, "c1", replay, now=dt.datetime.now(dt.UTC))
    progress.add_counts(world.connection, [progress.ReplayCounts(replay, delivered=1)])
    world.carry_out()
    shown = world.replay(replay)
    assert (shown.state, shown.handed_over, shown.delivered) == (ReplayState.CANCELLED, 1, 1)
    assert world.ask() != replay


def test_a_replay_fails_if_attempts_are_not_archived(world):
    replay = world.ask()
    world.carry_out(attempts=False)
    assert (world.replay(replay).state, world.replay(replay).reason) == (ReplayState.FAILED, "attempts_not_archived")


def test_finished_replays_are_deleted_after_the_retention(world):
    ended, running = world.ask(), world.ask("ep2")
    requests.cancel(world.connection, "c1", ended, now=LONG_AGO)
    assert progress.forget(world.connection, before=LONG_AGO + dt.timedelta(days=1)) == 1
    assert (world.replay(ended), world.replay(running).state) == (None, ReplayState.WAITING)
