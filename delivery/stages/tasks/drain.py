"""Wait, when a job stops in order, until the workers have ended and reported their background work.

Created on the driver, run in the executors' Python workers. Two kinds of attempts outlive their micro-batch: background
attempts of the direct and batch lanes (delivery.webhooks.scheduling.background_attempts), and leases of the retry lane. If they
were aborted, the next job would repeat them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession

from delivery.stages.tasks import task_context


def drain_workers(spark: SparkSession, tools: task_context.Tools, within_s: float) -> None:
    """Wait in each worker process, at most `within_s` seconds in total.

    Spark assigns its processes round robin, and a task slot has at most two: one that decides, and one that delivers. There are
    more processes than slots. So a first round asks all to start nothing more; otherwise some would start attempts while this
    job waits for others.
    """
    processes = 2 * spark.sparkContext.defaultParallelism
    nothing = spark.range(0, processes, 1, processes).where("id < 0")
    for each_s in (0.0, within_s):
        task_context.run(nothing.mapInArrow(DrainPartition(tools, each_s, time.time() + each_s), task_context.NO_ROWS))


@dataclass(frozen=True, slots=True)
class DrainPartition:
    """The partition function: it gets no rows."""

    tools: task_context.Tools
    within_s: float
    until_s: float
    """Deadline, in seconds since the epoch by the driver's clock."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        task = self.tools.begin()
        task.worker.wait_until_idle(min(self.within_s, self.until_s - time.time()))
        return task.finish()
