"""Deliver due batches on the executors, and write their results.

Created on the driver for each micro-batch, with the newest registry. Guarantee: as in delivery.stages.tasks.task_context.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame

from delivery.stages.checkpoint.completed_reader import CompletedWork
from delivery.stages.tasks import shard_state, task_context
from delivery.webhooks.routing import registries
from delivery.webhooks.scheduling import deferral


def deliver_batches(
    left: DataFrame,
    tools: task_context.Tools,
    source: registries.Source,
    parallelism: int,
    *,
    suppressed: deferral.SuppressedEndpoints,
    work_log: CompletedWork,
) -> DataFrame:
    """Return the tasks that deliver the due batches. Batches for `suppressed` endpoints are deferred to the retry lane.

    `left` has the column of `shard_state.decide_shards`, and no other.

    The shards are coalesced, so that those of one task share a dispatcher. It waits for unresponsive endpoints of all shards at
    the same time, not for one shard after the other.
    """
    partition = DeliverBatchesPartition(tools=tools, source=source, suppressed=suppressed, work_log=work_log)
    return left.coalesce(parallelism).mapInArrow(partition, task_context.NO_ROWS)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverBatchesPartition:
    """The partition function: Arrow batches of rows with due batches in."""

    tools: task_context.Tools
    source: registries.Source
    suppressed: deferral.SuppressedEndpoints
    work_log: CompletedWork

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task, ended = self.tools.begin(), task_context.completed_before(self.work_log)
        return task.write_all(task.worker.deliver_batches(shard_state.items_of(batches), self.source, self.suppressed, ended))
