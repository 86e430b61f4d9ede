"""Decide which batches leave a shard now: by count, by bytes, or because their first event has waited long enough.

Runs in the executors. Must not import pyspark or psycopg. Pure: values and `now_ms` in, a decision out.

A shard's state is an index, which is small and written at each decision, and numbered segments, which are not: a segment is
written once and read when a batch with events in it leaves. Of each endpoint the index knows which segments those are, oldest
first. Segments that are many or mostly empty are written together anew (`_to_merge`), so an event is written again a few times
in a long wait, and what is kept is at most about twice what waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from delivery import errors
from delivery.model import LeaveReason
from delivery.webhooks import segment

VERSION = 1
MAX_RUNS = 4
"""So many times segments are written before they are written together: three times fewer to read when a batch leaves, for one
more writing of each event whenever its wait quadruples."""
MAX_SEGMENT_BYTES = 128 * 1024
"""Small, and each with the events of few endpoints, because a segment is read whole for each that leaves."""
MIN_MERGED_SIZE = 64 * 1024
"""Less is not worth merging only because most of it has left."""


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


class Stored(msgspec.Struct, array_like=True, gc=False):
    """One segment of the state."""

    run: int
    """The first number of those that were written together with it."""
    generation: int
    """How often its events have been merged. Never more than that of an older segment: what is merged is always the newest."""
    size: int
    live: int
    """How much of `size` still waits."""


class Index(msgspec.Struct, array_like=True):
    """The state of one shard, less its segments."""

    next_number: int = 0
    endpoints: dict[str, Waiting] = {}
    """By segment.Lot.key."""
    segments: dict[int, Stored] = {}

    def waiting(self) -> tuple[int, int]:
        """Return how many events wait, and their bytes."""
        return sum(one.events for one in self.endpoints.values()), sum(one.size for one in self.endpoints.values())

    def oldest_ms(self) -> int | None:
        """Return when the first of all that wait arrived."""
        return min((one.oldest_ms for one in self.endpoints.values()), default=None)


@dataclass(slots=True, kw_only=True)
class Decision:
    """What is to be done. `append` and `drop` are disjoint; with neither and no batches the state has not changed."""

    index: Index
    batches: list[bytes] = field(default_factory=list)
    """As segment.batch reads them."""
    append: dict[int, bytes] = field(default_factory=dict)
    drop: list[int] = field(default_factory=list)
    left: Counter[str] = field(default_factory=Counter)
    """How many batches left, by reason."""

    @property
    def changed(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.batches or self.append or self.drop)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Index)


def encoded(index: Index) -> bytes:
    """Return the index as it is kept."""
    return bytes((VERSION,)) + _encoder.encode(index)


def decoded(written: bytes | None) -> Index:
    """Return the index of a shard; an empty one for a shard that has none yet."""
    if not written:
        return Index()
    if written[0] != VERSION:
        raise errors.StateUnreadable(
            f"a shard's index was written in format {written[0]}, by a newer version; this one knows {VERSION}"
        )
    return _decoder.decode(memoryview(written)[1:])


def decide(index: Index, arrived: Iterable[bytes], read: Callable[[int], bytes], *, now_ms: int, horizon_ms: int) -> Decision:
    """Return what leaves and what is kept, with the index changed in place. `read` gives a segment of the state.

    `arrived` are the segments of this micro-batch, in any order; the same ones give the same batches when it runs again. What
    would be due before the next decision, in `horizon_ms`, leaves now, because then it would be late.
    """
    return _Deciding(index, read, now_ms + horizon_ms).decided(arrived)


class _Deciding:
    def __init__(self, index: Index, read: Callable[[int], bytes], until_ms: int) -> None:
        self._index = index
        self._read = read
        self._until_ms = until_ms
        self._known: dict[int, dict[str, segment.Lot]] = {}
        self._decision = Decision(index=index)

    def decided(self, arrived: Iterable[bytes]) -> Decision:
        kept = self._gathered(arrived)
        for key, lot in kept.items():
            self._count_in(key, lot)
        passing = {key for key, lot in kept.items() if lot.mark == segment.Mark.PASSES}
        for key in [key for key, one in self._index.endpoints.items() if key in passing or self._must_leave(one)]:
            is_due = key in passing or self._is_due(self._index.endpoints[key])
            rest = self._cut(self._taken(key, kept.pop(key, None)), is_due=is_due)
            if rest is not None:
                kept[key] = rest
                self._count_in(key, rest)
        generation = self._merge(kept)
        self._append(kept, generation)
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

    def _is_due(self, one: Waiting) -> bool:
        return one.oldest_ms + one.bounds.max_wait_ms <= self._until_ms

    def _must_leave(self, one: Waiting) -> bool:
        return one.events >= one.bounds.max_events or one.size >= one.bounds.max_bytes or self._is_due(one)

    def _taken(self, key: str, fresh: segment.Lot | None) -> segment.Lot:
        """Take out all that waits for an endpoint, with what has just come."""
        lots = []
        for number in self._index.endpoints.pop(key).segments:
            lot = self._segment(number)[key]
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
        for place, item in enumerate(lot.items):
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
        self._decision.left[reason.value] += 1

    def _merge(self, kept: dict[str, segment.Lot]) -> int:
        """Put what waits in segments that are to be written together anew before what is kept; return its generation."""
        numbers, generation = _to_merge(self._index.segments)
        for number in sorted(numbers, reverse=True):
            for key, lot in self._segment(number).items():
                waiting = self._index.endpoints.get(key)
                if waiting is not None and number in waiting.segments:  # else it has left
                    waiting.segments.remove(number)
                    if key in kept:
                        lot.extend(kept[key])
                    kept[key] = lot
            self._drop(number)
        return generation

    def _append(self, kept: dict[str, segment.Lot], generation: int) -> None:
        run = self._index.next_number
        for written, lots in segment.encoded((kept[key] for key in sorted(kept)), MAX_SEGMENT_BYTES):
            number = self._index.next_number
            self._index.next_number += 1
            size = sum(lot.size for lot in lots)
            self._index.segments[number] = Stored(run, generation, size, size)
            self._decision.append[number] = written
            for lot in lots:
                self._index.endpoints[lot.key].segments.append(number)

    def _segment(self, number: int) -> dict[str, segment.Lot]:
        if number not in self._known:
            self._known[number] = {lot.key: lot for lot in segment.decoded(self._read(number))}
        return self._known[number]

    def _drop(self, number: int) -> None:
        del self._index.segments[number]
        self._decision.drop.append(number)


def _to_merge(segments: Mapping[int, Stored]) -> tuple[list[int], int]:
    """Return the segments that are written together anew, the newest ones up to some generation, and the generation to come.

    1. A generation has been written MAX_RUNS times: it and the younger ones become one run of the next generation.
    2. Of a generation and the younger ones most has left: what has not becomes one run of the same generation.
    """
    for generation in sorted({one.generation for one in segments.values()}, reverse=True):
        newest = [number for number, one in segments.items() if one.generation <= generation]
        if len({one.run for one in segments.values() if one.generation == generation}) >= MAX_RUNS:
            return newest, generation + 1
        size, live = sum(segments[number].size for number in newest), sum(segments[number].live for number in newest)
        if size >= MIN_MERGED_SIZE and 2 * live < size:
            return newest, generation
    return [], 0
