"""Let batches leave their shards, as delivery.webhooks.batching decides.

Defined on the driver, run in the executors' Python workers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark import Accumulator
from pyspark.sql import DataFrame

from delivery.stages import state, tasks
from delivery.webhooks import batching, pending


def batch(routed: DataFrame, horizon_ms: int, told: Accumulator[pending.Pending], tools: tasks.Tools) -> DataFrame:
    """Return the batches that leave now."""
    return state.kept(routed, Batches(horizon_ms=horizon_ms), told, tools.begin)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """The decision of the batch lane."""

    horizon_ms: int

    def __call__(self, index: bytes | None, arrived: list[bytes], read: Callable[[int], bytes], now_ms: int) -> state.Decided:
        """As state.Decide."""
        known = batching.decoded(index)
        decided = batching.decide(known, arrived, read, now_ms=now_ms, horizon_ms=self.horizon_ms)
        written = batching.encoded(decided.index) if decided.changed else None
        return state.Decided(decided.batches, decided.append, decided.drop, written, batching.backlog_of(decided))
