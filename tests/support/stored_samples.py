"""Samples of what the lanes with state store: messages of the retries topic, indexes and segments of both lanes.

`tests/unit/webhooks/state/data` has the bytes of these samples, a file for each form that they had. The values are fixed, and
no decision is made, so the bytes change only with their layout. `python -m tests.support.stored_samples DATE` writes the file
`stored-DATE.json` of the present form; docs/storage-formats.md says when a form may change.
"""

from __future__ import annotations

import base64
import itertools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import orjson

from delivery.model import Attempt, LeaveReason, NextAttempt
from delivery.payload_form import Opaque, PayloadForm
from delivery.registry_model import CustomerId, EndpointId, Revision, SubscriptionId
from delivery.webhooks.batching import batcher, segment
from delivery.webhooks.retries import endpoint_state, fifo, retry_messages, shard_scheduler, timer_wheel, window
from delivery.webhooks.state import compaction, segment_store
from tests.support import builders, reading

FOLDER = reading.ROOT / "tests" / "unit" / "webhooks" / "state" / "data"
NOW = 1_700_000_000_000
EP, C, S1, S2 = EndpointId("ep1"), CustomerId("c1"), SubscriptionId("s1"), SubscriptionId("s2")
NAME = b"\x01background\xff"


class Sample(NamedTuple):
    """Stored bytes, and the function that reads them. Two readings of the same content are equal."""

    written: bytes
    read: Callable[[bytes], Any]


def samples() -> dict[str, Sample]:
    """Return the samples by name."""
    message, lease = retry_messages.message, retry_messages.lease
    return {
        "retries topic: deferral": Sample(retry_messages.encoded(_deferral()), message),
        "retries topic: completion": Sample(
            retry_messages.encoded(retry_messages.Postponed.completion(EP, C, [NAME], accepted=True)), message
        ),
        "retries topic: health hint": Sample(
            retry_messages.encoded(retry_messages.Postponed.health_hint(EP, C, accepts=False, at_ms=NOW)), message
        ),
        "retries topic: report": Sample(retry_messages.encoded(_report()), message),
        "lease": Sample(retry_messages.encoded(_lease()), lease),
        "retry lane: index": Sample(shard_scheduler.encoded(_retry_index()), shard_scheduler.decoded),
        "retry lane: segment": Sample(_retry_segment(), segment_store._decoded),
        "batch lane: index": Sample(batcher.encoded(_batch_index()), batcher.decoded),
        "batch lane: segment": Sample(_batch_segment(), segment.decoded),
        "batch lane: batch": Sample(segment.encoded_batch(_pending(), LeaveReason.COUNT), segment.decoded_batch),
    }


def stored() -> dict[str, dict[str, bytes]]:
    """Return the stored bytes of the samples in each form that they had: file name (oldest first) → sample name → bytes."""
    files = sorted(FOLDER.glob("stored-*.json"), key=lambda file: file.stem)
    return {
        file.stem: {name: base64.b64decode(text) for name, text in orjson.loads(file.read_bytes()).items()} for file in files
    }


def _attempt(number: int) -> Attempt:
    return Attempt(number, NOW - 5000, 12.5, 503, "server_error", "why, é", b"\0\xff no", 30.0)


def _packed(**fields: Any) -> bytes:
    record = builders.record(topic="events.a", partition=3, offset=2**40, appended_at_ms=NOW, headers=(("trace", b"\xff"),))
    return segment.item(builders.event(event_id="e1", record=record, data=b'{"a":1}', **fields), NOW).packed


def _every_packed() -> list[bytes]:
    """Return an event for each number of elements that a packed event may have."""
    attributes, opaque = (("subject", "é"), ("rank", -7), ("sampled", True)), Opaque(PayloadForm.TEXT, "text/xml")
    return [
        _packed(),
        _packed(sub_tenant_id="100", attributes=attributes),
        _packed(attributes=attributes, opaque=opaque),
        _packed(payload_digest="0123456789abcdef"),
        _packed(json_type="application/vnd.acme+json"),
    ]


def _entry(**fields: Any) -> retry_messages.RetryEntry:
    values: dict[str, Any] = {
        "packed": _every_packed(), "subscriptions": [S1, S2], "subscription_places": [0, 1, 1, 0, 0],
        "left_by": LeaveReason.TIME,
        "again_at_ms": NOW + 60_000, "since_ms": NOW, "expires_ms": NOW + 86_400_000, "reason": "server_error", "retries": 2,
        "attempts": 12, "history": (_attempt(11), _attempt(12)), "order_key": '"a"', "replay": "rpl_1",
        "background_attempt": NAME, "revision": Revision(7),
    }  # fmt: skip
    return retry_messages.RetryEntry(**values | fields)


def _deferral() -> retry_messages.Postponed:
    plain = _entry(packed=[_packed()], subscriptions=[S1], subscription_places=[], left_by=None, history=(), order_key=None)
    return retry_messages.Postponed.deferral(EP, C, [_entry(), plain], resends=True)


def _report() -> retry_messages.Report:
    requeue = retry_messages.Requeue(1, NextAttempt(NOW + 1000, 3), "timeout", (_attempt(13),))
    return retry_messages.Report(
        EP, C, '"a"', lease=9, delivered=1, failed=2, blocked="endpoint_paused", retry_after_s=30.0, requeued=[requeue],
        refused=3, entries=6, at_ms=NOW, is_throttled=True, poison=1,
    )  # fmt: skip


def _lease() -> retry_messages.Lease:
    return retry_messages.Lease(EP, C, '"a"', 9, "expired", [_entry()], is_probe=True, accepted_ms=NOW - 5)


def _slices() -> list[segment_store.SegmentSlice]:
    return [segment_store.SegmentSlice(4, 1, NOW, NOW + 1000, 2), segment_store.SegmentSlice(5, 0, NOW, NOW + 2000)]


def _segments() -> dict[int, compaction.StoredSegment]:
    return {4: compaction.StoredSegment(3, 1, 1000, 900), 5: compaction.StoredSegment(5, 0, 80, 80)}


def _retry_index() -> shard_scheduler.RetryIndex:
    state = endpoint_state.EndpointState(
        window=window.Window(3, NOW + 500, 2, False, NOW - 9000, NOW - 10, NOW + 7, True, NOW - 5, NOW - 6),  # every element
        events=4,
        size=70,
        fifos={None: fifo.Fifo(2, 8, 1, NOW - 1, NOW + 1, _slices()), '"a"': fifo.Fifo(1, 9)},
        background={NAME: (1, 20)},
        completed={b"\x02": NOW},
    )
    summary = endpoint_state.IndexEntry(
        written=msgspec.msgpack.encode(state), due_ms=NOW + 3, events=4, size=70, since_ms=NOW - 2, suppressed_until_ms=NOW + 4,
        is_leased=True, failing_ms=NOW, failing_since_ms=NOW - 9000, failed_ms=NOW - 10,
    )  # fmt: skip
    return shard_scheduler.RetryIndex(
        last_lease=9,
        segments=segment_store.SegmentIndex(6, _segments()),
        endpoints={"c1/ep1": summary},
        buckets={(NOW >> 10 << 10) + 10: timer_wheel.Bucket(NOW + 60_000, NOW, _slices())},
    )


def _retry_segment() -> bytes:
    """Return a segment with an entry of an endpoint, and with an entry of the timer wheel."""
    store = segment_store.SegmentStore(segment_store.SegmentIndex(), {}.__getitem__)
    lists: dict[str, list[segment_store.SegmentSlice]] = {"c1/ep1": [], timer_wheel.OWNER: []}
    store.append(lists["c1/ep1"], segment_store.StoredItem(msgspec.msgpack.encode(_entry()), NOW, NOW + 1000))
    timed = timer_wheel.TimerEntry("c1/ep1", NOW + 60_000, NOW, msgspec.msgpack.encode(_entry()))
    store.append(lists[timer_wheel.OWNER], segment_store.StoredItem(msgspec.msgpack.encode(timed), NOW, NOW + 60_000))
    [written] = store.write(lists, lambda owner: [lists[owner]])[0].values()
    return written


def _pending() -> segment.PendingBatch:
    bounds = segment.Bounds(100, 5000, 1_000_000)
    made = segment.PendingBatch(endpoint_id=EP, customer_id=C, bounds=bounds, mark=segment.Mark.FULL)
    for packed, subscription in zip(_every_packed(), itertools.cycle((S1, S2)), strict=False):
        made.add(segment.SegmentItem(packed, 300, NOW), subscription)
    return made


def _batch_segment() -> bytes:
    """Return a segment with two pending batches that share their events."""
    first = _pending()
    second = segment.PendingBatch(endpoint_id=EndpointId("ep2"), customer_id=C, bounds=first.bounds)
    for item in first.items[:2]:
        second.add(item, S1)
    [(written, _)] = segment.encoded([first, second])
    return written


def _batch_index() -> batcher.BatchIndex:
    events = batcher.EndpointEvents(segment.Bounds(100, 5000, 1_000_000), 3, 900, NOW, [4, 5])
    return batcher.BatchIndex(6, {"c1/ep1": events}, _segments())


if __name__ == "__main__":
    document = {name: base64.b64encode(sample.written).decode() for name, sample in samples().items()}
    (FOLDER / f"stored-{sys.argv[1]}.json").write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
