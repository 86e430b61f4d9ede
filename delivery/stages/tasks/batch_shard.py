"""Take due batches from the shards of the batch lane, as delivery.webhooks.batching.batcher decides.

The driver creates these task functions. The executors' Python workers run them. A shard is one key of Spark's state. It holds
the pending batches of some endpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark import Accumulator
from pyspark.sql import DataFrame

from delivery.stages.tasks import shard_state, task_context
from delivery.webhooks.batching import batcher
from delivery.webhooks.state import backlog


def batch(
    routed: DataFrame, look_ahead_ms: int, pending: Accumulator[backlog.ShardBacklog], tools: task_context.Tools
) -> DataFrame:
    """Return the batches that are due, in rows that `shard_state.items_of` reads.

    `routed` is the result of `collect_segments.route`. A batch may leave up to `look_ahead_ms` before its due time. The tasks
    add to `pending` the backlog of each shard: the events that still wait.
    """
    return shard_state.decide_shards(routed, BatchDecision(look_ahead_ms=look_ahead_ms), pending, tools.begin)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDecision:
    """The decision function of the batch lane. `shard_state.Shard` calls it for each shard in each micro-batch."""

    look_ahead_ms: int
    """Milliseconds by which a batch may leave before its due time."""

    def __call__(
        self, index: bytes | None, arrived: list[shard_state.Arrived], read: Callable[[int], bytes], now_ms: int
    ) -> shard_state.Decided:
        """Decide which batches of one shard leave now, and which segments the shard writes and removes.

        `shard_state.Decide` describes the parameters and the errors.
        """
        known = batcher.decoded(index)
        segments = (each.value for each in arrived)
        decided = batcher.decide(known, segments, read, now_ms=now_ms, look_ahead_ms=self.look_ahead_ms)
        written = batcher.encoded(decided.index) if decided.changed else None
        return shard_state.Decided(decided.batches, decided.append, decided.drop, written, batcher.backlog_of(decided))
