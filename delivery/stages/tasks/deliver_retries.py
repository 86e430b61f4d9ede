"""Deliver the leases of the retry lane on the executors, and write their results.

A lease is a list of retry entries that a worker attempts now, or ends because they are given up or skipped. The driver creates
these task functions for each micro-batch, with the newest registry. The executors' Python workers run them. Guarantee: at least
once. A micro-batch that runs again leaves out the deliveries that its completed-work log contains. If the report of a lease is
lost with its worker process, the lease expires and its entries are leased again. Then entries that a receiver had accepted are
sent again, with the same `webhook-id`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame

from delivery.stages.kafka.completed_reader import CompletedWork
from delivery.stages.tasks import shard_state, task_context
from delivery.webhooks.routing import registries


def deliver_leases(
    leases: DataFrame,
    tools: task_context.Tools,
    source: registries.RegistrySource,
    parallelism: int,
    *,
    settle_s: float,
    work_log: CompletedWork,
) -> DataFrame:
    """Return a frame without rows, whose tasks deliver leases and write the results and reports to Kafka.

    `task_context.run` runs the tasks, at most `parallelism` of them. `leases` is the unchanged result of
    `shard_state.decide_shards`. Leases and deliveries that ended according to `work_log` are left out. After a task has started
    its last lease, it waits up to `settle_s` seconds for the attempts. Attempts that take longer continue in the worker, and a
    later task in the same worker reports their leases.
    """
    partition = DeliverLeasesPartition(tools=tools, source=source, settle_s=settle_s, work_log=work_log)
    return leases.coalesce(parallelism).mapInArrow(partition, task_context.NO_ROWS)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverLeasesPartition:
    """The function that Spark calls for a partition of leases of the retry lane.

    The function attempts or ends the entries of each lease, except entries that ended according to `work_log`. It writes to
    Kafka the results and reports of leases that end within `settle_s` seconds after the last lease was started. A later task
    writes the results and reports of the other leases. The function yields no rows.
    """

    tools: task_context.Tools
    source: registries.RegistrySource
    settle_s: float
    work_log: CompletedWork | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = self.tools.begin()
        known = task_context.completed_before(self.work_log)
        for ended in task.worker.retry(shard_state.items_of(batches), self.source, self.settle_s, known):
            task.write_leases(ended)
        return task.finish()
