"""Decide which batches a shard sends now: by count, by bytes, or because their first event has waited long enough.

Runs in the executors. Pure: values and `now_ms` in, a decision out.

The state of a shard is an index and numbered segments. The index is small, and written by each decision. A segment is
immutable, and read when a batch with events in it is sent. The index knows the segments of each endpoint, oldest first.
Compaction merges segments that are many or mostly empty (delivery.webhooks.state.compaction).

After an outage the whole backlog is due at once, and may exceed a worker's memory. So one decision sends a bounded part of it.
The next decision comes at once and sends more.
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
from delivery.webhooks.state.backlog import Pending

VERSION = 1
MAX_SEGMENT_BYTES = 128 * 1024
"""Small, with events of few endpoints, because a segment is read whole for each endpoint whose events are sent."""
MAX_SENT_BYTES = 64 * 1024 * 1024
"""Bytes of stored events that one decision sends. Its batches are in memory together. One endpoint may exceed the bound."""


class EndpointEvents(msgspec.Struct, array_like=True, gc=False):
    """The stored events of one endpoint."""

    bounds: segment.Bounds
    """The bounds that came with the newest event."""
    events: int
    size: int
    oldest_ms: int
    """When the oldest event arrived."""
    segments: list[int]
    """Segments with its events, in order of arrival."""

    @property
    def due_ms(self) -> int:
        """When a batch is due. 0: now, because the events fill a batch for which an earlier decision had no room."""
        is_full = self.events >= self.bounds.max_events or self.size >= self.bounds.max_bytes
        return 0 if is_full else self.due_by_time_ms

    @property
    def due_by_time_ms(self) -> int:
        """When the oldest event has waited long enough."""
        return self.oldest_ms + self.bounds.max_wait_ms


class Index(msgspec.Struct, array_like=True):
    """The state of one shard, without its segments."""

    next_number: int = 0
    endpoints: dict[str, EndpointEvents] = {}
    """By segment.PendingBatch.key."""
    segments: dict[int, compaction.StoredSegment] = {}

    def totals(self) -> tuple[int, int]:
        """Return the number of stored events, and their bytes."""
        return sum(one.events for one in self.endpoints.values()), sum(one.size for one in self.endpoints.values())

    def oldest_ms(self) -> int | None:
        """Return when the oldest event arrived. None: there is none."""
        return min((one.oldest_ms for one in self.endpoints.values()), default=None)


@dataclass(slots=True, kw_only=True)
class Decision:
    """The result of a decision. `append` and `drop` are disjoint."""

    index: Index
    changed: bool = False
    """Whether there is anything to write."""
    batches: list[bytes] = field(default_factory=list)
    """As segment.decoded_batch reads them."""
    append: dict[int, bytes] = field(default_factory=dict)
    """Segments to write, by number."""
    drop: list[int] = field(default_factory=list)
    """Numbers of the segments to delete."""


def backlog_of(decision: Decision) -> Pending:
    """Return the backlog of one shard after a decision."""
    events, size = decision.index.totals()
    return Pending(
        shards=1,
        events=events,
        size=size,
        oldest_ms=decision.index.oldest_ms(),
        due_ms=min((endpoint.due_ms for endpoint in decision.index.endpoints.values()), default=None),
    )


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Index)


def encoded(index: Index) -> bytes:
    """Return the index as bytes."""
    return versioning.marked(VERSION, _encoder.encode(index))


def decoded(written: bytes | None) -> Index:
    """Return the index of a shard; an empty one for a new shard."""
    if not written:
        return Index()
    return _decoder.decode(versioning.read(written, VERSION, "an index of the batch lane"))


def decide(
    index: Index, arrived: Iterable[bytes], read: Callable[[int], bytes], *, now_ms: int, look_ahead_ms: int
) -> Decision:
    """Return the batches and the new state. The index is changed in place. `read` returns a segment of the state.

    `arrived` are the segments of this micro-batch, in any order. A second run with the same segments sends the same batches.
    A batch that is due within the look-ahead is sent now: at the next decision it would be late. Of due events beyond
    MAX_SENT_BYTES, the newest stay until the next decision.
    """
    return _Batcher(index, read, now_ms + look_ahead_ms).decide(arrived)


class _Batcher:
    """One decision of one shard."""

    def __init__(self, index: Index, read: Callable[[int], bytes], until_ms: int) -> None:
        self._index = index
        self._read = read
        self._until_ms = until_ms
        self._open: dict[int, dict[str, segment.PendingBatch]] = {}
        """Decoded segments, each kept until the events of all sending endpoints are taken out."""
        self._readers: Counter[int] = Counter()
        """Number of sending endpoints whose events are still in a segment, by segment."""
        self._decision = Decision(index=index)

    def decide(self, arrived: Iterable[bytes]) -> Decision:
        kept = self._gathered(arrived)
        immediate = {key for key, batch in kept.items() if batch.mark == segment.Mark.IMMEDIATE}
        # With short waits these are all events. They are sent as they are, after the endpoints with stored events.
        unstored = [kept.pop(key) for key in sorted(immediate.difference(self._index.endpoints))]
        for key, batch in kept.items():
            self._count_in(key, batch)
        sending = self._sending(immediate)
        self._decision.changed = bool(kept or sending)
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
        """Return the pending batch of each endpoint. Full batches are sent at once."""
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
        one = self._index.endpoints.get(key)
        if one is None:
            one = self._index.endpoints[key] = EndpointEvents(batch.bounds, 0, 0, batch.oldest_ms, [])
        one.bounds = batch.bounds
        one.events += len(batch.items)
        one.size += batch.size
        one.oldest_ms = min(one.oldest_ms, batch.oldest_ms)

    def _sending(self, immediate: set[str]) -> list[str]:
        """Return the keys of the endpoints whose events are sent: the due ones, oldest first, up to MAX_SENT_BYTES.

        Endpoints without stored events are not counted: the micro-batch bounds them, and their events are in memory already.
        The keys are sorted, as in segments, so that few segments are decoded at a time.
        """
        endpoints = self._index.endpoints
        due = [key for key, one in endpoints.items() if key in immediate or one.due_ms <= self._until_ms]
        sending = [key for key in due if not endpoints[key].segments]
        stored = sorted((key for key in due if endpoints[key].segments), key=lambda key: endpoints[key].oldest_ms)
        sizes = itertools.accumulate(endpoints[key].size for key in stored)
        sending += [key for key, size in zip(stored, sizes, strict=True) if size <= MAX_SENT_BYTES] or stored[:1]
        return sorted(sending)

    def _taken(self, key: str, fresh: segment.PendingBatch | None) -> segment.PendingBatch:
        """Remove and return all events of an endpoint, with those of `fresh` behind them."""
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
        """Send batches within the bounds. Return the events that stay."""
        first, size, bounds = 0, 0, batch.bounds
        # The usual case: there is nothing to search.
        fits_one = len(batch.items) < bounds.max_events and batch.size < bounds.max_bytes
        for place, item in enumerate(() if fits_one else batch.items):
            if place > first and size + item.size > bounds.max_bytes:
                self._send(batch.part(first, place), LeaveReason.BYTES)
                first, size = place, 0
            size += item.size
            if place + 1 - first == bounds.max_events or size >= bounds.max_bytes:
                is_many = place + 1 - first == bounds.max_events
                self._send(batch.part(first, place + 1), LeaveReason.COUNT if is_many else LeaveReason.BYTES)
                first, size = place + 1, 0
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
        """Put the events of the segments to merge before those in `kept`. Return the level of the merged segment."""
        numbers, level = compaction.pick_compaction(self._index.segments)
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
        run = self._index.next_number
        for written, batches in segment.encoded((kept[key] for key in sorted(kept)), MAX_SEGMENT_BYTES):
            number = self._index.next_number
            self._index.next_number += 1
            size = sum(batch.size for batch in batches)
            self._index.segments[number] = compaction.StoredSegment(run, level, size, size)
            self._decision.append[number] = written
            for batch in batches:
                self._index.endpoints[batch.key].segments.append(number)

    def _remove_from_segment(self, number: int, key: str) -> segment.PendingBatch:
        """Remove and return the events of one endpoint from a decoded segment."""
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
