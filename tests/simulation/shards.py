"""The state of the two stateful lanes, as the bytes that Spark's store would keep."""

from __future__ import annotations

from collections.abc import Iterable

from delivery.webhooks.batching import batcher
from delivery.webhooks.retries import retry_messages, shard_backlog, shard_scheduler, window
from delivery.webhooks.state import backlog

COUNT = 2
"""Shards of each lane."""
POLICY = window.ShardPolicy(max_pending=100_000, disable_after_s=120.0)
LOOK_AHEAD_MS = 500
PASS_THROUGH_S = 1.0


class BatchShard:
    """The state of one shard of the batch lane, as bytes."""

    def __init__(self) -> None:
        self.index: bytes | None = None
        self.segments: dict[int, bytes] = {}
        self.due_ms: int | None = None
        """When the first batch is due. None: nothing waits."""

    def decide(self, arrived: Iterable[bytes], at_ms: int) -> batcher.BatchingDecision:
        return batcher.decide(
            batcher.decoded(self.index),
            arrived,
            self.segments.__getitem__,
            now_ms=at_ms,
            look_ahead_ms=round(PASS_THROUGH_S * 1000),
        )

    def commit(self, decided: batcher.BatchingDecision) -> None:
        self.segments |= decided.append
        for number in decided.drop:
            del self.segments[number]
        self.index = batcher.encoded(decided.index)
        self.due_ms = min((summary.due_ms for summary in decided.index.endpoints.values()), default=None)


class Shard:
    """The state of one shard of the retry lane, as bytes."""

    def __init__(self) -> None:
        self.index: bytes | None = None
        self.segments: dict[int, bytes] = {}
        self.backlog = backlog.ShardBacklog()

    def decide(self, arrived: Iterable[bytes], at_ms: int, behind_ms: int) -> shard_scheduler.LeaseDecision:
        return shard_scheduler.decide(
            shard_scheduler.decoded(self.index),
            map(retry_messages.message, arrived),
            self.segments.__getitem__,
            POLICY,
            now_ms=at_ms,
            look_ahead_ms=LOOK_AHEAD_MS,
            behind_ms=behind_ms,
        )

    def commit(self, decided: shard_scheduler.LeaseDecision, now_ms: int) -> None:
        self.segments |= decided.append
        for number in decided.drop:
            del self.segments[number]
        self.index = shard_scheduler.encoded(decided.index)
        self.backlog = shard_backlog.of(decided, now_ms)
