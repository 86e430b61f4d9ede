"""Deliver the batches that leave, on the executors, and write what came of them.

Defined on the driver anew for each micro-batch, with the newest registry. Guarantee: as delivery.stages.tasks.task_context.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame

from delivery.stages.checkpoint.completed_reader import Journal
from delivery.stages.tasks import shard_state, task_context
from delivery.webhooks.routing import registries
from delivery.webhooks.scheduling import deferral


def deliver_batches(
    left: DataFrame,
    tools: task_context.Tools,
    source: registries.Source,
    parallelism: int,
    *,
    held: deferral.SuppressedEndpoints,
    journal: Journal,
) -> DataFrame:
    """Return the tasks that deliver what left its shard. What is due to `held` goes to the retry lane.

    `left` has the column that `state.kept` returns, and no other.

    Coalesced, the shards of a task share one dispatcher, so that endpoints which do not answer are waited for at once, and not
    one shard after the other.
    """
    partition = DeliverBatchesPartition(tools=tools, source=source, held=held, journal=journal)
    return left.coalesce(parallelism).mapInArrow(partition, task_context.NO_ROWS)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverBatchesPartition:
    """The partition function: Arrow batches of what left its shard in."""

    tools: task_context.Tools
    source: registries.Source
    held: deferral.SuppressedEndpoints
    journal: Journal

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task, ended = self.tools.begin(), task_context.ended_before(self.journal)
        return task.write_all(task.worker.deliver_batches(shard_state.left(batches), self.source, self.held, ended))
