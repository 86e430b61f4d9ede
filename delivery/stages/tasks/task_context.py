"""Start a task of any lane in its worker, and write the task's results to Kafka.

The driver creates Tools, and calls `run`. The executors' Python workers use the rest. Guarantee: at least once. A delivery
repeats if a task had sent the request, and failed or was killed before it wrote the result (docs/adr/0014, 0015). Each repeat
carries the same `webhook-id`, except a batch that gets other events.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
from pyspark import RDD, SparkContext, TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812  # the name that every PySpark codebase uses

from delivery.registry_model import Revision
from delivery.stages import process_state
from delivery.stages.kafka import event_writer, sink
from delivery.stages.kafka.completed_reader import CompletedWork
from delivery.stages.tasks import orphan
from delivery.webhooks.lanes import retry_lane, worker, worker_plan
from delivery.webhooks.results import topic_rows
from delivery.webhooks.results.completed_work import Key
from delivery.webhooks.results.task_results import Results
from delivery.webhooks.scheduling import background_attempts

STAGE_IS_OVER = "failed the maximum allowable number of times: 1"
"""Part of Spark's error message when shuffled rows are gone with an executor. The number in the message is the value of
`spark.stage.maxConsecutiveAttempts` in `session.ALWAYS`."""
NO_ROWS = T.StructType([T.StructField("nothing", T.BooleanType())])
"""Schema of a task's rows for Spark: a task returns none, because it writes its results to Kafka itself. If the schema were a
text, the JVM would parse it in each micro-batch."""
FRAME_VARIABLES = {"SPARK_SIMPLIFIED_TRACEBACK": "1"}
"""Environment variables that Spark sets for the tasks of frames, but not for tasks that decide on shards. Two tasks can share a
worker process only if their environment variables are the same."""
LAST_FLUSH_S = 1.0
"""Seconds that a failing task waits for Kafka to confirm its last rows."""


def shared_worker(plan: worker_plan.Plan) -> worker.Worker:
    """Return this process's worker for `plan`, created on first use."""
    return process_state.WORKERS.get(lambda: worker.Worker(plan), plan)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The values that every task of a lane needs. They travel from the driver to the workers, pickled."""

    plan: worker_plan.Plan
    """Settings of the worker process: limits, timeouts, topics."""
    observe: Callable[[Results], None]
    """Counts and logs results. Called in the worker with each set of results that a task writes."""
    sink: sink.Sink
    """Creates the task's writer to Kafka."""
    write_events: event_writer.WriteEvents | None = None
    """Writes the events of batch records to their topics. None: the lane takes no batch records apart."""
    created_s: float | None = None
    """When the driver created these tasks, in seconds since the epoch; None: the tasks serve several micro-batches."""
    workers: int | None = None
    """Worker processes among which the limits of a host or endpoint are divided; None: the worker keeps the last number."""

    def stamped(self, workers: int) -> Tools:
        """Return the tools with the current time and number of workers. Called on the driver for each micro-batch."""
        return dataclasses.replace(self, created_s=time.time(), workers=workers)

    def begin(self) -> Task:
        """Start a task in this worker process, and return it. Called by the task itself, before it reads its input."""
        process = shared_worker(self.plan)
        process.begin_task(self.created_s, self.workers)
        orphan.outlive(process.mark_orphaned)
        process.write_background_results_by(self.write_background_results)
        return Task(self, process)

    def write_background_results(
        self, results: Results, ended: list[background_attempts.BackgroundResult], revision: Revision
    ) -> None:
        """Write the results of background attempts, and then notify the retry lane's shards that these attempts have ended.

        Called in the worker, on a thread beside its tasks. `revision` is the revision of the worker's newest registry. The
        shards are notified only after Kafka has confirmed the results. In the other order a shard could remove an entry whose
        result is never written. Raise KafkaUnavailable if a row could not be written.
        """
        writing = self.sink()
        _write(writing, results, self.plan.topics, revision, shared_worker(self.plan).now_s())
        writing.finish()
        writing.write(topic_rows.completion_rows(ended, self.plan.topics))
        writing.finish()


class Task:
    """A running task: its worker process, and its writer to Kafka. Used by one thread at a time."""

    def __init__(self, tools: Tools, process: worker.Worker) -> None:
        self.worker = process
        self._observe, self._topics, self._write_events = tools.observe, tools.plan.topics, tools.write_events
        self._writing = tools.sink()

    def write(self, results: Results) -> None:
        """Count and log results, and enqueue their rows for all topics of results. Wait while the producer's queue is full.

        Write the events of batch records too, and wait until Kafka has confirmed or refused them. If Kafka refuses an event for
        good, its batch record becomes a rejection. Raise KafkaUnavailable if an event could not be written now, if a row cannot
        be enqueued, or if an earlier row of the task could not be written.
        """
        batches, results.batch_records = results.batch_records, []
        self._write(results)
        if batches:
            assert self._write_events is not None, "set for each lane that keeps batch records"  # noqa: S101
            self._write(event_writer.take_apart(batches, self._write_events))

    def _write(self, results: Results) -> None:
        self._observe(results)
        _write(self._writing, results, self._topics, self.worker.revision, self.worker.now_s())

    def write_leases(self, ended: retry_lane.LeaseResults) -> None:
        """Count, log and write the results of leases. When Kafka has confirmed them, enqueue the reports to the shards.

        By a report, a shard removes or requeues the entries of a lease.

        Raise KafkaUnavailable if a row could not be written.
        """
        self._observe(ended.results)
        self._writing.write(topic_rows.rows(ended.results, self._topics, now_ms=round(self.worker.now_s() * 1000)))
        if ended.reports:
            # Results first: a report makes the shard remove entries, whose results could otherwise be lost.
            self._writing.finish()
            self._writing.write(topic_rows.report_rows(ended.reports, self._topics))

    def write_all(self, all_results: Iterable[Results]) -> Iterator[pa.RecordBatch]:
        """Write all results, and finish the task; return no rows.

        If iterating `all_results` or a write raises an error, wait up to LAST_FLUSH_S until Kafka has confirmed the enqueued
        rows. Then raise the error.
        """
        try:
            for results in all_results:
                self.write(results)
        except Exception:
            self.flush()
            raise
        return self.finish()

    def flush(self) -> None:
        """Wait up to LAST_FLUSH_S until Kafka has confirmed the enqueued rows. For a task that fails."""
        self._writing.flush(LAST_FLUSH_S)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Write the new results of leases, and wait until Kafka has confirmed all rows of the task; return no rows.

        Also count and log the results of background attempts that a thread has written since the last call in this process.

        Raise KafkaUnavailable if a row could not be written. A task of any lane also writes the results of leases of the
        retry lane from its process. Spark assigns its processes round robin, so in a quiet job one process may get no further
        task of the retry lane. A lease that is never reported expires, and its entries are leased again.
        """
        if (leases := self.worker.drain_leases()) is not None:
            self.write_leases(leases)
        for written in self.worker.written_background_results():
            self._observe(written)
        self._writing.finish()
        return iter(())


def _write(writing: sink.Writing, results: Results, topics: topic_rows.Topics, revision: Revision, now_s: float) -> None:
    now_ms = round(now_s * 1000)
    writing.write(topic_rows.rows(results, topics, now_ms=now_ms))
    writing.write(topic_rows.deferral_rows(results, topics, now_ms=now_ms, revision=revision))
    writing.write(topic_rows.health_hint_rows(results, topics, now_ms=now_ms))


def completed_before(work_log: CompletedWork | None) -> frozenset[Key]:
    """Return the keys of deliveries that must not be repeated: they ended in an earlier run of this task or its micro-batch.

    In the retry lane, return the keys of leases too. Called in the task. Reads Kafka if Spark retries the task. `work_log`
    None: the micro-batch has no log, and the result is empty.
    """
    context = TaskContext.get()
    return frozenset() if work_log is None or context is None else work_log.ended(context.attemptNumber())


class RowsLost(Exception):
    """An executor ended, and shuffled rows that tasks had to read are gone. Some tasks have ended, others may still run."""


class _FrameContext:
    """Spark's context, with the environment variables of a frame's tasks. PySpark reads them from the context of an RDD."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self.environment = context.environment | FRAME_VARIABLES

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


@dataclass(frozen=True, slots=True)
class _OfNumber:
    """The function that Spark calls in each task of `numbered`, with the task's number and an empty iterable."""

    function: Callable[[int], Iterator[Any]]

    def __call__(self, number: int, nothing: Iterable[Any]) -> Iterator[Any]:
        for _ in nothing:  # to its end; otherwise Spark ends the worker process after the task
            pass
        return self.function(number)


def numbered(context: SparkContext, function: Callable[[int], Iterator[Any]], tasks: int) -> RDD[Any]:
    """Return an RDD with this number of tasks. Each task calls `function` with its own number, from 0 on.

    For each frame Spark makes a plan, and for an RDD none (docs/adr/0053). The tasks share the worker processes of the tasks of
    frames.
    """
    # `SparkContext.parallelize` would send the elements, of which there are none, through a socket.
    nothing = context._jsc.parallelize(context._jvm.java.util.ArrayList(), tasks)  # type: ignore[union-attr]  # noqa: SLF001
    return RDD(nothing, cast("SparkContext", _FrameContext(context))).mapPartitionsWithIndex(_OfNumber(function))


def run(tasks: DataFrame | RDD[Any]) -> None:
    """Run the tasks of a DataFrame or RDD, and wait until all have ended. The tasks return no rows. Called on the driver.

    Raise RowsLost if an executor was lost together with shuffled rows that the tasks had to read. Raise Spark's error if a task
    failed. After either error, other tasks may still run.
    """
    try:
        if isinstance(tasks, RDD):
            tasks._jrdd.count()  # noqa: SLF001  # PySpark's own methods would fetch the rows through a socket
        else:
            tasks.write.format("noop").mode("overwrite").save()
    except Exception as failure:
        if STAGE_IS_OVER in str(failure):
            raise RowsLost from failure
        raise
