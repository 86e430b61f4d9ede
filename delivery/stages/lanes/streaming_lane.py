"""Run one lane as a streaming query, and end it without leaving work half done.

Runs on the driver. Guarantee: a micro-batch is committed after everything that it caused was written, and never before.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from pyspark.sql import DataFrame
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from delivery import errors
from delivery.config import settings
from delivery.observability import health, metrics
from delivery.stages.checkpoint import disk_space, recovery
from delivery.stages.kafka import outage
from delivery.stages.lanes import session

log = logging.getLogger(__name__)

POLL_S = 0.1
ASK_S = 3.0
"""How often to ask whether Kafka is back, and the wait before it is asked first: tasks of a job that has failed may go on for
`spark.python.task.killTimeout`, 2 s."""
MOST_ABSENCES = 3
"""So often in a row a lane starts again for a Kafka that answers, and of which the query cannot tell how far its topics go. And
so often for a plan that took too long."""
_NO_PLAN = re.compile(r"(\[STREAM_FAILED\].* terminated with exception: )?Python worker failed to connect back")
"""Spark has a plan with state looked at by a Python process of the driver's machine, and waits 10 s for that to start. What a
task says of its own worker begins with the job that was aborted."""
REASON = "Reason: "
PY4J_LOG = "py4j.clientserver"
"""The log of what the JVM asks of Python, micro-batches among them."""
_SAYS_NOTHING = re.compile(r"\s*(at |Suppressed: |\.\.\. \d+ (more|common frames)|(SQLSTATE: \w+\s*)+$)")
Registry = TypeVar("Registry")


class HandedBack(Exception):
    """Not an error: a micro-batch is handed back to Spark, and is to run again."""


class StartAgain(HandedBack):
    """How `handle` hands back a micro-batch, to have the query planned anew.

    Nothing of it was done, or `planned` finds out what was.
    """


class _KafkaAway(StartAgain):
    """The query has ended because Kafka did not answer for too long."""


class _StopRequested(HandedBack):
    """The next start handles it."""


def _quieten_py4j() -> None:
    logging.getLogger(PY4J_LOG).addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    """Tell whether py4j logs an error. It logs every exception that passes through it, by a traceback."""
    return not (record.exc_info and isinstance(record.exc_info[1], HandedBack))


class Lane(Generic[Registry]):
    """A streaming query whose micro-batches are handled by a function, and which can be stopped between two of them.

    `hold` gives what a micro-batch is handled with, and may wait for it; None says that the job is to stop. `began` is told the
    number of each before it is handled. `is_woken` says that a micro-batch comes at the start whether there are records or not:
    the lane is ready when that is committed, and the seconds that the first of a process takes are nobody's waiting.
    `is_kafka_back` is asked, where the query ended because Kafka was away, until it says so.
    """

    def __init__(
        self,
        name: str,
        *,
        hold: Callable[[], Registry | None],
        handle: Callable[[DataFrame, Registry], None],
        stop: threading.Event,
        watch: health.Watch,
        is_kafka_back: Callable[[], bool],
        began: Callable[[int], None] = lambda _: None,
        is_woken: bool = False,
    ) -> None:
        self._name = name
        self._hold = hold
        self._handle = handle
        self._stop = stop
        self._watched = watch
        self._is_kafka_back = is_kafka_back
        self._began = began
        self._is_woken = is_woken
        self._handed_back: type[Exception] | None = None
        self._last_begun = self._handled = -1
        self._absences = 0
        """Of Kafka, or of a plan, since the query has told of anything."""
        self._begins = threading.Event()

    def run(self, planned: Callable[[], DataFrame | None], config: settings.Spark, interval_s: float, *, once: bool) -> None:
        """Run until `stop` is set, or with `once` until everything that is in Kafka now has been handled.

        `planned` gives the streaming plan, and is asked again when `handle` raises StartAgain, and when Kafka is back after an
        absence that has ended the query. None: the job is to stop.
        """
        _quieten_py4j()
        while (rows := planned()) is not None:
            self._run_query(rows, config, interval_s, once=once)
            handed_back, self._handed_back = self._handed_back, None
            if handed_back not in {StartAgain, _KafkaAway} or self._stop.is_set():
                return
            if handed_back is _KafkaAway and not self._await_kafka():
                return
            log.info("lane %s is planned anew", self._name)

    def _await_kafka(self) -> bool:
        """Wait until Kafka answers; return False when the job is to stop."""
        while not self._stop.wait(ASK_S):
            if self._is_kafka_back():
                return True
        return False

    def _run_query(self, rows: DataFrame, config: settings.Spark, interval_s: float, *, once: bool) -> None:
        checkpoint = f"{config.checkpoint.rstrip('/')}/{self._name}"
        self._last_begun = self._handled = -1  # of this query
        recovery.require_whole(rows.sparkSession, checkpoint)
        writer = (
            rows.writeStream.queryName(self._name).option("checkpointLocation", checkpoint).foreachBatch(self._handle_batch)
        )
        if once:
            query = writer.trigger(availableNow=True).start()
        else:
            query = writer.trigger(processingTime=f"{interval_s} seconds").start()
        if not self._is_woken:
            self._watched.entered(health.Phase.RUNNING)
        try:
            self._watch(query)
            self._require_well(query, lambda: disk_space.folders(rows.sparkSession, config.checkpoint))
        finally:
            query.stop()
            rows.sparkSession.sparkContext.setLogLevel(session.LOG_LEVEL)

    def _handle_batch(self, batch: DataFrame, batch_id: int) -> None:
        before = self._last_begun
        self._begins.set()  # Spark has reported the one before by now
        try:
            registry = self._held()
            self._last_begun = batch_id
            self._began(batch_id)
            self._handle(batch, registry)
            self._handled = batch_id
        except HandedBack as handed_back:
            # Returning would commit a batch that was not handled, and its events would be lost. Raising ends the query with
            # the batch uncommitted, to be run again at the next start; that is no error, so Spark is not to report one.
            self._last_begun = before
            self._handed_back = type(handed_back)
            batch.sparkSession.sparkContext.setLogLevel("OFF")
            raise

    def _held(self) -> Registry:
        registry = None if self._stop.is_set() else self._hold()
        if registry is None:
            raise _StopRequested
        return registry

    def _watch(self, query: StreamingQuery) -> None:
        newest, reported = None, -1
        while query.isActive and not (self._stop.is_set() and self._is_at_rest(query)):
            self._begins.wait(POLL_S)  # not awaitTermination: it raises what _handle_batch raised on purpose
            self._begins.clear()
            # Asked for when there is one: the JVM writes the offsets of hundreds of topics for each.
            if newest is not None and _committed(newest) >= self._handled:
                continue
            if (last := query.lastProgress) is None or last == newest:
                continue
            newest, self._absences = last, 0
            self._watched.entered(health.Phase.RUNNING)
            for progress in [last] if last["batchId"] == reported + 1 else query.recentProgress:
                if progress["batchId"] > reported and progress["numInputRows"]:
                    reported = progress["batchId"]
                    _report(self._name, progress)
            for state in newest["stateOperators"]:
                metrics.STATE_ROWS.labels(self._name).set(state["numRowsTotal"])
                metrics.STATE_BYTES.labels(self._name).set(state["memoryUsedBytes"])
            self._watched.reached(positions(newest))

    def _require_well(self, query: StreamingQuery, written: Callable[[], Iterable[disk_space.Folder]]) -> None:
        """Raise LaneFailed where the query has ended by itself, and not because Kafka was away.

        `written` are the folders that it writes.
        """
        failure = query.exception()
        if failure is None or self._handed_back is not None:
            return
        text = str(failure)
        if outage.is_meant(text) and self._absences < MOST_ABSENCES:
            self._absences += 1
            self._handed_back = _KafkaAway
            log.warning("lane %s waits for Kafka: %s", self._name, cause_of(text))
            return
        if _NO_PLAN.match(text) and self._absences < MOST_ABSENCES:
            self._absences += 1
            self._handed_back = StartAgain
            log.warning("lane %s could not be planned: no Python process has started within 10 s on this machine", self._name)
            return
        self._watched.entered(health.Phase.ENDED)
        space = disk_space.told(written()) if disk_space.is_meant(text) else ""
        raise errors.LaneFailed(
            f"lane {self._name} ended: {cause_of(text) or type(failure).__name__}{space}. "
            "What was committed is kept: mend the cause, and start again"
        ) from failure

    def _is_at_rest(self, query: StreamingQuery) -> bool:
        """Tell whether the last batch that began is committed: progress is reported after the commit."""
        progress = query.lastProgress
        return self._last_begun <= (-1 if progress is None else _committed(progress))


def _committed(progress: StreamingQueryProgress) -> int:
    """Return the newest micro-batch that was committed by then. Where there was nothing to do, Spark names the one to come."""
    return int(progress["batchId"]) - ("addBatch" not in progress["durationMs"])


def cause_of(failure: str) -> str:
    """Return the line of a failed query's text that says why: the last that is neither of a JVM's stack nor a bare code.

    Spark's source for Kafka says after "Reason:" which partition it is, and then what it may all be.
    """
    told = failure.partition("=== Streaming Query ===")[0].splitlines()
    lines = [line.strip() for line in told if line.strip() and not _SAYS_NOTHING.match(line)]
    named = [line.removeprefix(REASON) for line in lines if line.startswith(REASON)]
    return (named or lines or [""])[-1]


def positions(progress: StreamingQueryProgress) -> health.Positions:
    """Return up to where the lane has committed."""
    ends = (json.loads(source["endOffset"]) or {} for source in progress["sources"])
    return {topic: {int(number): at for number, at in offsets.items()} for end in ends for topic, offsets in end.items()}


def _report(lane: str, progress: StreamingQueryProgress) -> None:
    metrics.RECORDS.labels(lane).inc(progress["numInputRows"])
    metrics.MICRO_BATCH_SECONDS.labels(lane).observe(progress["durationMs"].get("triggerExecution", 0) / 1000)
    log_commit(lane, progress)


def log_commit(lane: str, progress: StreamingQueryProgress) -> None:
    """Log a micro-batch, or a batch of the real-time lane."""
    duration_ms = progress["durationMs"].get("triggerExecution", 0)
    log.info(
        "micro-batch committed",
        extra={"lane": lane, "batch": progress["batchId"], "records": progress["numInputRows"], "duration_ms": duration_ms},
    )
    log.debug("lane %s: %s", lane, progress["durationMs"])
