"""Decide which batches leave a shard now: by count, by bytes, or because their first event has waited long enough.

Runs in the executors. Must not import pyspark or psycopg. Pure: values and `now_ms` in, a decision out.

A shard's state is an index, which is small and written at each decision, and numbered segments, which are not: a segment is
written once and read when a batch with events in it leaves. Of each endpoint the index knows which segments those are, oldest
first. Segments that are many or mostly empty are written together anew (delivery.webhooks.state.compaction).

After an outage everything is due at once, and may be more than a worker has memory for. So one decision takes a bounded part of
what waits, and the next one, which comes at once, goes on.
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
"""Small, and each with the events of few endpoints, because a segment is read whole for each that leaves."""
MAX_LEAVING_BYTES = 64 * 1024 * 1024
"""Of what waited, no more leaves by one decision, whose batches are in memory together. One endpoint's events always may."""


class Waiting(msgspec.Struct, array_like=True, gc=False):
    """What waits for one endpoint."""

    bounds: segment.Bounds
    """Those that came with the newest event."""
    events: int
    size: int
    oldest_ms: int
    """When its first event arrived."""
    segments: list[int]
    """Where they are, in order of arrival."""

    @property
    def due_ms(self) -> int:
        """When they must have left; 0, at once, where they fill a batch: an earlier decision had no room for it."""
        is_full = self.events >= self.bounds.max_events or self.size >= self.bounds.max_bytes
        return 0 if is_full else self.due_by_time_ms

    @property
    def due_by_time_ms(self) -> int:
        """When the first of them has waited long enough."""
        return self.oldest_ms + self.bounds.max_wait_ms


class Index(msgspec.Struct, array_like=True):
    """The state of one shard, less its segments."""

    next_number: int = 0
    endpoints: dict[str, Waiting] = {}
    """By segment.Lot.key."""
    segments: dict[int, compaction.Stored] = {}

    def waiting(self) -> tuple[int, int]:
        """Return how many events wait, and their bytes."""
        return sum(one.events for one in self.endpoints.values()), sum(one.size for one in self.endpoints.values())

    def oldest_ms(self) -> int | None:
        """Return when the first of all that wait arrived."""
        return min((one.oldest_ms for one in self.endpoints.values()), default=None)


@dataclass(slots=True, kw_only=True)
class Decision:
    """What is to be done. `append` and `drop` are disjoint."""

    index: Index
    changed: bool = False
    """Whether there is anything to write."""
    batches: list[bytes] = field(default_factory=list)
    """As segment.batch reads them."""
    append: dict[int, bytes] = field(default_factory=dict)
    drop: list[int] = field(default_factory=list)


def backlog_of(decided: Decision) -> Pending:
    """Return what waits in one shard after a decision."""
    events, size = decided.index.waiting()
    return Pending(
        shards=1,
        events=events,
        size=size,
        oldest_ms=decided.index.oldest_ms(),
        due_ms=min((endpoint.due_ms for endpoint in decided.index.endpoints.values()), default=None),
    )


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Index)


def encoded(index: Index) -> bytes:
    """Return the index as it is kept."""
    return versioning.marked(VERSION, _encoder.encode(index))


def decoded(written: bytes | None) -> Index:
    """Return the index of a shard; an empty one for a shard that has none yet."""
    if not written:
        return Index()
    return _decoder.decode(versioning.read(written, VERSION, "an index of the batch lane"))


def decide(index: Index, arrived: Iterable[bytes], read: Callable[[int], bytes], *, now_ms: int, horizon_ms: int) -> Decision:
    """Return what leaves and what is kept, with the index changed in place. `read` gives a segment of the state.

    `arrived` are the segments of this micro-batch, in any order; the same ones give the same batches when it runs again. What
    would be due before the next decision, in `horizon_ms`, leaves now, because then it would be late. What is due beyond
    MAX_LEAVING_BYTES stays, the newest of it, and is due at the next decision.
    """
    return _Deciding(index, read, now_ms + horizon_ms).decided(arrived)


class _Deciding:
    def __init__(self, index: Index, read: Callable[[int], bytes], until_ms: int) -> None:
        self._index = index
        self._read = read
        self._until_ms = until_ms
        self._open: dict[int, dict[str, segment.Lot]] = {}
        """Segments that have been read, each as long as somebody who leaves has events in it."""
        self._takers: Counter[int] = Counter()
        """How many who leave have events in a segment, and have not taken them yet."""
        self._decision = Decision(index=index)

    def decided(self, arrived: Iterable[bytes]) -> Decision:
        kept = self._gathered(arrived)
        passing = {key for key, lot in kept.items() if lot.mark == segment.Mark.PASSES}
        # Where waits are short this is all that comes. It leaves as it is, behind those who have waited.
        passes_by = [kept.pop(key) for key in sorted(passing.difference(self._index.endpoints))]
        for key, lot in kept.items():
            self._count_in(key, lot)
        leaving = self._leaving(passing)
        self._decision.changed = bool(kept or leaving)
        self._takers.update(number for key in leaving for number in self._index.endpoints[key].segments)
        for key in leaving:
            is_due = key in passing or self._index.endpoints[key].due_by_time_ms <= self._until_ms
            rest = self._cut(self._taken(key, kept.pop(key, None)), is_due=is_due)
            if rest is not None:
                kept[key] = rest
                self._count_in(key, rest)
        for lot in passes_by:
            self._cut(lot, is_due=True)
        generation = self._merge(kept)
        self._append(kept, generation)
        self._decision.changed |= bool(self._decision.append or self._decision.drop)
        return self._decision

    def _gathered(self, arrived: Iterable[bytes]) -> dict[str, segment.Lot]:
        """Return what arrived for each endpoint, less the batches that arrived full: those leave."""
        gathered: dict[str, segment.Lot] = {}
        for written in sorted(arrived):
            for lot in segment.decoded(written):
                if lot.mark == segment.Mark.FULL:
                    self._leave(lot, LeaveReason.COUNT if len(lot.items) >= lot.bounds.max_events else LeaveReason.BYTES)
                elif lot.key in gathered:
                    gathered[lot.key].extend(lot)
                else:
                    gathered[lot.key] = lot
        return gathered

    def _count_in(self, key: str, lot: segment.Lot) -> None:
        one = self._index.endpoints.get(key)
        if one is None:
            one = self._index.endpoints[key] = Waiting(lot.bounds, 0, 0, lot.oldest_ms, [])
        one.bounds = lot.bounds
        one.events += len(lot.items)
        one.size += lot.size
        one.oldest_ms = min(one.oldest_ms, lot.oldest_ms)

    def _leaving(self, passing: set[str]) -> list[str]:
        """Return whose events leave: those who are due, the first to arrive first, as far as MAX_LEAVING_BYTES go.

        Who has nothing in the state yet is not counted: all of it is in memory already, and bounded with the micro-batch.
        In order of their keys, as they stand in segments, so that few segments are open at a time.
        """
        endpoints = self._index.endpoints
        due = [key for key, one in endpoints.items() if key in passing or one.due_ms <= self._until_ms]
        leaving = [key for key in due if not endpoints[key].segments]
        waited = sorted((key for key in due if endpoints[key].segments), key=lambda key: endpoints[key].oldest_ms)
        leaves = itertools.accumulate(endpoints[key].size for key in waited)
        leaving += [key for key, size in zip(waited, leaves, strict=True) if size <= MAX_LEAVING_BYTES] or waited[:1]
        return sorted(leaving)

    def _taken(self, key: str, fresh: segment.Lot | None) -> segment.Lot:
        """Take out all that waits for an endpoint, with what has just come."""
        lots = []
        for number in self._index.endpoints.pop(key).segments:
            lot = self._lot(number, key)
            stored = self._index.segments[number]
            stored.live -= lot.size
            if not stored.live:
                self._drop(number)
            lots.append(lot)
        lots += [] if fresh is None else [fresh]
        for later in lots[1:]:
            lots[0].extend(later)
        return lots[0]

    def _cut(self, lot: segment.Lot, *, is_due: bool) -> segment.Lot | None:
        """Let batches leave within the bounds; return what stays."""
        first, size, bounds = 0, 0, lot.bounds
        # The usual case, in which there is nothing to look for.
        fits_one = len(lot.items) < bounds.max_events and lot.size < bounds.max_bytes
        for place, item in enumerate(() if fits_one else lot.items):
            if place > first and size + item.size > bounds.max_bytes:
                self._leave(lot.part(first, place), LeaveReason.BYTES)
                first, size = place, 0
            size += item.size
            if place + 1 - first == bounds.max_events or size >= bounds.max_bytes:
                is_many = place + 1 - first == bounds.max_events
                self._leave(lot.part(first, place + 1), LeaveReason.COUNT if is_many else LeaveReason.BYTES)
                first, size = place + 1, 0
        if first == len(lot.items):
            return None
        rest = lot.part(first, len(lot.items))
        if is_due:
            self._leave(rest, LeaveReason.TIME)
            return None
        return rest

    def _leave(self, lot: segment.Lot, reason: LeaveReason) -> None:
        self._decision.batches.append(segment.batch_of(lot, reason))

    def _merge(self, kept: dict[str, segment.Lot]) -> int:
        """Put what waits in segments that are to be written together anew before what is kept; return its generation."""
        numbers, generation = compaction.to_merge(self._index.segments)
        for number in sorted(numbers, reverse=True):
            for lot in segment.decoded(self._read(number)):
                waiting = self._index.endpoints.get(lot.key)
                if waiting is not None and number in waiting.segments:  # else it has left
                    waiting.segments.remove(number)
                    if lot.key in kept:
                        lot.extend(kept[lot.key])
                    kept[lot.key] = lot
            self._drop(number)
        return generation

    def _append(self, kept: dict[str, segment.Lot], generation: int) -> None:
        run = self._index.next_number
        for written, lots in segment.encoded((kept[key] for key in sorted(kept)), MAX_SEGMENT_BYTES):
            number = self._index.next_number
            self._index.next_number += 1
            size = sum(lot.size for lot in lots)
            self._index.segments[number] = compaction.Stored(run, generation, size, size)
            self._decision.append[number] = written
            for lot in lots:
                self._index.endpoints[lot.key].segments.append(number)

    def _lot(self, number: int, key: str) -> segment.Lot:
        """Take the events of one who leaves out of a segment."""
        lots = self._open.pop(number, None)
        if lots is None:
            lots = {lot.key: lot for lot in segment.decoded(self._read(number))}
        taken = lots.pop(key)
        self._takers[number] -= 1
        if self._takers[number]:
            self._open[number] = lots
        return taken

    def _drop(self, number: int) -> None:
        del self._index.segments[number]
        self._decision.drop.append(number)
