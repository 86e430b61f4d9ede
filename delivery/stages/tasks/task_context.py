"""Start a task of any lane in its worker, and write its results.

Created on the driver, used in the executors' Python workers. Guarantee: at least once. A delivery repeats if a task had sent it
and not yet written its result when the task failed or its process was killed (docs/adr/0014, 0015). Each repeat carries the
same `webhook-id`.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812  # the name that every PySpark codebase uses

from delivery.model import Revision
from delivery.stages.checkpoint.completed_reader import CompletedWork
from delivery.stages.kafka import sink
from delivery.stages.tasks import orphan
from delivery.webhooks.lanes import retry_lane, worker, worker_plan
from delivery.webhooks.results import topic_rows
from delivery.webhooks.results.completed_work import Key
from delivery.webhooks.results.results import Results
from delivery.webhooks.scheduling import background_attempts

STAGE_IS_OVER = "failed the maximum allowable number of times: 1"
"""Spark's text when rows between two stages are gone, with `spark.stage.maxConsecutiveAttempts` at 1."""
NO_ROWS = T.StructType([T.StructField("nothing", T.BooleanType())])
"""The empty result of a task that has written its results itself. As text, the JVM would parse it in each micro-batch."""
LAST_FLUSH_S = 0.5
"""Seconds that a failing task waits for Kafka to confirm its last rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The plan, observer and sink of each task of a lane. Survives pickling."""

    plan: worker_plan.Plan
    observe: Callable[[Results], None]
    """Called in the worker with all results."""
    sink: sink.Sink
    created_s: float | None = None
    """When the driver created these tasks, in seconds since the epoch; None: they belong to a plan of several micro-batches."""
    workers: int | None = None
    """Worker processes that share the limits of a host or endpoint; None: unchanged."""

    def stamped(self, workers: int) -> Tools:
        """Return the tools with the current time and number of workers. Called on the driver for each micro-batch."""
        return dataclasses.replace(self, created_s=time.time(), workers=workers)

    def begin(self) -> Task:
        """Start a task. Called in its worker."""
        here = worker.shared_worker(self.plan)
        here.begin_task(self.created_s, self.workers)
        orphan.outlive(here.mark_orphaned)
        here.write_background_results_by(self.write_background_results)
        return Task(self, here)

    def write_background_results(
        self, results: Results, ended: list[background_attempts.BackgroundResult], revision: Revision
    ) -> None:
        """Write the results of background attempts. When Kafka has confirmed them, notify the shards.

        Called in the worker, beside its tasks; `revision` is the newest one there. The order matters: a shard that is notified
        first could remove an entry whose result is never written.
        """
        writing = self.sink()
        _write(writing, results, self.plan.topics, revision, worker.shared_worker(self.plan).now_s())
        writing.finish()
        writing.write(topic_rows.completion_rows(ended, self.plan.topics))
        writing.finish()


class Task:
    """A running task. Used by one thread."""

    def __init__(self, tools: Tools, here: worker.Worker) -> None:
        self.worker = here
        self._observe, self._topics = tools.observe, tools.plan.topics
        self._writing = tools.sink()

    def write(self, results: Results) -> None:
        """Write results, and the entries that are deferred to the retry lane."""
        self._observe(results)
        _write(self._writing, results, self._topics, self.worker.revision, self.worker.now_s())

    def write_leases(self, ended: retry_lane.LeaseResults) -> None:
        """Write the results of leases; their reports list the entries that are requeued."""
        self._observe(ended.results)
        self._writing.write(topic_rows.rows(ended.results, self._topics))
        if ended.reports:
            # Results first: a report makes the shard remove entries, whose results could otherwise be lost.
            self._writing.finish()
            self._writing.write(topic_rows.report_rows(ended.reports, self._topics))

    def write_all(self, made: Iterable[Results]) -> Iterator[pa.RecordBatch]:
        """Write all results, and finish. If the task fails, flush the results that it had written."""
        try:
            for results in made:
                self.write(results)
        except Exception:
            self.flush()
            raise
        return self.finish()

    def flush(self) -> None:
        """Wait up to LAST_FLUSH_S until Kafka has confirmed the rows. For a task that fails."""
        self._writing.flush(LAST_FLUSH_S)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Wait until Kafka has confirmed all rows; return no rows.

        Also write the leases of the retry lane that have ended in this process, whatever the task is for. Spark assigns its
        processes round robin, so in a quiet job one process may get the same kind of task in every micro-batch. A lease that is
        never reported expires, and its entries are leased again.
        """
        if (leases := self.worker.drain_leases()) is not None:
            self.write_leases(leases)
        for written in self.worker.written_background_results():
            self._observe(written)
        self._writing.finish()
        return iter(())


def _write(writing: sink.Writing, results: Results, topics: topic_rows.Topics, revision: Revision, now_s: float) -> None:
    writing.write(topic_rows.rows(results, topics))
    now_ms = round(now_s * 1000)
    writing.write(topic_rows.deferral_rows(results, topics, now_ms=now_ms, revision=revision))
    writing.write(topic_rows.health_hint_rows(results, topics, now_ms=now_ms))


def completed_before(work_log: CompletedWork | None) -> frozenset[Key]:
    """Return the deliveries that ended in an earlier run of this task. Called in the task."""
    context = TaskContext.get()
    return frozenset() if work_log is None or context is None else work_log.ended(context.attemptNumber())


class RowsLost(Exception):
    """An executor ended, and rows that these tasks had to read are gone. Some tasks have ended, others may still run."""


def run(tasks: DataFrame) -> None:
    """Run tasks that write their results themselves until all have ended; raise RowsLost."""
    try:
        tasks.write.format("noop").mode("overwrite").save()
    except Exception as failure:
        if STAGE_IS_OVER in str(failure):
            raise RowsLost from failure
        raise
