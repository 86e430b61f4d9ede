"""Deliver the turns that leave, on the executors, and write what came of them.

Defined on the driver anew for each micro-batch, with the newest registry. Guarantee: at least once. A micro-batch that runs
again leaves out what its journal tells of. A turn of an earlier one, whose report is lost with its process, leaves its shard
again after a while, and what was accepted of it repeats, with the same `webhook-id`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame

from delivery.stages.checkpoint.completed_reader import Journal
from delivery.stages.tasks import shard_state, task_context
from delivery.webhooks.routing import registries


def deliver_turns(
    left: DataFrame,
    tools: task_context.Tools,
    source: registries.Source,
    parallelism: int,
    *,
    settle_s: float,
    journal: Journal,
) -> DataFrame:
    """Return the tasks that deliver what left its shard, and tell of earlier micro-batches' turns that have ended now.

    `left` has the column that `state.kept` returns, and no other.
    """
    partition = DeliverTurnsPartition(tools=tools, source=source, settle_s=settle_s, journal=journal)
    return left.coalesce(parallelism).mapInArrow(partition, task_context.NO_ROWS)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverTurnsPartition:
    """The partition function: Arrow batches of turns in."""

    tools: task_context.Tools
    source: registries.Source
    settle_s: float
    journal: Journal | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = self.tools.begin()
        known = task_context.ended_before(self.journal)
        for ended in task.worker.retry(shard_state.left(batches), self.source, self.settle_s, known):
            task.write_turns(ended)
        return task.finish()
