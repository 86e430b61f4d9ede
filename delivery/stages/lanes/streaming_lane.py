"""Run one lane as a streaming query, restart the query when needed, and stop the query between two micro-batches.

Runs on the driver. Guarantee: a micro-batch is committed after all of its results were written, never before.
"""

from __future__ import annotations

import enum
import json
import logging
import math
import re
import threading
import time
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from delivery import errors
from delivery.config import settings
from delivery.observability import health, metrics
from delivery.stages import disk_space
from delivery.stages.checkpoint import paused_topics, recovery
from delivery.stages.kafka import kafka_outage
from delivery.stages.lanes import session

log = logging.getLogger(__name__)

POLL_S = 0.1
"""Seconds between two checks of the query's progress."""
ASK_S = 3.0
"""Seconds between two requests to an absent Kafka, and before the first one. The first wait covers tasks of a failed Spark job,
which may run for `spark.python.task.killTimeout`, 2 s."""
MOST_ABSENCES = 3
"""Consecutive restarts of a query without progress, after which the lane fails at the next outage of Kafka. After an outage a
query restarts when Kafka answers again."""
MOST_FAILED_PLANS = 10
"""Consecutive restarts of a query without progress, after which the lane fails if planning times out again. Many, because the
end of the job would cost more CPU than a further restart."""
_NO_PLAN = re.compile(r"(\[STREAM_FAILED\].* terminated with exception: )?Python worker failed to connect back")
"""Error of a query that could not be planned. Spark checks a plan with state in a Python process on the driver's machine, and
waits 10 s for its start. The same error of a task's worker does not match, because its text starts with the aborted job."""
WAITS_FOR_KAFKA = (
    "lane %s waits for Kafka (%s). Nothing is lost, and the lane restarts by itself when Kafka answers: check the brokers"
)
"""Log message when a query ended because Kafka did not answer. Its values are the lane and the cause."""
WAITS_FOR_SCHEMAS = (
    "lane %s waits for the schema registry, which does not give a schema of its records. The records wait in Kafka, and the "
    "lane continues by itself when the schema registry answers: check that server, and schema_registry.url, username and "
    "password"
)
"""Log message when partitions of the real-time lane wait for a schema, with `once`. Its value is the lane."""
REASON = "Reason: "
"""Prefix of the line in which Spark's Kafka source names the affected partition."""
PY4J_LOG = "py4j.clientserver"
"""Logger of the calls from the JVM to Python, such as the handling of micro-batches."""
_SAYS_NOTHING = re.compile(r"\s*(at |Suppressed: |\.\.\. \d+ (more|common frames)|(SQLSTATE: \w+\s*)+$)")
_NAMES_NO_CAUSE = re.compile(r"Failed to (create new|construct) (KafkaAdminClient|kafka consumer)$")
"""Message of Kafka's Java client when it could not be created. Its causes say why, such as a keystore that is no PEM."""
Registry = TypeVar("Registry")


class Result(enum.Enum):
    """The result of a micro-batch, and of a query that has ended. All but COMMITTED also end the query."""

    COMMITTED = enum.auto()
    """All results are written, and Spark commits the micro-batch. With `once`, the query ends after its last micro-batch."""
    REPLAN = enum.auto()
    """The query restarts with a new plan. A micro-batch that is not committed runs again, without deliveries that had ended."""
    STOP = enum.auto()
    """The job was asked to stop. The micro-batch is not committed, and runs when the job starts again."""
    KAFKA_AWAY = enum.auto()
    """Kafka did not answer for too long. The query restarts when Kafka answers."""


class Uncommitted(Exception):
    """Raised in the function of `foreachBatch`, so that Spark does not commit the micro-batch. Not an error.

    The micro-batch runs again.
    """


def _quieten_py4j() -> None:
    logging.getLogger(PY4J_LOG).addFilter(_is_error)


def _is_error(record: logging.LogRecord) -> bool:
    """Return False for a log record of the exception Uncommitted, which is no error.

    py4j logs every exception that passes through it, with a traceback.
    """
    return not (record.exc_info and isinstance(record.exc_info[1], Uncommitted))


class StreamingLane(Generic[Registry]):
    """Run a lane as a streaming query that passes each micro-batch to `handle`. Restart the query when needed.

    - `acquire` returns the registry for a micro-batch, and may wait for it; None: the job is asked to stop.
    - `on_begin` is called with the number of each micro-batch before `handle`.
    - `is_kafka_back` is called every `ask_s` seconds after a query ended because Kafka did not answer. The query restarts when
      `is_kafka_back` returns True.
    - `is_woken` is True if a wake-up record in Kafka causes a micro-batch at the start, even without events. The lane is then
      ready once this micro-batch is committed, so no event waits for the slow first micro-batch of a process. False: the lane
      is ready once its query has started.
    - `paused` has the topics that wait for the schema registry. When these topics change, the query restarts with a new plan.
      None: the lane pauses no topic.
    - `stalled_after_s`: seconds after a stop request until the lane interrupts a micro-batch that still runs.
    - `records_of` returns the number of records of a committed micro-batch, by its number. None: Spark counts the records,
      because Spark reads them.
    """

    def __init__(
        self,
        name: str,
        *,
        acquire: Callable[[], Registry | None],
        handle: Callable[[DataFrame, Registry], Result],
        stop: threading.Event,
        watch: health.Watch,
        is_kafka_back: Callable[[], bool],
        on_begin: Callable[[int], None] = lambda _: None,
        is_woken: bool = False,
        paused: paused_topics.PausedTopics | None = None,
        stalled_after_s: float = math.inf,
        records_of: Callable[[int], int] | None = None,
        ask_s: float = ASK_S,
    ) -> None:
        self._name = name
        self._acquire = acquire
        self._handle = handle
        self._stop = stop
        self._watched = watch
        self._is_kafka_back = is_kafka_back
        self._on_begin = on_begin
        self._is_woken = is_woken
        self._paused = paused
        self._stalled_after_s = stalled_after_s
        self._records_of = records_of
        self._ask_s = ask_s
        self._result = Result.COMMITTED
        """The result of the last micro-batch."""
        self._last_begun = self._handled = -1
        self._absences = self._failed_plans = 0
        """Restarts for Kafka, and for planning, since the query's last progress."""
        self._begins = threading.Event()

    def run(
        self, planned: Callable[[], DataFrame | None], config: settings.SparkSettings, interval_s: float, *, once: bool
    ) -> None:
        """Run queries until `stop` is set, or with `once` until all records that are in Kafka now are handled.

        `planned` returns the streaming plan of a query. It is called for the first query and for each restart. None: the job is
        asked to stop. `interval_s` is the interval of Spark's trigger, and has no effect with `once`. Raise LaneFailed if the
        checkpoint is damaged, or if a query ended and a restart would not help. Also raise it if a micro-batch was interrupted
        at a stop.
        """
        _quieten_py4j()
        try:
            self._run_queries(planned, config, interval_s, once=once)
        finally:
            if self._paused is not None:
                self._paused.close()

    def _run_queries(
        self, planned: Callable[[], DataFrame | None], config: settings.SparkSettings, interval_s: float, *, once: bool
    ) -> None:
        while (rows := planned()) is not None:
            result = self._run_query(rows, config, interval_s, once=once)
            if result is Result.STOP or self._stop.is_set():
                return
            if result is Result.COMMITTED and not (self._paused is not None and self._paused.await_registry()):
                return
            if result is Result.KAFKA_AWAY and not self._await_kafka():
                return
            log.info("lane %s restarts with a new plan", self._name)

    def _await_kafka(self) -> bool:
        """Wait until Kafka answers; return False when the job is asked to stop."""
        while not self._stop.wait(self._ask_s):
            if self._is_kafka_back():
                return True
        return False

    def _run_query(self, rows: DataFrame, config: settings.SparkSettings, interval_s: float, *, once: bool) -> Result:
        checkpoint = f"{config.checkpoint.rstrip('/')}/{self._name}"
        self._last_begun = self._handled = -1  # in this query
        self._result = Result.COMMITTED
        recovery.require_whole(rows.sparkSession, checkpoint)
        writer = (
            rows.writeStream.queryName(self._name).option("checkpointLocation", checkpoint).foreachBatch(self._handle_batch)
        )
        if once:
            query = writer.trigger(availableNow=True).start()
        else:
            query = writer.trigger(processingTime=f"{interval_s} seconds").start()
        self._watched.awaits_report = True
        if not self._is_woken:
            self._watched.enter(health.QueryPhase.RUNNING)
        try:
            self._watch(query)
            return self._result_of(query, lambda: disk_space.folders(rows.sparkSession, config.checkpoint))
        finally:
            self._watched.awaits_report = False
            end(self._name, query)
            rows.sparkSession.sparkContext.setLogLevel(session.LOG_LEVEL)

    def _handle_batch(self, batch: DataFrame, batch_id: int) -> None:
        before = self._last_begun
        self._begins.set()  # Spark has reported the previous micro-batch by now
        self._last_begun = batch_id  # before anything that takes time: until it is committed, `_watch` does not stop the query
        registry = None if self._stop.is_set() else self._acquire()
        if registry is None or self._stop.is_set():
            self._result = Result.STOP
        else:
            self._on_begin(batch_id)
            self._result = self._handle(batch, registry)
        if self._result is Result.COMMITTED:
            self._handled = batch_id
            return
        # Returning would commit an unhandled batch, and its events would be lost. Raising ends the query with the batch
        # uncommitted, and it runs again at the next start. That is no error, so Spark's log is off.
        self._last_begun = before
        batch.sparkSession.sparkContext.setLogLevel("OFF")
        raise Uncommitted

    def _watch(self, query: StreamingQuery) -> None:
        newest, reported, interrupt_at = None, -1, math.inf
        while query.isActive and not ((self._stop.is_set() or self._must_replan()) and self._is_at_rest(query)):
            if self._stop.is_set():
                interrupt_at = min(interrupt_at, time.monotonic() + self._stalled_after_s)
            if interrupt_at < time.monotonic():
                raise errors.LaneFailed(
                    f"lane {self._name} was asked to stop {self._stalled_after_s:.0f} s ago, and its micro-batch still runs. "
                    "It is interrupted, and runs again at the next start, without the deliveries that have ended. If this "
                    "happens often, look for earlier errors in the log of the job, or raise metrics.stalled_after_s"
                )
            self._begins.wait(POLL_S)  # not awaitTermination: it raises what _handle_batch raised on purpose
            self._begins.clear()
            # Ask the JVM only for new progress: for each answer it formats the offsets of hundreds of topics.
            if newest is not None and _committed(newest) >= self._handled:
                continue
            if (last := query.lastProgress) is None or last == newest:
                continue
            newest, self._absences, self._failed_plans = last, 0, 0
            self._watched.awaits_report = False
            self._watched.enter(health.QueryPhase.RUNNING)
            for progress in [last] if last["batchId"] == reported + 1 else query.recentProgress:
                if progress["batchId"] > reported and (records := self._records_in(progress)):
                    reported = progress["batchId"]
                    _report(self._name, progress, records)
            for state in newest["stateOperators"]:
                metrics.STATE_ROWS.labels(self._name).set(state["numRowsTotal"])
                metrics.STATE_BYTES.labels(self._name).set(state["memoryUsedBytes"])
            reached = positions(newest)
            self._watched.has_no_topics = not reached
            self._watched.reach(reached)

    def _records_in(self, progress: StreamingQueryProgress) -> int:
        if self._records_of is None:
            return int(progress["numInputRows"])
        return self._records_of(progress["batchId"])

    def _result_of(self, query: StreamingQuery, written: Callable[[], Iterable[disk_space.Folder]]) -> Result:
        """Return the Result of a query that has ended or is at rest. Raise LaneFailed if a restart would not help.

        A restart helps if Kafka did not answer, if planning timed out, or if the plan must change. A lane restarts at most
        MOST_ABSENCES times for Kafka, and MOST_FAILED_PLANS times for planning. Progress of a query sets both counts to 0.
        `written` returns the folders that the query writes, for the message about a full disk.
        """
        failure = query.exception()
        if failure is None and self._result is Result.COMMITTED and self._must_replan():
            return Result.REPLAN
        if failure is None or self._result is not Result.COMMITTED:
            return self._result
        text = str(failure)
        if kafka_outage.is_kafka_outage(text) and self._absences < MOST_ABSENCES:
            self._absences += 1
            log.warning(WAITS_FOR_KAFKA, self._name, cause_of(text))
            return Result.KAFKA_AWAY
        if is_unplanned(text) and self._failed_plans < MOST_FAILED_PLANS:
            self._failed_plans += 1
            log.warning(
                "lane %s could not be planned and tries again: no Python process started within 10 s on this machine. If it "
                "happens often, give the driver more CPU", self._name,
            )  # fmt: skip
            return Result.REPLAN
        self._watched.enter(health.QueryPhase.ENDED)
        space = disk_space.free_space(written()) if disk_space.is_disk_full(text) else ""
        raise errors.LaneFailed(
            f"lane {self._name} ended, and all lanes stop: {reason_of(failure)}{space}. "
            "Committed work is kept. Fix the cause as in docs/operations.md#fanoutabsent-fanoutnotready, and start again"
        ) from failure

    def _must_replan(self) -> bool:
        return self._paused is not None and self._paused.must_replan

    def _is_at_rest(self, query: StreamingQuery) -> bool:
        """Return True if the last started micro-batch is committed. Spark reports progress only after the commit."""
        progress = query.lastProgress
        return self._last_begun <= (-1 if progress is None else _committed(progress))


def end(lane: str, query: StreamingQuery) -> None:
    """Stop a lane's query. If the query does not end within session.STOP_TIMEOUT, log a warning: it ends with the process."""
    try:
        query.stop()
    except Py4JJavaError as failure:
        log.warning(
            "the query of lane %s did not end within %s of its stop (%s). It ends with this process, and the next "
            "start runs its micro-batch again. If this is logged often, send the log to the maintainers",
            lane, session.STOP_TIMEOUT, cause_of(str(failure.java_exception)),
        )  # fmt: skip


def _committed(progress: StreamingQueryProgress) -> int:
    """Return the number of the newest committed micro-batch, by Spark's progress report.

    If there was nothing to do, the report names the next micro-batch, which has not started.
    """
    return int(progress["batchId"]) - ("addBatch" not in progress["durationMs"])


def is_unplanned(text: str) -> bool:
    """Return True if the error text of a query says that Spark could not plan the query in time, on a busy machine."""
    return _NO_PLAN.match(text) is not None


def cause_of(failure: str) -> str:
    """Return the line of a failed query's error text that names the cause; "" if there is none.

    1. If the text has lines "Reason: …", in which Spark's Kafka source names a partition, return the last of these lines.
    2. Otherwise return the last line that is neither a stack frame nor a bare SQLSTATE.
    """
    text = failure.partition("=== Streaming Query ===")[0].splitlines()
    lines = [line.strip() for line in text if line.strip() and not _SAYS_NOTHING.match(line)]
    named = [line.removeprefix(REASON) for line in lines if line.startswith(REASON)]
    return (named or lines or [""])[-1]


def reason_of(failure: Exception) -> str:
    """Return why a query failed, for the message to the operator: the line of `cause_of`, or else the class of the error.

    Kafka's Java client says only that it could not be created, for example with a wrong keystore. Then the messages of the
    error's Java causes follow, the innermost last.
    """
    line = cause_of(str(failure)) or type(failure).__name__
    if not _NAMES_NO_CAUSE.search(line):
        return line
    said = [line]
    # PySpark gives no public access to the causes of an error.
    while (failure := getattr(failure, "_cause", None)) is not None:  # type: ignore[assignment]
        text = str(failure).partition("\n")[0].rpartition("Exception: ")[2]
        if "JAAS config" in text:  # the text may quote a part of a password
            text = "sasl.jaas.config cannot be read"
        if text and text not in said[-1]:
            said.append(text)
    return ": ".join(said)


def positions(progress: StreamingQueryProgress) -> health.Positions:
    """Return the next offset of each partition by Spark's progress report: all records before it are committed."""
    ends = (json.loads(source["endOffset"]) or {} for source in progress["sources"])
    return {topic: {int(number): at for number, at in offsets.items()} for end in ends for topic, offsets in end.items()}


def _report(lane: str, progress: StreamingQueryProgress, records: int) -> None:
    metrics.RECORDS.labels(lane).inc(records)
    metrics.MICRO_BATCH_SECONDS.labels(lane).observe(progress["durationMs"].get("triggerExecution", 0) / 1000)
    log_commit(lane, progress, records)


def log_commit(lane: str, progress: StreamingQueryProgress, records: int) -> None:
    """Log that a micro-batch, or a batch of Spark's real-time trigger, is committed."""
    duration_ms = progress["durationMs"].get("triggerExecution", 0)
    log.info(
        "micro-batch committed",
        extra={"lane": lane, "batch": progress["batchId"], "records": records, "duration_ms": duration_ms},
    )
    log.debug("lane %s: %s", lane, progress["durationMs"])
