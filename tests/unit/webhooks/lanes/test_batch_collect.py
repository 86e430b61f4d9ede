"""The collector puts events due in batches into the segment of their endpoint's shard, and spreads full batches."""

import asyncio
import collections
import subprocess
import sys
import tracemalloc

import orjson
import pytest

from delivery.config import plan_builder, settings
from delivery.registry_model import Batching, ContentMode, DeliveryMode, EndpointStatus
from delivery.webhooks.batching import segment
from delivery.webhooks.events import parsing
from delivery.webhooks.lanes import batch_collect
from delivery.webhooks.results import counters
from delivery.webhooks.results.task_results import Results
from delivery.webhooks.routing import intake, registries, seen_ids
from delivery.webhooks.routing.registry_snapshot import SnapshotChanges
from delivery.webhooks.sending import batch_payload, payload
from tests.support import builders
from tests.support.batches import endpoint

SHARDS = 16
NOW_MS = builders.record().appended_at_ms


def records(count, **fields):
    return [
        builders.record(offset=n, value=orjson.dumps({"id": f"e{n}", "tenant_id": "t1", "type": "a", **fields}))
        for n in range(count)
    ]


def collected(snapshot, arrived, **options):
    registry = registries.WholeRegistry("base", snapshot)
    collector = batch_collect.Collector(
        registry, parsing.Layout(), **{"shards": SHARDS, "now_ms": NOW_MS, "immediate_flush_s": 0.5} | options
    )
    first, rest = asyncio.run(collector.add(arrived)), collector.finish()
    return Results(outcomes=first.results.outcomes, rejections=first.results.rejections, receipts=rest.results.receipts), [
        (row.shard, batch) for row in [*first.rows, *rest.rows] for batch in segment.decoded(row.segment)
    ]


def snapshot(*rows):
    subscriptions = [builders.subscription(f"s-{row.endpoint_id}", endpoint_id=row.endpoint_id, event_type="*") for row in rows]
    return builders.snapshot(*rows, *subscriptions)


def event_ids(batch):
    return [segment.unpacked(item.packed).event_id for item in batch.items]


def test_events_are_in_order_in_their_endpoints_shard():
    to = endpoint(batching=Batching(max_events=50, max_wait_s=2.5, max_bytes=9000))
    results, [(shard, batch)] = collected(snapshot(to), records(5))
    assert shard == segment.shard_of("ep1", SHARDS)
    bounds = segment.bounds_of("ep1", to.batching)
    assert (event_ids(batch), batch.bounds, batch.mark) == ([f"e{n}" for n in range(5)], bounds, 0)
    assert (bounds.max_events, bounds.max_bytes) == (50, 9000)
    assert 2250 <= bounds.max_wait_ms <= 2500
    assert (batch.endpoint_id, batch.customer_id, set(batch.subscription_ids)) == ("ep1", "c1", {"s-ep1"})
    [receipt] = results.receipts
    assert (receipt.lane, receipt.records, receipt.due, receipt.last_offset) == (DeliveryMode.BATCH, 5, 5, 4)


def test_two_payloads_of_one_id_are_counted_over_micro_batches():
    """The platform delivers both events. Events that are due to nobody do not count."""
    seen, total = seen_ids.SeenIds(), 0
    for amount in (1, 2, 2):
        collector = batch_collect.Collector(
            registries.WholeRegistry("base", snapshot(endpoint())), parsing.Layout(), shards=1, now_ms=NOW_MS, seen=seen
        )
        asyncio.run(collector.add([*records(1, amount=amount), *records(1, tenant_id="t9", amount=amount)]))
        last = collector.finish()
        assert len([*last.rows]) == 1
        total += counters.count(last.results, cpu_s=0.0).reused_ids
    assert total == 2


def test_passed_events_with_an_invalid_time_are_counted():
    collector = batch_collect.Collector(
        registries.WholeRegistry("base", snapshot(endpoint())), parsing.Layout(), shards=1, now_ms=NOW_MS
    )
    times = ({"time": "yesterday"}, {"time": 5}, {"time": "2026-05-01T10:00:00Z"}, {"time": ""}, {})
    asyncio.run(collector.add([record for given in times for record in records(1, **given)]))
    assert counters.count(collector.finish().results, cpu_s=0.0).invalid_times == 2


@pytest.mark.parametrize(
    ("treatment", "due", "rejected", "counted"),
    [("", ["plain"], 1, 1), ("passed", ["cloud", "plain"], 0, 2), ("rejected", [], 2, 0)],
)
def test_the_setting_decides_whether_an_invalid_time_is_passed(treatment, due, rejected, counted):
    """A passed event is due, with the time of its record, and is counted."""
    cloud = {"specversion": "1.0", "id": "cloud", "source": "/shop", "type": "a", "tenantid": "t1", "time": "yesterday"}
    plain = {"id": "plain", "tenant_id": "t1", "type": "a", "time": "yesterday"}
    headers = (("content-type", b"application/cloudevents+json"),)
    layout = plan_builder.layout_of(settings.Settings(source=settings.SourceSettings(invalid_time=treatment)))
    registry = registries.WholeRegistry("base", snapshot(endpoint()))
    collector = batch_collect.Collector(registry, layout, shards=1, now_ms=NOW_MS)
    sent = [builders.record(value=orjson.dumps(cloud), headers=headers), builders.record(offset=8, value=orjson.dumps(plain))]
    first, rest = asyncio.run(collector.add(sent)), collector.finish()
    batches = [batch for row in [*first.rows, *rest.rows] for batch in segment.decoded(row.segment)]
    events = [segment.unpacked(item.packed) for batch in batches for item in batch.items]
    assert [(event.event_id, event.time) for event in events] == [(name, "2023-11-14T22:13:20.000Z") for name in due]
    assert [row.reason for row in first.results.rejections] == ["bad_attribute"] * rejected
    assert counters.count(rest.results, cpu_s=0.0).invalid_times == counted


def test_an_event_for_many_endpoints_is_written_once_per_shard():
    many = [endpoint(f"ep{n}") for n in range(60)]
    collector = batch_collect.Collector(
        registries.WholeRegistry("base", snapshot(*many)), parsing.Layout(), shards=1, now_ms=NOW_MS
    )
    asyncio.run(collector.add(records(1, padding="x" * 3000)))
    [row] = collector.finish().rows
    assert len(segment.decoded(row.segment)) == 60
    assert len(row.segment) < 2 * 3000 + 60 * 100


def test_two_customers_of_an_endpoint_id_share_no_batch():
    """Regression: with cached look-ups, one batch had events of both, and all of them were skipped."""
    registry = registries.WholeRegistry("base", snapshot(endpoint()))
    collector = batch_collect.Collector(registry, parsing.Layout(), shards=SHARDS, now_ms=NOW_MS)
    first, second = records(2)
    asyncio.run(collector.add([first]))
    registry.advance(SnapshotChanges(since=1, revision=2, endpoints={"ep1": endpoint(customer_id="c2")}))
    asyncio.run(collector.add([second]))
    batches = [batch for row in collector.finish().rows for batch in segment.decoded(row.segment)]
    assert [(batch.customer_id, event_ids(batch)) for batch in batches] == [("c1", ["e0"]), ("c2", ["e1"])]


def test_each_lane_serves_the_endpoints_of_its_mode():
    results, batches = collected(snapshot(builders.endpoint("direct"), endpoint("batch")), records(3))
    assert [batch.endpoint_id for _, batch in batches] == ["batch"]
    assert results.receipts[0].due == 3


def test_full_batches_of_a_hot_endpoint_are_spread():
    results, batches = collected(snapshot(endpoint(batching=Batching(max_events=10))), records(95))
    full = [(shard, batch) for shard, batch in batches if batch.mark == segment.Mark.FULL]
    [(home, rest)] = [(shard, batch) for shard, batch in batches if batch.mark != segment.Mark.FULL]
    assert [len(batch.items) for _, batch in full] == [10] * 9
    assert (home, len(rest.items)) == (segment.shard_of("ep1", SHARDS), 5)
    assert len({shard for shard, _ in full}) > 4
    in_order = sorted(full, key=lambda each: int(event_ids(each[1])[0][1:]))
    assert [name for _, batch in [*in_order, (home, rest)] for name in event_ids(batch)] == [f"e{n}" for n in range(95)]
    assert results.receipts[0].due == 95


def test_a_batch_never_exceeds_its_bytes():
    _, batches = collected(snapshot(endpoint(batching=Batching(max_bytes=5000))), records(10, padding="x" * 1500))
    in_order = sorted((batch for _, batch in batches), key=event_ids)
    assert (len(in_order[0].items), in_order[0].mark) == (2, 2)
    assert all(batch.size <= 5000 for batch in in_order)


def test_a_short_max_wait_is_flushed_immediately():
    hasty, patient = (
        endpoint("hasty", batching=Batching(max_wait_s=0.5)),
        endpoint("patient", batching=Batching(max_wait_s=0.6)),
    )
    marks = {batch.endpoint_id: batch.mark for _, batch in collected(snapshot(hasty, patient), records(1))[1]}
    assert marks == {"hasty": segment.Mark.IMMEDIATE, "patient": segment.Mark.WAITS}


@pytest.mark.parametrize(("max_wait_s", "spread_ms"), [(10, 1_000), (86_400, 10_000)])
def test_the_first_due_times_of_endpoints_are_spread(max_wait_s, spread_ms):
    waits_ms = [segment.bounds_of(f"ep{n}", Batching(max_wait_s=max_wait_s)).max_wait_ms for n in range(1000)]
    assert waits_ms == [segment.bounds_of(f"ep{n}", Batching(max_wait_s=max_wait_s)).max_wait_ms for n in range(1000)]
    assert max_wait_s * 1000 - spread_ms <= min(waits_ms)
    assert max(waits_ms) <= max_wait_s * 1000
    tenths = collections.Counter((max_wait_s * 1000 - wait_ms) * 10 // (spread_ms + 1) for wait_ms in waits_ms)
    assert sorted(tenths) == list(range(10))
    assert max(tenths.values()) < 150


def test_skips_and_rejections_end_as_in_the_direct_lane():
    bad = builders.record(value=b"{", offset=9)
    broken = builders.subscription(event_type="*", fault="a filter that is none")
    results, batches = collected(builders.snapshot(endpoint(), broken), [*records(2), bad])
    assert batches == []
    assert [(outcome.delivery.event.event_id, outcome.reason) for outcome in results.outcomes] == [
        ("e0", "quarantined"),
        ("e1", "quarantined"),
    ]
    assert [rejection.reason for rejection in results.rejections] == ["not_json"]
    assert (results.receipts[0].rejected, results.receipts[0].due) == (1, 2)


@pytest.mark.parametrize(
    "fields",
    [{"status": EndpointStatus.PAUSED}, {"status": EndpointStatus.DISABLED}, {"fault": "a secret that does not open"}],
)
def test_events_of_a_stopped_endpoint_are_collected(fields):
    """The batches of a stopped endpoint are deferred when they leave, and wait in the retry lane until it is active."""
    _, [(_, batch)] = collected(snapshot(endpoint(**fields)), records(2))
    assert event_ids(batch) == ["e0", "e1"]


def test_an_unforeseen_error_rejects_one_record_only(monkeypatch, caplog):
    pack = segment.item

    def with_a_bug(event, now_ms):
        if event.event_id == "e1":
            raise RuntimeError("a bug")
        return pack(event, now_ms)

    monkeypatch.setattr(segment, "item", with_a_bug)
    results, [(_, batch)] = collected(snapshot(endpoint()), records(3))
    assert event_ids(batch) == ["e0", "e2"]
    assert [(rejection.record.offset, rejection.reason) for rejection in results.rejections] == [(1, intake.UNFORESEEN)]
    assert "unforeseen" in caplog.text


def test_full_batches_leave_memory_early():
    collector = batch_collect.Collector(
        registries.WholeRegistry("base", snapshot(endpoint(batching=Batching(max_events=10)))), parsing.Layout(),
        shards=4, now_ms=NOW_MS, max_segment_bytes=20_000,
    )  # fmt: skip
    assert asyncio.run(collector.add(records(5))).rows == []
    rows = asyncio.run(collector.add(records(200))).rows
    assert sum(len(batch.items) for row in rows for batch in segment.decoded(row.segment)) == 200


def test_events_are_not_in_memory_twice_at_the_end():
    """Regression: at the end of its task, the collector had all events in batches and in segments at the same time."""
    rows = [endpoint(f"ep{n}", batching=Batching(max_events=1000)) for n in range(20)]
    collector = batch_collect.Collector(
        registries.WholeRegistry("base", snapshot(*rows)), parsing.Layout(), shards=4, now_ms=NOW_MS, max_segment_bytes=20_000
    )
    tracemalloc.start()
    try:
        for number in range(20):  # each event has a payload of its own, in the segments of four shards
            asyncio.run(collector.add(records(1, number=number, text="x" * 40_000)))
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        segments = sum(len(row.segment) for row in collector.finish().rows)
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert segments > before / 2
    assert (peak - before < segments / 2, after < before / 2) == (True, True)


def test_a_shard_is_the_same_in_every_process():
    code = "from delivery.webhooks.batching import segment; print([segment.shard_of(f'ep{n}', 16, n % 3) for n in range(50)])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == str([segment.shard_of(f"ep{n}", 16, n % 3) for n in range(50)])


@pytest.mark.parametrize("mode", [ContentMode.STANDARD, ContentMode.CLOUDEVENTS_STRUCTURED])
@pytest.mark.parametrize("text", ["plain", 'quo"ted\\', "é漢🎈", ""])
def test_the_estimated_size_of_an_event_is_close(mode, text):
    event = builders.event(
        event_id=text, event_type=text, source=text, tenant_id=text, sub_tenant_id=text, time=text, data=b"1" * 300
    )
    if text:
        event = event._replace(attributes=(("a", text), ("subject", text), ("n", 2**31 - 1), ("b", False)))
    reckoned = segment.item(event, NOW_MS).size
    assert len(batch_payload.content([event], mode).body) <= reckoned
    length = len(payload.content(event, mode).body)
    assert length < reckoned < length + 80
