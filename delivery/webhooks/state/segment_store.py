"""Store lists of items in numbered segments. Items are mostly appended at the end of a list and removed from its front.

Runs in the executors. Pure: the caller passes the function that reads a segment. A shard is one key of Spark's state, and a
segment is one value of the key. An item is a retry entry, or an entry of the timer wheel, as bytes. A decision is the work of
one shard in one micro-batch.

1. A list belongs to an owner: an endpoint, or the timer wheel. A list consists of slices, which the owner keeps in order.
2. A slice is consecutive items of one list, all in one segment. A slice names the segment and its place there. So one segment
   may have slices of many owners.
3. A slice counts the items that were removed from its front. The segment itself is immutable, and is dropped when all its items
   have been removed.
4. A segment names the owner of each of its lists, so that a compaction finds the slices that it has to change.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import cachetools
import msgspec

from delivery.webhooks.state import chunking, compaction, versioning

VERSION = 1
"""Format of a segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreBounds:
    """The bounds of a segment store."""

    max_segment_bytes: int = 128 * 1024
    """Maximum of bytes of the items in a segment. A larger item has a segment of its own. The maximum is small, because a
    segment is read whole for each owner that reads its items."""
    max_cached_bytes: int = 32 * 1024 * 1024
    """Maximum of bytes of decoded segments that stay in memory during a decision. Owners that are read one after another often
    share a segment, so the cache saves reads."""
    merges: compaction.MergeBounds = compaction.BOUNDS


BOUNDS = StoreBounds()
"""The bounds of the retry lane's segment store."""


class StoredItem(NamedTuple):
    """An item as bytes, with `since_ms` and `expires_ms`.

    Times are in milliseconds since the epoch. A slice keeps the earliest of each of the two times, so that no item is decoded
    to learn them.
    """

    data: bytes
    since_ms: int
    """When the item arrived."""
    expires_ms: int
    """When the owner has to look at the item. In a FIFO the item then expires; in the timer wheel it is then due."""


class SegmentSlice(msgspec.Struct, array_like=True, gc=False):
    """Some consecutive items of one list, all in one segment."""

    number: int
    """Number of the segment. Negative: the segment is not written yet."""
    place: int
    """Place of the slice among the slices of the segment, from 0."""
    since_ms: int
    """Earliest `since_ms` of the items, including removed items."""
    expires_ms: int
    """Earliest `expires_ms` of the items. Removed items count until the owner sets a later time."""
    first: int = 0
    """Number of items that were removed from the front of the slice."""


class SegmentIndex(msgspec.Struct, array_like=True):
    """The segments of a shard, without their content. A part of the shard's index."""

    next_number: int = 0
    """Number of the next segment."""
    segments: dict[int, compaction.StoredSegment] = {}


class _DecodedSegment(NamedTuple):
    """The content of one segment."""

    size: int
    """Bytes of the encoded segment."""
    lists: list[tuple[str, list[bytes]]]
    """For each slice of the segment: its owner and its items."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[tuple[str, list[bytes]]])


class SegmentStore:
    """Read and change the lists of one shard during one decision. Changes stay in memory until `write` returns new segments.

    `read` returns the stored segment with a number, as bytes.
    """

    def __init__(self, index: SegmentIndex, read: Callable[[int], bytes], bounds: StoreBounds = BOUNDS) -> None:
        self._index = index
        self._max_bytes = bounds.max_segment_bytes
        self._max_cached_bytes = bounds.max_cached_bytes
        self._merges = bounds.merges
        self._new: dict[int, list[bytes]] = {}
        """Items of the slices that are not written yet, by negative number."""
        self._new_bytes: dict[int, int] = {}
        self._numbers = itertools.count(-1, -1)
        self._read = read
        self._cached: cachetools.LRUCache[int, _DecodedSegment] = cachetools.LRUCache(
            self._max_cached_bytes, lambda segment: segment.size
        )
        self._dropped: list[int] = []

    def append(self, slices: list[SegmentSlice], item: StoredItem) -> None:
        """Append an item to the list that consists of `slices`. Change `slices` in place."""
        last = slices[-1] if slices else None
        if last is None or last.number >= 0 or self._new_bytes[last.number] + len(item.data) > self._max_bytes:
            slices.append(self._new_slice([item]))
            return
        self._new[last.number].append(item.data)
        self._new_bytes[last.number] += len(item.data)
        last.since_ms = min(last.since_ms, item.since_ms)
        last.expires_ms = min(last.expires_ms, item.expires_ms)

    def slices(self, items: Iterable[StoredItem]) -> list[SegmentSlice]:
        """Return new slices with these items, or no slices if there are no items. The owner puts them into one of its lists."""
        return [self._new_slice(chunk) for chunk in chunking.chunks(items, lambda item: len(item.data), self._max_bytes)]

    def items(self, slice_: SegmentSlice) -> list[bytes]:
        """Return the items of a slice that were not removed."""
        items = self._new[slice_.number] if slice_.number < 0 else self._segment(slice_.number).lists[slice_.place][1]
        return items[slice_.first :]

    def all_items(self, slices: list[SegmentSlice]) -> Iterator[bytes]:
        """Yield the items of the list that consists of `slices`, in order. Read a segment only when its items are asked for."""
        for slice_ in slices:
            yield from self.items(slice_)

    def remove_first(self, slices: list[SegmentSlice], count: int) -> None:
        """Remove the first `count` items of the list that consists of `slices`. Change `slices` in place."""
        while count:
            items = len(self.items(slices[0]))
            if count < items:
                self.shorten(slices[0], count)
                return
            self.remove(slices.pop(0))
            count -= items

    def shorten(self, slice_: SegmentSlice, count: int) -> None:
        """Remove the first `count` items of a slice. The slice must have more than `count` items."""
        self._count_removed(slice_, self.items(slice_)[:count])
        slice_.first += count

    def remove(self, slice_: SegmentSlice) -> None:
        """Remove all items of a slice. The caller must take the slice out of the list that contains it."""
        if slice_.number < 0:
            del self._new[slice_.number], self._new_bytes[slice_.number]
        else:
            self._count_removed(slice_, self.items(slice_))

    def write(
        self, changed: Iterable[str], lists_of: Callable[[str], Iterable[list[SegmentSlice]]]
    ) -> tuple[dict[int, bytes], list[int]]:
        """Return the segments to write, by number, and the numbers of segments to drop. Merge segments if a compaction is due.

        The index, and the slices of the owners, are changed in place.

        Called once, at the end of the decision. `changed` must have all owners with new slices. `lists_of` returns the lists of
        an owner. Neighbouring new slices of a list are joined into one, up to `StoreBounds.max_segment_bytes`.
        """
        is_changed = self._new or self._dropped
        numbers, level = compaction.pick_compaction(self._index.segments, self._merges) if is_changed else ([], 0)
        owners = {*changed, *self._take_out(numbers, lists_of)}
        new = [(owner, slice_) for owner in sorted(owners) for slices in lists_of(owner) for slice_ in self._joined(slices)]
        return self._written(new, level), self._dropped

    def _segment(self, number: int) -> _DecodedSegment:
        found = self._cached.get(number)
        if found is None:
            found = _decoded(self._read(number))
            if found.size <= self._max_cached_bytes:
                self._cached[number] = found
        return found

    def _take_out(self, numbers: Iterable[int], lists_of: Callable[[str], Iterable[list[SegmentSlice]]]) -> set[str]:
        """Take all slices out of the segments with these numbers. Return the owners that the segments name.

        The slices become new slices, in their places, so that they are written again. One segment after another is read, and
        its removed items are not kept. So a merge has two segments in memory, and items of at most
        `MergeBounds.max_merged_size` bytes.
        """
        merged = frozenset(numbers)
        owners: set[str] = set()
        slices: dict[tuple[int, int], SegmentSlice] = {}  # of these owners, by segment and place
        for number in numbers:
            segment = self._cached.pop(number, None) or _decoded(self._read(number))
            for place, (owner, items) in enumerate(segment.lists):
                if owner not in owners:
                    owners.add(owner)
                    of_owner = itertools.chain.from_iterable(lists_of(owner))
                    slices |= {(slice_.number, slice_.place): slice_ for slice_ in of_owner if slice_.number in merged}
                slice_ = slices.pop((number, place), None)
                if slice_ is not None:  # else all items of the list were removed
                    live = items[slice_.first :]
                    self._count_removed(slice_, live)
                    slice_.number, slice_.place, slice_.first = self._new_number(live), 0, 0
        return owners

    def _new_slice(self, items: list[StoredItem]) -> SegmentSlice:
        number = self._new_number([item.data for item in items])
        return SegmentSlice(number, 0, min(item.since_ms for item in items), min(item.expires_ms for item in items))

    def _new_number(self, items: list[bytes]) -> int:
        number = next(self._numbers)
        self._new[number] = items
        self._new_bytes[number] = sum(map(len, items))
        return number

    def _count_removed(self, slice_: SegmentSlice, items: list[bytes]) -> None:
        if slice_.number < 0:
            return
        segment = self._index.segments[slice_.number]
        segment.live -= sum(map(len, items))
        if not segment.live:
            del self._index.segments[slice_.number]
            self._dropped.append(slice_.number)

    def _joined(self, slices: list[SegmentSlice]) -> list[SegmentSlice]:
        """Join neighbouring new slices, in place. Return the slices to write."""
        if not any(slice_.number < 0 for slice_ in slices):
            return []
        joined: list[SegmentSlice] = []
        new: list[SegmentSlice] = []
        for is_new, group in itertools.groupby(slices, lambda slice_: slice_.number < 0):
            run = list(group)
            if is_new:
                items = [StoredItem(data, slice_.since_ms, slice_.expires_ms) for slice_ in run for data in self.items(slice_)]
                for slice_ in run:
                    self.remove(slice_)
                run = self.slices(items)
                new += run
            joined += run
        slices[:] = joined
        return new

    def _written(self, new: list[tuple[str, SegmentSlice]], level: int) -> dict[int, bytes]:
        append: dict[int, bytes] = {}
        run = self._index.next_number
        for chunk in chunking.chunks(new, lambda owned: self._new_bytes[owned[1].number], self._max_bytes):
            number = self._index.next_number
            self._index.next_number += 1
            size = sum(self._new_bytes[slice_.number] for _, slice_ in chunk)
            self._index.segments[number] = compaction.StoredSegment(run, level, size, size)
            append[number] = versioning.versioned(
                VERSION, _encoder.encode([(owner, self._new.pop(slice_.number)) for owner, slice_ in chunk])
            )
            for place, (_, slice_) in enumerate(chunk):
                slice_.number, slice_.place, slice_.first = number, place, 0
        return append


def _decoded(written: bytes) -> _DecodedSegment:
    return _DecodedSegment(len(written), _decoder.decode(versioning.read(written, VERSION, "a segment of the retry lane")))
