"""Keep lists of items in numbered segments: taken from the front, added to at the end, never rewritten because something left.

Runs in the executors. Must not import pyspark or psycopg.

A list belongs to an owner (a flow, a bucket of the wheel), who keeps the pieces of it in order. A piece names a segment and the
place in it, so segments hold the small lists of many owners. What an owner takes from the front is counted in its piece; a
segment whose items have all left is dropped. Of an owner a segment knows its home, where to look for it when segments are
merged: an endpoint, or the wheel.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import cachetools
import msgspec

from delivery.webhooks.state import chunking, compaction, versioning

VERSION = 1
MAX_SEGMENT_BYTES = 128 * 1024
"""Small, because a segment is read whole for each owner who takes something of it."""
MAX_OPEN_BYTES = 32 * 1024 * 1024
"""Of segments that have been read, so much is kept while a decision is taken: neighbours share them."""


class Item(NamedTuple):
    """What is kept, and what its owner wants to know of it without reading it."""

    data: bytes
    since_ms: int
    expires_ms: int


class Piece(msgspec.Struct, array_like=True, gc=False):
    """Some items of one owner, in order."""

    number: int
    """Of the segment; negative while it is not written."""
    place: int
    """Which of the segment's lists."""
    since_ms: int
    """The earliest of its items; stays when that one is taken."""
    expires_ms: int
    first: int = 0
    """So many items of the list have been taken."""


class Stock(msgspec.Struct, array_like=True):
    """What is known of the segments: the part of the index that the shelf keeps."""

    next_number: int = 0
    segments: dict[int, compaction.Stored] = {}


class _Segment(NamedTuple):
    """A segment that has been read."""

    size: int
    lists: list[tuple[str, list[bytes]]]
    """Each with the home of its owner."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[tuple[str, list[bytes]]])


class Shelf:
    """The segments of one shard while a decision is taken. Nothing is written before `write`."""

    def __init__(self, stock: Stock, read: Callable[[int], bytes]) -> None:
        self._stock = stock
        self._fresh: dict[int, list[bytes]] = {}
        self._fresh_bytes: dict[int, int] = {}
        self._numbers = itertools.count(-1, -1)
        self._read = read
        self._opened: cachetools.LRUCache[int, _Segment] = cachetools.LRUCache(MAX_OPEN_BYTES, lambda opened: opened.size)
        self._moved: dict[int, _Segment] = {}
        """The segments that are merged, all at once: each has the items of many."""
        self._dropped: list[int] = []

    def add(self, pieces: list[Piece], item: Item) -> None:
        """Put an item at the end of its owner's."""
        last = pieces[-1] if pieces else None
        if last is None or last.number >= 0 or self._fresh_bytes[last.number] + len(item.data) > MAX_SEGMENT_BYTES:
            pieces.append(self._laid([item]))
            return
        self._fresh[last.number].append(item.data)
        self._fresh_bytes[last.number] += len(item.data)
        last.since_ms = min(last.since_ms, item.since_ms)
        last.expires_ms = min(last.expires_ms, item.expires_ms)

    def lay(self, items: Iterable[Item]) -> list[Piece]:
        """Return pieces with these items, for the owner to put where they belong."""
        return [self._laid(chunk) for chunk in chunking.of(items, lambda item: len(item.data), MAX_SEGMENT_BYTES)]

    def items(self, piece: Piece) -> list[bytes]:
        """Return what is left of a piece."""
        kept = self._fresh[piece.number] if piece.number < 0 else self._segment(piece.number).lists[piece.place][1]
        return kept[piece.first :]

    def front(self, pieces: list[Piece]) -> Iterator[bytes]:
        """Yield an owner's items in order."""
        for piece in pieces:
            yield from self.items(piece)

    def cut(self, pieces: list[Piece], count: int) -> None:
        """Take so many items from the front of an owner's."""
        while count:
            items = len(self.items(pieces[0]))
            if count < items:
                self.shorten(pieces[0], count)
                return
            self.remove(pieces.pop(0))
            count -= items

    def shorten(self, piece: Piece, count: int) -> None:
        """Take so many items, not all, from the front of a piece."""
        self._gone(piece, self.items(piece)[:count])
        piece.first += count

    def remove(self, piece: Piece) -> None:
        """Take what is left of a piece; its owner forgets it."""
        if piece.number < 0:
            del self._fresh[piece.number], self._fresh_bytes[piece.number]
        else:
            self._gone(piece, self.items(piece))

    def write(
        self, changed: Iterable[str], owners: Callable[[str], Iterable[list[Piece]]]
    ) -> tuple[dict[int, bytes], list[int]]:
        """Return the segments to write, and those to drop. What is new is written; with it, what is due to be merged.

        New pieces are in homes that have `changed`. Those of an owner that stand side by side become one.
        """
        numbers, generation = compaction.to_merge(self._stock.segments) if self._fresh or self._dropped else ([], 0)
        self._moved = {number: self._segment(number) for number in numbers}
        homes = {*changed, *(home for moved in self._moved.values() for home, _ in moved.lists)}
        fresh = [(home, piece) for home in sorted(homes) for pieces in owners(home) for piece in self._joined(pieces)]
        return self._written(fresh, generation), self._dropped

    def _segment(self, number: int) -> _Segment:
        found = self._moved.get(number) or self._opened.get(number)
        if found is None:
            found = _decoded(self._read(number))
            if found.size <= MAX_OPEN_BYTES:
                self._opened[number] = found
        return found

    def _laid(self, items: list[Item]) -> Piece:
        number = next(self._numbers)
        self._fresh[number] = [item.data for item in items]
        self._fresh_bytes[number] = sum(len(item.data) for item in items)
        return Piece(number, 0, min(item.since_ms for item in items), min(item.expires_ms for item in items))

    def _gone(self, piece: Piece, items: list[bytes]) -> None:
        if piece.number < 0:
            return
        stored = self._stock.segments[piece.number]
        stored.live -= sum(map(len, items))
        if not stored.live:
            del self._stock.segments[piece.number]
            self._dropped.append(piece.number)

    def _joined(self, pieces: list[Piece]) -> list[Piece]:
        """Join neighbours that are new or moved, in place; return those that are to be written."""
        if not any(piece.number < 0 or piece.number in self._moved for piece in pieces):
            return []
        joined: list[Piece] = []
        fresh: list[Piece] = []
        for is_written, some in itertools.groupby(pieces, lambda piece: piece.number < 0 or piece.number in self._moved):
            run = list(some)
            if is_written:
                items = [Item(data, one.since_ms, one.expires_ms) for one in run for data in self.items(one)]
                for one in run:
                    self.remove(one)
                run = self.lay(items)
                fresh += run
            joined += run
        pieces[:] = joined
        return fresh

    def _written(self, fresh: list[tuple[str, Piece]], generation: int) -> dict[int, bytes]:
        append: dict[int, bytes] = {}
        run = self._stock.next_number
        for together in chunking.of(fresh, lambda each: self._fresh_bytes[each[1].number], MAX_SEGMENT_BYTES):
            number = self._stock.next_number
            self._stock.next_number += 1
            size = sum(self._fresh_bytes[piece.number] for _, piece in together)
            self._stock.segments[number] = compaction.Stored(run, generation, size, size)
            append[number] = versioning.marked(
                VERSION, _encoder.encode([(home, self._fresh.pop(piece.number)) for home, piece in together])
            )
            for place, (_, piece) in enumerate(together):
                piece.number, piece.place, piece.first = number, place, 0
        return append


def _decoded(written: bytes) -> _Segment:
    return _Segment(len(written), _decoder.decode(versioning.read(written, VERSION, "a segment of the retry lane")))
