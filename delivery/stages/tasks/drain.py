"""Wait, when a job stops gracefully, for the attempts that still run in the workers after the last micro-batch.

The driver creates DrainPartition. The executors' Python workers call it. Two kinds of attempts outlive their micro-batch:
background attempts of the fast lanes (delivery.webhooks.scheduling.background_attempts), and attempts of the retry lane's
leases. If the job ended without waiting, these requests would be aborted, and the next job would send them again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession

from delivery.stages.tasks import task_context


def drain_workers(spark: SparkSession, tools: task_context.Tools, within_s: float) -> None:
    """Wait until no worker process of the session `spark` has an attempt in flight, at most `within_s` seconds in all.

    Each task slot of Spark has at most two worker processes: one that decides on shards, and one that delivers. Spark assigns
    its processes to tasks round robin. So two tasks for each slot reach all processes. They run in two rounds:

    1. Each task asks its process to start no more attempts of leases, and ends at once.
    2. Each task waits until its process has no attempt in flight. There are more processes than slots, so the processes wait
       in turns. Without round 1, some processes would start attempts while the job waits for others.

    A session with another `realtime_source.BUFFER_SIZE` has worker processes of its own, which these tasks do not reach. Raise
    the errors of `task_context.run`.
    """
    processes = 2 * spark.sparkContext.defaultParallelism
    nothing = spark.range(0, processes, 1, processes).where("id < 0")
    for round_s in (0.0, within_s):
        task_context.run(nothing.mapInArrow(DrainPartition(tools, round_s, time.time() + round_s), task_context.NO_ROWS))


@dataclass(frozen=True, slots=True)
class DrainPartition:
    """The function that Spark calls for an empty partition: let this worker process end its attempts in flight.

    First stop the leases of the retry lane: they begin no further attempt. Then wait until the process has no attempt in
    flight, at most `within_s` seconds, and not beyond `until_s`. At the end, write the results of the leases to Kafka.
    """

    tools: task_context.Tools
    within_s: float
    """Longest wait of this task, in seconds."""
    until_s: float
    """End of the wait for all tasks, in seconds since the epoch by the driver's clock."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        task = self.tools.begin()
        task.worker.wait_until_idle(min(self.within_s, self.until_s - task.worker.now_s()))
        return task.finish()
