"""A shard of the batch lane in memory. Between two decisions the shard's whole state is bytes."""

from __future__ import annotations

from collections.abc import Iterable

from delivery.webhooks.batching import batcher, segment


class Shard:
    """A shard that decides as if each decision ran in a process of its own."""

    def __init__(self, look_ahead_ms: int = 0, bounds: batcher.BatchingBounds = batcher.BOUNDS) -> None:
        self._index: bytes | None = None
        self._look_ahead_ms = look_ahead_ms
        self.bounds = bounds
        self.segments: dict[int, bytes] = {}
        self.events_written = 0
        self.last: batcher.BatchingDecision

    @property
    def index(self) -> batcher.BatchIndex:
        return batcher.decoded(self._index)

    def step(self, pending: Iterable[segment.PendingBatch], *, now_ms: int) -> list[segment.Batch]:
        """Decide once, with each pending batch in a segment of its own. Return the batches that are sent."""
        return self.decide([written for batch in pending for written, _ in segment.encoded([batch])], now_ms=now_ms)

    def decide(self, arrived: Iterable[bytes], *, now_ms: int) -> list[segment.Batch]:
        self.last = batcher.decide(
            self.index,
            arrived,
            self.segments.__getitem__,
            now_ms=now_ms,
            look_ahead_ms=self._look_ahead_ms,
            bounds=self.bounds,
        )
        for number in self.last.drop:
            del self.segments[number]
        assert not self.segments.keys() & self.last.append.keys()
        self.segments |= self.last.append
        self.events_written += sum(
            len(pending_batch.items) for written in self.last.append.values() for pending_batch in segment.decoded(written)
        )
        self._index = batcher.encoded(self.last.index)
        assert self.index.segments.keys() == self.segments.keys()
        return [segment.decoded_batch(written) for written in self.last.batches]

    def bytes_kept(self) -> int:
        return sum(map(len, self.segments.values()))

    def is_empty(self) -> bool:
        return not (self.segments or self.index.endpoints or self.index.segments)
