"""Deliver due batches on the executors, and write their results.

The driver creates these task functions for each micro-batch, with the newest registry. The executors' Python workers run them.
Guarantee: at least once. A delivery repeats, with the same `webhook-id`, if a task ended between request and written result.
After a restart of the lane, a batch may get other events, and then has another `webhook-id`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame

from delivery.stages.kafka.completed_reader import CompletedWork
from delivery.stages.tasks import shard_state, task_context
from delivery.webhooks.routing import registries
from delivery.webhooks.scheduling.unhealthy import Unhealthy


def deliver_batches(
    batches: DataFrame,
    tools: task_context.Tools,
    source: registries.RegistrySource,
    parallelism: int,
    *,
    unhealthy: Unhealthy,
    work_log: CompletedWork,
) -> DataFrame:
    """Return a frame without rows, whose tasks deliver due batches and write the results to Kafka.

    `task_context.run` runs the tasks. `batches` is the unchanged result of `shard_state.decide_shards`. Batches for suppressed
    endpoints go to the retry lane. Events whose deliveries ended according to `work_log` are left out.

    Each of the `parallelism` tasks gets the batches of several shards, and has one dispatcher, which sends the requests. The
    dispatcher waits for unresponsive endpoints of all these shards at the same time, not for one shard after the other.
    """
    partition = DeliverBatchesPartition(tools=tools, source=source, unhealthy=unhealthy, work_log=work_log)
    return batches.coalesce(parallelism).mapInArrow(partition, task_context.NO_ROWS)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverBatchesPartition:
    """The function that Spark calls for a partition of due batches: deliver them, write the results, yield no rows."""

    tools: task_context.Tools
    source: registries.RegistrySource
    unhealthy: Unhealthy
    work_log: CompletedWork

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task, ended = self.tools.begin(), task_context.completed_before(self.work_log)
        return task.write_all(task.worker.deliver_batches(shard_state.items_of(batches), self.source, self.unhealthy, ended))
