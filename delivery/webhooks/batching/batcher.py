"""Decide which batches a shard sends now: by count, by bytes or by time.

Runs in the executors. Pure: values and `now_ms` in, a decision out. A decision is made for each shard in each micro-batch. A
shard is one key of Spark's state, with the waiting events of some endpoints.

The state of a shard is an index and numbered segments. The index is small, and written after each decision that changes it. For
each endpoint it lists the numbers of the endpoint's segments, oldest first. A segment has events of one or more endpoints. A
segment never changes, and is read only when some of its events are sent, or when it is merged. Compaction merges segments when
there are many, or when most of their events were sent (delivery.webhooks.state.compaction).

After an outage the whole backlog is due at once, and may exceed a worker's memory. So one decision sends a bounded part of the
backlog. The next decision comes at once and sends more.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from delivery.model import LeaveReason
from delivery.webhooks.batching import segment
from delivery.webhooks.state import compaction, versioning
from delivery.webhooks.state.backlog import ShardBacklog

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingBounds:
    """The bounds of one decision about a shard."""

    max_segment_bytes: int = 128 * 1024
    """Most bytes of events in a stored segment. If the events of one endpoint have more bytes, they are a segment of their own,
    which exceeds this number. The number is small, because a segment is read whole when events of one of its endpoints are
    sent."""
    max_sent_bytes: int = 64 * 1024 * 1024
    """Most bytes that one decision sends to endpoints with stored events, because all batches of a decision are in memory
    together. A single endpoint may exceed the bound."""
    merges: compaction.MergeBounds = compaction.BOUNDS


BOUNDS = BatchingBounds()
"""The bounds of the batch lane."""


class EndpointEvents(msgspec.Struct, array_like=True, gc=False):
    """The index entry of one endpoint: the number, size, age and segments of the endpoint's stored events."""

    bounds: segment.Bounds
    """The bounds of the endpoint's batches. Each pending batch brings bounds with its events, and the latest bounds apply."""
    events: int
    """Number of stored events."""
    size: int
    """Bytes of the stored events."""
    oldest_ms: int
    """When the oldest event arrived, milliseconds since the epoch."""
    segments: list[int]
    """Numbers of the segments with events of the endpoint, the segment with the oldest events first."""

    @property
    def due_ms(self) -> int:
        """Return when the next batch is due, in milliseconds since the epoch. 0: now, because the stored events fill a batch.

        A decision sends full batches at once. So a full batch stays stored only if `BatchingBounds.max_sent_bytes` kept it
        back.
        """
        is_full = self.events >= self.bounds.max_events or self.size >= self.bounds.max_bytes
        return 0 if is_full else self.due_by_time_ms

    @property
    def due_by_time_ms(self) -> int:
        """Return when the oldest event has waited as long as the bounds allow, in milliseconds since the epoch."""
        return self.oldest_ms + self.bounds.max_wait_ms


class BatchIndex(msgspec.Struct, array_like=True):
    """The state of one shard, without its segments."""

    next_number: int = 0
    """Number of the next segment to write."""
    endpoints: dict[str, EndpointEvents] = {}
    """Endpoints with stored events, by `customer id/endpoint id`."""
    segments: dict[int, compaction.StoredSegment] = {}
    """Compaction level and size of each stored segment, by the segment's number."""

    def totals(self) -> tuple[int, int]:
        """Return the number and the bytes of the shard's stored events."""
        stored = self.endpoints.values()
        return sum(endpoint.events for endpoint in stored), sum(endpoint.size for endpoint in stored)

    def oldest_ms(self) -> int | None:
        """Return when the shard's oldest event arrived, in milliseconds since the epoch. None: no event is stored."""
        return min((endpoint.oldest_ms for endpoint in self.endpoints.values()), default=None)


@dataclass(slots=True, kw_only=True)
class BatchingDecision:
    """The batches that a shard sends now, and the changes of its state. No segment is in both `append` and `drop`."""

    index: BatchIndex
    changed: bool = False
    """True if the state of the shard changed and has to be written."""
    batches: list[bytes] = field(default_factory=list)
    """The batches to send, in the encoding that segment.decoded_batch reads."""
    append: dict[int, bytes] = field(default_factory=dict)
    """Segments to write, by number."""
    drop: list[int] = field(default_factory=list)
    """Numbers of the segments to delete."""


def backlog_of(decision: BatchingDecision) -> ShardBacklog:
    """Return the events that wait in one shard after a decision: their number, bytes, oldest arrival and next due time."""
    events, size = decision.index.totals()
    return ShardBacklog(
        shards=1,
        events=events,
        size=size,
        oldest_ms=decision.index.oldest_ms(),
        due_ms=min((endpoint.due_ms for endpoint in decision.index.endpoints.values()), default=None),
    )


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(BatchIndex)


def encoded(index: BatchIndex) -> bytes:
    """Return the index of a shard as bytes for Spark's state."""
    return versioning.versioned(VERSION, _encoder.encode(index))


def decoded(written: bytes | None) -> BatchIndex:
    """Return the index that `encoded` wrote. None or empty bytes: a new shard, with an empty index.

    Raise StateUnreadable for the bytes of another VERSION, and msgspec.MsgspecError or UnicodeDecodeError for damaged bytes.
    """
    if not written:
        return BatchIndex()
    return _decoder.decode(versioning.read(written, VERSION, "an index of the batch lane"))


def decide(
    index: BatchIndex,
    arrived: Iterable[bytes],
    read: Callable[[int], bytes],
    *,
    now_ms: int,
    look_ahead_ms: int,
    bounds: BatchingBounds = BOUNDS,
) -> BatchingDecision:
    """Decide which batches of a shard are sent now; return them with the changes of the state. `index` is changed in place.

    `arrived` are the segments that came in this micro-batch, in any order. `read` returns the stored segment with a given
    number. A second run with the same arguments sends the same batches. Raise StateUnreadable for a segment of another version.

    1. A batch that is due within `look_ahead_ms` is sent now, because the next decision would send it too late.
    2. Due endpoints with stored events are sent, oldest events first, up to `bounds.max_sent_bytes` together, but at least one
       endpoint. Endpoints that exceed this bound wait for the next decision.
    3. A due endpoint whose events have all arrived in this micro-batch is always sent.
    4. Clocks may be set back, or differ between machines. An event that seems to arrive after `now_ms` counts as arrived at
       `now_ms`.
    """
    return _Batcher(index, read, now_ms, look_ahead_ms, bounds).decide(arrived)


class _Batcher:
    """Make one decision of one shard. Used once. Batches that are due up to `look_ahead_ms` after `now_ms` are sent."""

    def __init__(
        self, index: BatchIndex, read: Callable[[int], bytes], now_ms: int, look_ahead_ms: int, bounds: BatchingBounds
    ) -> None:
        self._index = index
        self._read = read
        self._now_ms = now_ms
        self._until_ms = now_ms + look_ahead_ms
        self._bounds = bounds
        self._open: dict[int, dict[str, segment.PendingBatch]] = {}
        """Decoded segments by number. Each is kept until all of its events that are sent now are taken out."""
        self._readers: Counter[int] = Counter()
        """For each segment, by number: how many endpoints still have events in the segment that this decision sends. The count
        falls when the events of an endpoint are taken out."""
        self._decision = BatchingDecision(index=index)

    def decide(self, arrived: Iterable[bytes]) -> BatchingDecision:
        kept = self._gathered(arrived)
        immediate = {key for key, batch in kept.items() if batch.mark == segment.Mark.IMMEDIATE}
        # These events never enter the index, and are sent after the stored events. With immediate flush at all endpoints, all
        # events outside full batches are among them.
        unstored = [kept.pop(key) for key in sorted(immediate.difference(self._index.endpoints))]
        for key, batch in kept.items():
            self._count_in(key, batch)
        is_set_back = self._limit_arrivals()
        sending = self._sending(immediate)
        self._decision.changed = bool(kept or sending or is_set_back)
        self._readers.update(number for key in sending for number in self._index.endpoints[key].segments)
        for key in sending:
            is_due = key in immediate or self._index.endpoints[key].due_by_time_ms <= self._until_ms
            rest = self._cut(self._taken(key, kept.pop(key, None)), is_due=is_due)
            if rest is not None:
                kept[key] = rest
                self._count_in(key, rest)
        for batch in unstored:
            self._cut(batch, is_due=True)
        level = self._merge(kept)
        self._append(kept, level)
        self._decision.changed |= bool(self._decision.append or self._decision.drop)
        return self._decision

    def _gathered(self, arrived: Iterable[bytes]) -> dict[str, segment.PendingBatch]:
        """Send the arrived batches with the mark FULL. Return the other arrived events, one pending batch for each endpoint."""
        gathered: dict[str, segment.PendingBatch] = {}
        for written in sorted(arrived):
            for batch in segment.decoded(written):
                if batch.mark == segment.Mark.FULL:
                    self._send(batch, LeaveReason.COUNT if len(batch.items) >= batch.bounds.max_events else LeaveReason.BYTES)
                elif batch.key in gathered:
                    gathered[batch.key].extend(batch)
                else:
                    gathered[batch.key] = batch
        return gathered

    def _count_in(self, key: str, batch: segment.PendingBatch) -> None:
        """Add a pending batch to its endpoint's entry in the index: its number of events, bytes, oldest arrival and bounds."""
        endpoint = self._index.endpoints.get(key)
        if endpoint is None:
            endpoint = self._index.endpoints[key] = EndpointEvents(batch.bounds, 0, 0, batch.oldest_ms, [])
        endpoint.bounds = batch.bounds
        endpoint.events += len(batch.items)
        endpoint.size += batch.size
        endpoint.oldest_ms = min(endpoint.oldest_ms, batch.oldest_ms, self._now_ms)

    def _limit_arrivals(self) -> bool:
        """Set each endpoint's oldest arrival to `now_ms` if the arrival is later. Return True if an arrival was changed."""
        ahead = [endpoint for endpoint in self._index.endpoints.values() if endpoint.oldest_ms > self._now_ms]
        for endpoint in ahead:
            endpoint.oldest_ms = self._now_ms
        return bool(ahead)

    def _sending(self, immediate: set[str]) -> list[str]:
        """Return the sorted keys of those endpoints in the index whose events are sent now.

        Endpoints are due by their bounds, or because they are in `immediate`. There are two kinds of due endpoints:
        1. Endpoints with events in segments. They are sent, oldest events first, up to `max_sent_bytes` together, but at least
           one endpoint.
        2. Endpoints whose events have all arrived in this micro-batch. All of them are sent, because their events are in memory
           already, and a micro-batch is bounded.

        Endpoints are sorted by key in segments too, so few segments are decoded at a time.
        """
        endpoints = self._index.endpoints
        due = [key for key, endpoint in endpoints.items() if key in immediate or endpoint.due_ms <= self._until_ms]
        sending = [key for key in due if not endpoints[key].segments]
        stored = sorted((key for key in due if endpoints[key].segments), key=lambda key: endpoints[key].oldest_ms)
        sizes = itertools.accumulate(endpoints[key].size for key in stored)
        most = self._bounds.max_sent_bytes
        sending += [key for key, size in zip(stored, sizes, strict=True) if size <= most] or stored[:1]
        return sorted(sending)

    def _taken(self, key: str, fresh: segment.PendingBatch | None) -> segment.PendingBatch:
        """Remove all stored events of an endpoint from the index; return them, followed by the events of `fresh`."""
        batches = []
        for number in self._index.endpoints.pop(key).segments:
            batch = self._remove_from_segment(number, key)
            stored = self._index.segments[number]
            stored.live -= batch.size
            if not stored.live:
                self._drop(number)
            batches.append(batch)
        batches += [] if fresh is None else [fresh]
        for later in batches[1:]:
            batches[0].extend(later)
        return batches[0]

    def _cut(self, batch: segment.PendingBatch, *, is_due: bool) -> segment.PendingBatch | None:
        """Send the events of an endpoint in full batches. Return the events that are left, which fill no batch.

        With `is_due`, send these events too, in a batch of their own. Return None if no events are left, or if they were sent.
        """
        first, size, bounds = 0, 0, batch.bounds
        # The usual case: there is nothing to search.
        fits_one = len(batch.items) < bounds.max_events and batch.size < bounds.max_bytes
        for position, item in enumerate(() if fits_one else batch.items):
            if position > first and size + item.size > bounds.max_bytes:
                self._send(batch.part(first, position), LeaveReason.BYTES)
                first, size = position, 0
            size += item.size
            if position + 1 - first == bounds.max_events or size >= bounds.max_bytes:
                is_many = position + 1 - first == bounds.max_events
                self._send(batch.part(first, position + 1), LeaveReason.COUNT if is_many else LeaveReason.BYTES)
                first, size = position + 1, 0
        if first == len(batch.items):
            return None
        rest = batch.part(first, len(batch.items))
        if is_due:
            self._send(rest, LeaveReason.TIME)
            return None
        return rest

    def _send(self, batch: segment.PendingBatch, reason: LeaveReason) -> None:
        self._decision.batches.append(segment.encoded_batch(batch, reason))

    def _merge(self, kept: dict[str, segment.PendingBatch]) -> int:
        """Move the events of the segments that compaction picks to `kept`, and drop these segments.

        The moved events come before newer events of the same endpoint. Return the compaction level of the segments that will be
        written from `kept`.
        """
        numbers, level = compaction.pick_compaction(self._index.segments, self._bounds.merges)
        for number in sorted(numbers, reverse=True):
            for batch in segment.decoded(self._read(number)):
                stored = self._index.endpoints.get(batch.key)
                if stored is not None and number in stored.segments:  # else its events were sent
                    stored.segments.remove(number)
                    if batch.key in kept:
                        batch.extend(kept[batch.key])
                    kept[batch.key] = batch
            self._drop(number)
        return level

    def _append(self, kept: dict[str, segment.PendingBatch], level: int) -> None:
        """Add the events in `kept` to the decision as new segments of compaction level `level`, and to the index."""
        run = self._index.next_number
        for written, batches in segment.encoded((kept[key] for key in sorted(kept)), self._bounds.max_segment_bytes):
            number = self._index.next_number
            self._index.next_number += 1
            size = sum(batch.size for batch in batches)
            self._index.segments[number] = compaction.StoredSegment(run, level, size, size)
            self._decision.append[number] = written
            for batch in batches:
                self._index.endpoints[batch.key].segments.append(number)

    def _remove_from_segment(self, number: int, key: str) -> segment.PendingBatch:
        """Take the events of one endpoint out of a stored segment, and return them.

        The first call for a segment decodes the segment. The decoded segment is kept until the events of all endpoints that
        `_readers` counts were taken out.
        """
        batches = self._open.pop(number, None)
        if batches is None:
            batches = {batch.key: batch for batch in segment.decoded(self._read(number))}
        taken = batches.pop(key)
        self._readers[number] -= 1
        if self._readers[number]:
            self._open[number] = batches
        return taken

    def _drop(self, number: int) -> None:
        del self._index.segments[number]
        self._decision.drop.append(number)
