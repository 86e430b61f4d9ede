"""What the tasks of all lanes have in common: what they are given, and how they write what came of their work.

Defined on the driver, used in the executors' Python workers. Guarantee: at least once. What can repeat is what a task had sent
and not yet written when it failed or its process was killed (docs/adr/0014, 0015); each repeat carries the same `webhook-id`.
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
from delivery.stages.checkpoint.completed_reader import Journal
from delivery.stages.kafka import sink
from delivery.stages.tasks import orphan
from delivery.webhooks.lanes import retry_lane, worker, worker_plan
from delivery.webhooks.results import topic_rows
from delivery.webhooks.results.completed_work import Key
from delivery.webhooks.results.results import Results
from delivery.webhooks.scheduling import background_attempts

STAGE_IS_OVER = "failed the maximum allowable number of times: 1"
"""What Spark says when rows between two stages are gone, by `spark.stage.maxConsecutiveAttempts`."""
NO_ROWS = T.StructType([T.StructField("nothing", T.BooleanType())])
"""What a task returns to Spark that has written its results itself. As text, the JVM would parse it in each micro-batch."""
LAST_FLUSH_S = 0.5
"""So long a task that fails waits for its last rows to be in their topics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What each task of a lane is given. Survives pickling."""

    plan: worker_plan.Plan
    observe: Callable[[Results], None]
    """Told, in the worker, of all results."""
    sink: sink.Sink
    made_s: float | None = None
    """When the driver made these tasks, in seconds since the epoch; None: they are of a plan that lives on."""
    workers: int | None = None
    """How many worker processes share what goes to a host or endpoint; None: as in the tasks before."""

    def made_now(self, workers: int) -> Tools:
        """Return these for tasks that are made now, for so many workers. Called on the driver, for each micro-batch."""
        return dataclasses.replace(self, made_s=time.time(), workers=workers)

    def begin(self) -> Task:
        """Begin a task, in its worker."""
        here = worker.shared_worker(self.plan)
        here.begin_task(self.made_s, self.workers)
        orphan.outlive(here.mark_orphaned)
        here.write_background_results_by(self.write_late)
        return Task(self, here)

    def write_late(self, results: Results, ended: list[background_attempts.BackgroundResult], revision: Revision) -> None:
        """Write what came of attempts that had gone on alone; when all of it is in its topics, tell their shards.

        Called in the worker, beside its tasks; `revision` is the newest of the registry there. Told before, a shard might
        forget what is written nowhere.
        """
        writing = self.sink()
        _write(writing, results, self.plan.topics, revision, worker.shared_worker(self.plan).now_s())
        writing.finish()
        writing.write(topic_rows.completion_rows(ended, self.plan.topics))
        writing.finish()


class Task:
    """A task as it runs. Used by one thread."""

    def __init__(self, tools: Tools, here: worker.Worker) -> None:
        self.worker = here
        self._observe, self._topics = tools.observe, tools.plan.topics
        self._writing = tools.sink()

    def write(self, results: Results) -> None:
        """Write what came of some records, and what of it goes to the retry lane."""
        self._observe(results)
        _write(self._writing, results, self._topics, self.worker.revision, self.worker.now_s())

    def write_turns(self, ended: retry_lane.LeaseResults) -> None:
        """Write what came of turns of the retry lane: their reports say what of them waits again."""
        self._observe(ended.results)
        self._writing.write(topic_rows.rows(ended.results, self._topics))
        if ended.reports:
            # First, as a shard forgets by a report what then might be written nowhere.
            self._writing.finish()
            self._writing.write(topic_rows.report_rows(ended.reports, self._topics))

    def write_all(self, made: Iterable[Results]) -> Iterator[pa.RecordBatch]:
        """Write what is made until it ends, and finish. What a task has made that fails is written before it does."""
        try:
            for results in made:
                self.write(results)
        except Exception:
            self.flush()
            raise
        return self.finish()

    def flush(self) -> None:
        """Give what is on its way a moment to be in its topic. For a task that fails."""
        self._writing.flush(LAST_FLUSH_S)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Wait until all is in its topic; return NO_ROWS.

        Also of turns that the retry lane has begun in this process and that have ended since, whatever the task is for. Spark
        hands its processes out in turn: in a quiet job one of them may get the same kind of task in every micro-batch, and a
        turn that nobody reports leaves its shard once more.
        """
        if (turns := self.worker.drain_leases()) is not None:
            self.write_turns(turns)
        for written in self.worker.written_background_results():
            self._observe(written)
        self._writing.finish()
        return iter(())


def _write(writing: sink.Writing, results: Results, topics: topic_rows.Topics, revision: Revision, now_s: float) -> None:
    writing.write(topic_rows.rows(results, topics))
    now_ms = round(now_s * 1000)
    writing.write(topic_rows.deferral_rows(results, topics, now_ms=now_ms, revision=revision))
    writing.write(topic_rows.health_hint_rows(results, topics, now_ms=now_ms))


def ended_before(journal: Journal | None) -> frozenset[Key]:
    """Return which deliveries have ended in an earlier run of this task. Called in the task."""
    context = TaskContext.get()
    return frozenset() if journal is None or context is None else journal.ended(context.attemptNumber())


class RowsLost(Exception):
    """An executor has ended, and rows with it that these tasks were to read. Some have ended by now, some may still run."""


def run(tasks: DataFrame) -> None:
    """Run tasks that write their results themselves, until all have ended; raise RowsLost."""
    try:
        tasks.write.format("noop").mode("overwrite").save()
    except Exception as failure:
        if STAGE_IS_OVER in str(failure):
            raise RowsLost from failure
        raise
