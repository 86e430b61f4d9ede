"""A shard's state in memory, for the tests of batching: everything that is kept is bytes between two decisions."""

from __future__ import annotations

from collections.abc import Iterable

from delivery.webhooks.batching import batcher, segment


class Shard:
    """Take decisions one after another, as if each ran in a process of its own."""

    def __init__(self, horizon_ms: int = 0) -> None:
        self._index: bytes | None = None
        self._horizon_ms = horizon_ms
        self.segments: dict[int, bytes] = {}
        self.events_written = 0
        self.last: batcher.Decision

    @property
    def index(self) -> batcher.Index:
        return batcher.decoded(self._index)

    def step(self, lots: Iterable[segment.Lot], *, now_ms: int) -> list[segment.Batch]:
        """Decide once, each lot in a segment of its own; return what leaves."""
        return self.decide([written for lot in lots for written, _ in segment.encoded([lot])], now_ms=now_ms)

    def decide(self, arrived: Iterable[bytes], *, now_ms: int) -> list[segment.Batch]:
        self.last = batcher.decide(self.index, arrived, self.segments.__getitem__, now_ms=now_ms, horizon_ms=self._horizon_ms)
        for number in self.last.drop:
            del self.segments[number]
        assert not self.segments.keys() & self.last.append.keys()
        self.segments |= self.last.append
        self.events_written += sum(len(lot.items) for written in self.last.append.values() for lot in segment.decoded(written))
        self._index = batcher.encoded(self.last.index)
        assert self.index.segments.keys() == self.segments.keys()
        return [segment.batch(written) for written in self.last.batches]

    def bytes_kept(self) -> int:
        return sum(map(len, self.segments.values()))

    def is_empty(self) -> bool:
        return not (self.segments or self.index.endpoints or self.index.segments)
