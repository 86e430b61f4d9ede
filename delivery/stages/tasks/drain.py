"""Wait, when a job ends in order, until what goes on in its workers has ended and is told.

Defined on the driver, run in the executors' Python workers. Attempts go on beside micro-batches: those that a fast lane does
not wait for (delivery.webhooks.scheduling.background_attempts), and the retry lane's turns. Broken off, they would be made
again by the next job.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession

from delivery.stages.tasks import task_context


def rest(spark: SparkSession, tools: task_context.Tools, within_s: float) -> None:
    """Wait in each worker process, no longer than `within_s` together.

    Spark hands its processes out in turn, and a task has two of them at most: one that decides, and one that delivers. There
    are fewer slots: at first all are asked to begin nothing more, or some would while others are waited for.
    """
    processes = 2 * spark.sparkContext.defaultParallelism
    nothing = spark.range(0, processes, 1, processes).where("id < 0")
    for each_s in (0.0, within_s):
        task_context.run(nothing.mapInArrow(RestPartition(tools, each_s, time.time() + each_s), task_context.NO_ROWS))


@dataclass(frozen=True, slots=True)
class RestPartition:
    """The partition function: nothing in."""

    tools: task_context.Tools
    within_s: float
    until_s: float
    """Since the epoch, by the driver's clock."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        task = self.tools.begin()
        task.worker.wait_until_idle(min(self.within_s, self.until_s - time.time()))
        return task.finish()
