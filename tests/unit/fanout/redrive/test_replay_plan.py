"""A replay writes retry entries for the deliveries due by the present registry, with the first delivery's `webhook-id`."""

import dataclasses
import gzip
import math

import msgspec
import orjson
import pytest

from delivery.model import LeaveReason
from delivery.registry_model import Batching, Retrying
from delivery.webhooks.batching import segment
from delivery.webhooks.events import ordering_key, parsing
from delivery.webhooks.events.parsing import Layout
from delivery.webhooks.policy import retry_reasons
from delivery.webhooks.results import dead_letter_records, log_records
from delivery.webhooks.retries import retry_messages
from delivery.webhooks.sending import payload
from fanout.redrive import redrive_plan, replay_plan
from subscriptions_db.archive.ingest import archived_rows as archive_rows
from subscriptions_db.replays.progress import ReplayCounts
from tests.support import archive, batches, builders
from tests.support.leases import lease, registry, waiting
from tests.unit.webhooks.leases.test_lease_in_flight import Delivered

NOW_MS = 1_800_000_000_000
LAYOUT = Layout(topic_prefix="events.")


def record(offset, **fields):
    return builders.record(
        offset=offset, value=orjson.dumps({"id": f"e{offset}", "tenant_id": "t1", "amount": offset} | fields)
    )


def due(*records, event_types=None, endpoint=None, **subscription):
    to = endpoint or builders.endpoint()
    known = builders.snapshot(to, builders.subscription(**subscription))
    return replay_plan.Routes(known, to, LAYOUT).due(records, event_types)


def offsets(found):
    return [segment.unpacked(delivery.item.packed).offset for delivery in found]


def entries(found, endpoint=None):
    to = endpoint or builders.endpoint()
    routes = replay_plan.Routes(builders.snapshot(to, revision=7), to, LAYOUT)
    written = replay_plan.records(found, routes, "rpl_1", now_ms=NOW_MS, resends=False)
    return [entry for value in written for entry in retry_messages.message(value).entries]


def test_a_replay_has_the_deliveries_due_by_the_present_registry():
    records = [record(1), record(9), record(10, tenant_id="unknown"), builders.record(offset=11, value=b"?")]
    assert offsets(due(*records, filter_pattern={"data": {"amount": [{"numeric": [">", 5]}]}})) == [9]
    assert due(*records, event_type="user.created") == []
    assert offsets(due(*records, event_types=["user.*", "order.created"])) == [1, 9]
    assert due(*records, event_types=["order.createdLater", "user.*"]) == []


def test_a_replayed_entry_keeps_webhook_id_and_has_replay_id():
    found = due(record(7), record(8))
    first, second = entries(found)
    assert [segment.unpacked(entry.packed[0]).offset for entry in (first, second)] == [7, 8]
    event = segment.unpacked(first.packed[0])
    assert payload.webhook_id(event, first.subscriptions[0]) == payload.webhook_id(parsing.parse(record(7), LAYOUT), "s1")
    assert (first.again_at_ms, first.reason, first.replay, first.left_by) == (NOW_MS, retry_reasons.REPLAYED, "rpl_1", None)
    assert (first.order_key, first.revision) == (None, 7)


def test_a_replayed_entry_has_the_order_key_of_its_endpoint():
    ordered = builders.endpoint(order_by="amount")
    assert [entry.order_key for entry in entries(due(record(7), endpoint=ordered), ordered)] == [
        ordering_key.key_of({"amount": 7}, "amount")
    ]


def large(offset, **fields):
    """Return a record of 1 KB in Kafka, with an event of 10 KB."""
    value = gzip.compress(orjson.dumps({"id": f"e{offset}", "tenant_id": "t1", "note": "x" * 10_000} | fields))
    assert len(value) < 1000
    return builders.record(offset=offset, value=value, headers=(("content-encoding", b"gzip"),))


def found_until(max_bytes, *subscriptions, event_types=None):
    """Return the offsets of the deliveries in a chunk, and the offset at which the next chunk begins."""
    to, chunk = builders.endpoint(), replay_plan.Chunk(0, 100, since_ms=0, until_ms=2**62)
    routes = replay_plan.Routes(builders.snapshot(to, *subscriptions), to, LAYOUT)
    found = routes.due(chunk.in_range(map(large, range(10))), event_types, max_bytes=max_bytes)
    return offsets(found), chunk.next_offset


def test_a_chunk_ends_when_its_decompressed_deliveries_reach_the_bound():
    """Regression: a chunk had up to 1,000 events of any size, and more memory than `fanout archive` has."""
    assert found_until(25_000, builders.subscription()) == ([0, 1, 2], 3)
    assert found_until(1, builders.subscription()) == ([0], 1), "a larger event is a chunk of its own"
    assert found_until(1_000_000, builders.subscription()) == (list(range(10)), 100)


def test_an_event_counts_once_for_each_of_its_deliveries():
    two = [builders.subscription(subscription_id=name) for name in ("s1", "s2")]
    assert found_until(25_000, *two) == ([0, 0, 1, 1], 2)


def test_events_that_are_not_due_take_no_bytes_of_a_chunk():
    assert found_until(25_000, builders.subscription(event_type="user.created")) == ([], 100)
    assert found_until(25_000, builders.subscription(), event_types=["user.*"]) == ([], 100)


def test_a_delivery_to_replay_keeps_only_bytes():
    """Regression: it kept the parsed content, which took five times the memory of the bytes."""
    [found] = due(record(1, note="x" * 100))
    assert list(map(type, (*found, *found.item))) == [segment.SegmentItem, str, type(None), bytes, int, int]


def test_a_chunk_counts_all_records_and_yields_those_of_its_time_range():
    chunk = replay_plan.Chunk(5, 9, since_ms=10, until_ms=20)
    records = [builders.record(offset=offset, appended_at_ms=ms) for offset, ms in [(5, 12), (6, 20), (7, 9), (8, 19)]]
    in_range = chunk.in_range(records)
    assert [next(in_range).offset for _ in range(2)] == [5, 8]
    assert (chunk.records, chunk.earliest_ms, chunk.next_offset) == (4, 9, 9)


def test_a_chunk_that_was_read_ends_behind_offsets_without_a_record():
    chunk = replay_plan.Chunk(5, 9, since_ms=10, until_ms=20)
    assert list(chunk.in_range([])) == []
    assert (chunk.records, chunk.earliest_ms, chunk.next_offset) == (0, math.inf, 9)


def test_replayed_events_for_a_batch_endpoint_go_in_batches():
    endpoint = batches.endpoint(batching=Batching(max_events=2))
    made = entries(due(*map(record, range(3)), endpoint=endpoint), endpoint)
    assert [(len(entry.packed), entry.left_by, entry.replay) for entry in made] == [
        (2, LeaveReason.REDRIVE, "rpl_1"), (1, LeaveReason.REDRIVE, "rpl_1")
    ]  # fmt: skip


@pytest.mark.parametrize("error_class", [None, "server_error"])
def test_the_replay_id_is_in_all_records_and_is_counted_once(error_class):
    marked = msgspec.structs.replace(waiting(), replay="rpl_1")
    for mine, wanted in ((marked, "rpl_1"), (waiting(), None)):
        written = Delivered(registry(retrying=Retrying(schedule_s=())), lease(mine), error_class).written()
        [log], dead = written["attempts"], written.get("dead", [])
        assert {entry.get("replay") for entry in (*log["entries"], *dead)} == {wanted}
        ended = archive_rows.replay_counts(log_records.decode(orjson.dumps(log))) + [
            counts
            for row in dead
            for counts in archive_rows.replay_counts_of_dead_letter(dead_letter_records.decode(orjson.dumps(row)))
        ]
        counted = ReplayCounts("rpl_1", delivered=1) if error_class is None else ReplayCounts("rpl_1", dead_lettered=1)
        assert ended == ([] if wanted is None else [counted])


def test_a_skipped_delivery_of_a_replay_is_counted():
    written = Delivered(
        dataclasses.replace(registry(), endpoints={}), lease(msgspec.structs.replace(waiting(), replay="rpl_1"))
    ).written()
    assert archive_rows.replay_counts(log_records.decode(orjson.dumps(written["attempts"][0]))) == [
        ReplayCounts("rpl_1", skipped=1)
    ]


def test_a_redriven_dead_letter_of_a_replay_keeps_the_replay_id():
    letter = dead_letter_records.decode(orjson.dumps(orjson.loads(archive.letter()) | {"replay": "rpl_1"}))
    [written] = redrive_plan.records([[letter]], now_ms=NOW_MS)
    assert [entry.replay for entry in retry_messages.message(written.postponed).entries] == ["rpl_1"]
    assert orjson.loads(written.note)["entries"][0]["replay"] == "rpl_1"


def test_a_redriven_dead_letter_of_a_replay_waits_again_and_counts_once():
    """Regression: its delivery counted as dead-lettered, and then also by its next outcome.

    The replay took its other deliveries for ended, and enqueued more than `archive.replay_max_pending`.
    """
    letter = dead_letter_records.decode(orjson.dumps(orjson.loads(archive.letter()) | {"replay": "rpl_1"}))
    [written] = redrive_plan.records([[letter]], now_ms=NOW_MS)
    [given_up] = archive_rows.replay_counts_of_dead_letter(letter)
    assert archive_rows.replay_counts(log_records.decode(written.note)) == [ReplayCounts("rpl_1", dead_lettered=-1)]
    assert given_up == ReplayCounts("rpl_1", dead_lettered=1)
