"""A replay that fails pauses, delays no other, and repeats at most one chunk. On a real Kafka and a real Postgres."""

import dataclasses
import datetime as dt
import itertools
import re

import orjson
import pytest

from delivery import errors
from delivery.stages.kafka import topics
from fanout.kafka import publishing
from subscriptions_db.replays import progress, requests
from subscriptions_db.replays.requests import ReplayState
from tests.integration.archive.replays import AVRO
from tests.support import builders, framing, raw_records
from tests.support.schema_registry import SchemaRegistry

pytestmark = pytest.mark.integration


def test_a_replay_that_fails_pauses_by_itself(world, caplog):
    """Regression: redrives and all other replays paused with it, 30 s after each of its failures."""
    with SchemaRegistry() as registry:
        world.document["schema_registry"] = {"topic_pattern": re.escape(world.topic), "url": registry.url, "wait_s": 0.01}
        number = registry.register("order", orjson.dumps(AVRO).decode())
        world.publish_raw(framing.framed(number, framing.avro(AVRO, {"id": "e1", "tenant_id": "t1"})))
        failing = world.ask("ep1")
        invoices = world.topic.replace("order", "invoice")
        topics.ensure(world.config.kafka, [invoices], 1)
        world.publish_raw(orjson.dumps({"id": "e2", "tenant_id": "t1"}), topic=invoices)
        event = builders.event(event_id="e2", event_type="invoice", source=invoices)
        resend = world.ask_again("ep2", event, "s2", invoices)
        registry.stop()
        replayer = world.replayer()
        replayer.step(world.connection, clock=lambda: 100.0)
        assert f"So replay {failing} pauses for 30 s, and other replays pause for 3 s" in caplog.text
        replayer.step(world.connection, clock=lambda: 103.0)
        assert world.handed_over() == [("ep2", "e2", resend)]
        replayer.step(world.connection, clock=lambda: 129.0)
        assert "pauses for 60 s" not in caplog.text
        replayer.step(world.connection, clock=lambda: 130.0)
        assert f"So replay {failing} pauses for 60 s" in caplog.text
        replayer.close()
        registry.start()
        world.carry_out()
    assert {world.replay(replay_id).state for replay_id in (failing, resend)} == {ReplayState.DONE}


def attempted(world, monkeypatch, failure, *times):
    """Step at these times, while the replay for ep1 fails; return the endpoints of the replays that were tried."""
    world.publish(1)
    for endpoint in ("ep1", "ep2"):
        world.ask(endpoint)
    replayer, tried = world.replayer(), []

    def advance(_, replay):
        tried.append(replay.endpoint_id)
        if replay.endpoint_id == "ep1":
            raise failure
        return False

    monkeypatch.setattr(replayer, "_advance", advance)
    for now in times:
        replayer.step(world.connection, clock=lambda now=now: now)
    return tried


def test_a_replay_whose_topic_cannot_be_read_delays_no_other(world, monkeypatch, caplog):
    failure = errors.TopicUnreadable("this login may not read the topic")
    assert attempted(world, monkeypatch, failure, 0, 29, 30) == ["ep1", "ep2", "ep2", "ep1", "ep2"]
    assert "pauses for 60 s, and other replays continue" in caplog.text


@pytest.mark.parametrize("before_1970_ms", [1, 10, 2_208_988_800_000], ids=["latest", "refused", "1900"])
def test_a_replay_from_before_1970_delays_no_other(world, before_1970_ms):
    """Regression: Kafka refused the request for its first offsets, and all replays of all customers paused, again and again."""
    since = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) - dt.timedelta(milliseconds=before_1970_ms)
    now = dt.datetime.now(dt.UTC)
    world.publish_at(now)
    early = world.ask("ep1", **dataclasses.asdict(requests.range_of(since, since + dt.timedelta(days=1), None, now=now)))
    whole = world.ask("ep2", since=since)
    world.carry_out()
    assert {world.replay(replay_id).state for replay_id in (early, whole)} == {ReplayState.DONE}
    assert world.handed_over() == [("ep2", "e0", whole)]


def test_if_kafka_fails_all_replays_pause_and_that_replay_pauses_longer(world, monkeypatch):
    failure = errors.KafkaUnavailable("no broker answers")
    tried = attempted(world, monkeypatch, failure, 0, 29, 30, 59, 60, 89, 90)
    assert tried == ["ep1", "ep2", "ep1", "ep2", "ep2", "ep1"]


def test_a_replay_with_an_unforeseen_error_pauses_and_delays_no_other(world, monkeypatch, caplog):
    """Regression: one replay ended `fanout archive` again and again, for all customers."""
    assert attempted(world, monkeypatch, ZeroDivisionError("a fault"), 0, 29, 30) == ["ep1", "ep2", "ep2", "ep1", "ep2"]
    assert "an unforeseen error in replay" in caplog.text
    assert "So this replay pauses for 60 s" in caplog.text
    assert "ZeroDivisionError: a fault" in caplog.text


def test_an_unforeseen_error_in_a_replay_ends_an_archive_that_runs_once(world, monkeypatch):
    world.ask()
    replayer = world.replayer()

    def advance(*_):
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr(replayer, "_advance", advance)
    with pytest.raises(ZeroDivisionError, match="a fault"):
        replayer.step(world.connection, once=True)


@pytest.mark.parametrize("failure", [errors.RegistryUnavailable("away"), errors.RegistryOutdated("old")])
def test_an_error_of_postgres_ends_the_step_and_pauses_no_replay(world, monkeypatch, failure):
    with pytest.raises(type(failure)):
        attempted(world, monkeypatch, failure, 0)


def test_a_replay_leaves_out_records_with_unreadable_header_names(world):
    """Regression: the name is not UTF-8, and such a record ended `fanout archive` again and again."""
    servers = world.config.kafka.bootstrap_servers
    raw_records.produce(servers, world.topic, orjson.dumps({"id": "e0", "tenant_id": "t1"}), [(b"caf\xe9", b"1")])
    world.publish(1)
    replay = world.ask()
    world.carry_out()
    assert world.handed_over() == [("ep1", "e1", replay)]
    assert (world.replay(replay).state, world.replay(replay).records) == (ReplayState.DONE, 2)


def test_a_crash_repeats_one_chunk_of_a_replay_only(world, monkeypatch):
    world.max_records = 2
    world.publish(*range(4))
    replay = world.ask()
    reach, pieces = progress.advance, iter(range(10))

    def dying(*arguments, **fields):
        if next(pieces) == 1:
            raise errors.KafkaUnavailable("dies")
        reach(*arguments, **fields)

    monkeypatch.setattr(progress, "advance", dying)
    with pytest.raises(errors.KafkaUnavailable):
        world.carry_out()
    assert world.replay(replay).handed_over == 2
    world.carry_out()
    assert [event_id for _, event_id, _ in world.handed_over()] == ["e0", "e1", "e2", "e3", "e2", "e3"]
    assert (world.replay(replay).state, world.replay(replay).handed_over) == (ReplayState.DONE, 4)


def test_a_failure_of_kafka_repeats_only_the_bytes_of_one_chunk(world, monkeypatch):
    """Regression: a slow Kafka confirmed a part of 1,000 large events, and the replay enqueued them again without end."""
    world.max_bytes = 2000  # two events
    world.publish_raw(*(orjson.dumps({"id": f"e{number}", "tenant_id": "t1", "note": "x" * 1000}) for number in range(6)))
    replay = world.ask()
    flush, calls = publishing.Publisher.flush, itertools.count(1)

    def confirmed_in_part(publisher):
        flush(publisher)
        if next(calls) == 2:
            raise errors.KafkaUnavailable("Kafka has not confirmed 1 record after 30 s, and may have it")

    monkeypatch.setattr(publishing.Publisher, "flush", confirmed_in_part)
    with pytest.raises(errors.KafkaUnavailable):
        world.carry_out()
    shown = world.replay(replay)
    assert (shown.records, shown.handed_over) == (2, 2)
    world.carry_out()
    assert [event_id for _, event_id, _ in world.handed_over()] == ["e0", "e1", "e2", "e3", "e2", "e3", "e4", "e5"]
    shown = world.replay(replay)
    assert (shown.state, shown.records, shown.handed_over, shown.is_whole) == (ReplayState.DONE, 6, 6, True)
