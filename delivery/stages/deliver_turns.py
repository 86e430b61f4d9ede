"""Deliver the turns that leave, on the executors.

Defined on the driver anew for each micro-batch, with the newest registry. Guarantee: at least once. A turn whose report is
lost, with a task that fails or a process that ends, leaves its shard again after a while, and what was accepted of it repeats,
with the same `webhook-id`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame

from delivery.stages import deliver, sink
from delivery.webhooks import routing, worker
from delivery.webhooks.results import Results


def deliver_turns(
    left: DataFrame,
    plan: worker.Plan,
    source: routing.Source,
    parallelism: int,
    observe: Callable[[Results], None],
    *,
    writing: sink.Sink,
    settle_s: float,
) -> DataFrame:
    """Return the tasks that deliver what left its shard, and tell of earlier micro-batches' turns that have ended now."""
    partition = DeliverTurnsPartition(plan=plan, source=source, observe=observe, writing=writing, settle_s=settle_s)
    return left.select("value").coalesce(parallelism).mapInArrow(partition, sink.NO_ROWS)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverTurnsPartition:
    """The partition function: Arrow batches of turns in."""

    plan: worker.Plan
    source: routing.Source
    observe: Callable[[Results], None]
    writing: sink.Sink
    settle_s: float

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        out = self.writing()
        for ended in worker.of(self.plan).retry(deliver.values(batches), self.source, self.settle_s):
            deliver.write_ended(out, ended, self.observe, self.plan.topics)
        out.finish()
        return sink.nothing()
