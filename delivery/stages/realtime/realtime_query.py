"""Run the real-time lane: choose the trigger of its query, watch the query's tasks, restart and stop the query.

Runs on the driver. Under the real-time trigger one batch lasts for minutes, and each of its tasks reads one Kafka partition.
The tasks write their results to Kafka themselves, and return no rows to Spark. Guarantee: at least once. Spark commits a batch
when its tasks have ended, so after all results were written.
"""

from __future__ import annotations

import enum
import logging
import threading
import time
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from delivery import errors
from delivery.config import plan_builder, settings
from delivery.observability import health, metrics
from delivery.stages import disk_space
from delivery.stages.checkpoint import recovery
from delivery.stages.kafka import kafka_outage
from delivery.stages.lanes import lane_context, session, streaming_lane, telemetry
from delivery.stages.realtime import (
    deliver_realtime,
    messages,
    mode_switch,
    realtime_source,
    report_buffer,
    slots,
    start_offsets,
    task_server,
)
from delivery.stages.registry import base_packer, job_registry
from delivery.stages.tasks import observer, task_context
from delivery.webhooks.lanes import realtime_lane
from delivery.webhooks.results import completed_work
from delivery.webhooks.results.counters import Counters

log = logging.getLogger(__name__)

NAME = "realtime"
POLL_S = 0.1
"""Seconds between two checks of the tasks' reports."""
TOPICS_EVERY_S = 10.0
"""Seconds between two checks for new partitions. A running batch does not read new partitions, so the query must restart."""
MOST_RESTARTS = 5
"""Consecutive restarts after a fault without any handled record. At the next fault the lane fails."""
STOPS_WITHIN_S = 10.0
"""Seconds in which stopping tasks must write their results, in addition to `delivery.stop_within_s` for background attempts."""
CATCH_UP_INTERVAL = "0 seconds"
"""Trigger interval in micro-batches: each follows the previous one at once."""


class QueryEnd(enum.Enum):
    """The reason why a query of the real-time lane ended."""

    STOP = enum.auto()
    """The job was asked to stop."""
    DONE = enum.auto()
    """With `once`: all records that were in Kafka are handled."""
    REPLAN = enum.auto()
    """The plan must change, because the mode or the number of partitions has changed."""
    READ_AGAIN = enum.auto()
    """Paused partitions must be read again: their schema can be read, or the query has no more records."""
    FAULT = enum.auto()
    """A task failed, was lost or stopped reporting. Its deliveries in flight may continue for a moment."""
    KAFKA_AWAY = enum.auto()
    """Kafka did not answer, or with `once` the schema registry."""


@dataclass(frozen=True, slots=True)
class _Query:
    """A running query of the lane, and the server to which its tasks report."""

    streaming_query: StreamingQuery
    server: task_server.TaskServer
    mode: mode_switch.Mode
    partitions: int
    once: bool


class RealtimeLane:
    """The real-time lane. `shares`: True if other lanes of this application run as well, and need task slots of Spark."""

    def __init__(
        self,
        config: settings.Settings,
        spark: SparkSession,
        registry: job_registry.FollowedRegistry,
        stop: threading.Event,
        context: lane_context.LaneContext,
        *,
        shares: bool,
    ) -> None:
        self._config, self._registry, self._stop, self._context = config, registry, stop, context
        self._one_by_one, self._in_batches = realtime_source.sessions(spark)
        self._topics = slots.LaneTopics(config, spark.sparkContext, for_others=config.spark.parallelism if shares else 0)
        self._packer = base_packer.BasePacker()
        self._seen = telemetry.Telemetry(spark.sparkContext, NAME, config.logs)
        self._checkpoint = f"{config.spark.checkpoint.rstrip('/')}/{NAME}"
        self._mode_switch = mode_switch.ModeSwitch(since=time.monotonic())
        self.micro_batch_session: SparkSession | None = None
        """The session of the lane's micro-batches, once the lane has run in micro-batches. A task of this session may end while
        attempts go on in the background of its process. So wait for these attempts after the lane has ended."""
        self._paused: frozenset[realtime_lane.Place] = frozenset()
        """Partitions whose pause is logged already: of the present query, and still paused at the end of the last query."""
        self._reads_again = False
        """True if the last query ended because of paused partitions."""
        self._ended: frozenset[completed_work.Key] = frozenset()
        """Deliveries that had ended when a query last started for another reason than paused partitions."""
        self._restarts = 0
        """Restarts after a fault since tasks last handled a record."""

    def require_slots(self) -> None:
        """Raise SettingsError if Spark has too few slots for the lane's partitions. If Kafka does not answer, check nothing."""
        self._topics.find(is_first=True)

    def run(self, watch: health.Watch, *, once: bool) -> None:
        """Run until the job is asked to stop, or with `once` until all records that are in Kafka now are handled.

        Raise SettingsError if `realtime.port` cannot be opened, or if the registry can never be read. Raise LaneFailed if a
        restart does not help, or if MOST_RESTARTS restarts handled no record.
        """
        while self._registry.current() is not None and (once or self._await_topics(watch)):
            try:
                outcome = self._run_query(watch, once=once)
            except errors.LaneFailed:
                watch.enter(health.QueryPhase.ENDED)
                raise
            if outcome in {QueryEnd.STOP, QueryEnd.DONE} or self._stop.is_set():
                return
            self._reads_again = outcome is QueryEnd.READ_AGAIN
            if self._reads_again:  # in micro-batches, the backlog of a paused partition would delay all others
                self._mode_switch = self._mode_switch.in_real_time(time.monotonic())
            if outcome is QueryEnd.FAULT:
                self._stop.wait(lane_context.LAST_TASKS_S)  # the tasks write their results meanwhile
            watch.wait_for(kafka_outage.AWAY if outcome is QueryEnd.KAFKA_AWAY else None)
            while outcome is QueryEnd.KAFKA_AWAY and not self._stop.wait(streaming_lane.ASK_S):
                if kafka_outage.is_over(self._config) and kafka_outage.schema_registry_answers(self._config.schema_registry):
                    break
            if not once:
                self._topics.find()

    def _await_topics(self, watch: health.Watch) -> bool:
        """Wait until Kafka has a topic for the lane; return False when the job is asked to stop."""
        while not self._topics.partitions and not self._stop.is_set():
            watch.enter(health.QueryPhase.RUNNING)
            watch.has_no_topics = self._topics.are_known
            self._stop.wait(1.0)
            self._topics.find()
        watch.has_no_topics = False
        return not self._stop.is_set()

    def _run_query(self, watch: health.Watch, *, once: bool) -> QueryEnd:
        recovery.require_whole(self._in_batches, self._checkpoint)
        try:
            start = start_offsets.read(self._in_batches, self._config, self._checkpoint)
        except errors.KafkaUnavailable as exc:
            log.warning(streaming_lane.WAITS_FOR_KAFKA, NAME, exc)
            return QueryEnd.KAFKA_AWAY
        if self._reads_again:
            start_offsets.save(self._in_batches, self._checkpoint, start)
            start = start._replace(ended=start.ended | self._ended)  # what a paused partition has delivered is still needed
        else:
            self._ended = start.ended
        mode = self._mode_switch.mode if self._topics.have_slots() and not once else mode_switch.Mode.CATCHING_UP
        metrics.REALTIME_CATCHING_UP.set(mode is mode_switch.Mode.CATCHING_UP)
        host, bind = task_server.addresses(self._one_by_one.sparkContext)
        offsets, port = start.next_offsets, self._config.realtime.port
        server = task_server.TaskServer(self._update_for, offsets, bind=bind, host=host, port=port)
        try:
            query = _Query(self._start(start, server, mode, once=once), server, mode, self._topics.total, once)
            try:
                outcome = self._watch(query, watch)
                if outcome is not QueryEnd.FAULT:
                    self._stop_tasks(query)
            finally:
                self._end(query.streaming_query)
                self._collect(query, watch)
                self._paused = server.paused
        finally:
            server.close()
        if outcome is QueryEnd.FAULT:
            self._count_restart(server.fault() or "")
        return outcome

    def _start(
        self, start: start_offsets.StartOffsets, server: task_server.TaskServer, mode: mode_switch.Mode, *, once: bool
    ) -> StreamingQuery:
        deliver = deliver_realtime.DeliverRealtime(
            tools=self._tools(mode), driver=server.address, stop_within_s=self._config.delivery.stop_within_s, ended=start.ended
        )
        config = self._config
        if start.is_first and start.next_offsets:  # topics that the direct lane had partly read
            config = config.model_copy(update={"source": config.source.model_copy(update={"starting_offsets": "earliest"})})
        if mode is mode_switch.Mode.REALTIME:
            rows = realtime_source.read_one_by_one(self._one_by_one, config, start.next_offsets)
        else:
            rows = realtime_source.read_in_micro_batches(self._in_batches, config, start.next_offsets)
            self.micro_batch_session = self._in_batches
        writer = (
            rows.mapInArrow(deliver, task_context.NO_ROWS)
            .writeStream.queryName(NAME)
            .outputMode("update")
            .format("noop")
            .option("checkpointLocation", self._checkpoint)
        )
        if once:
            return writer.trigger(availableNow=True).start()
        if mode is mode_switch.Mode.CATCHING_UP:
            return writer.trigger(processingTime=CATCH_UP_INTERVAL).start()
        realtime: Any = writer  # PySpark's stub does not have this trigger
        query: StreamingQuery = realtime.trigger(realTime=f"{self._config.realtime.batch_s} seconds").start()
        return query

    def _tools(self, mode: mode_switch.Mode) -> task_context.Tools:
        # In real time, each partition has a worker of its own.
        workers = self._topics.total if mode is mode_switch.Mode.REALTIME else self._config.spark.parallelism
        logs = self._config.logs
        observe = observer.Observer(
            total=report_buffer.BufferedTotal("total"),
            gone=report_buffer.BufferedTotal("gone"),
            unresponsive=report_buffer.BufferedTotal("unresponsive"),
            level=logs.level,
            format=logs.format,
            attempt_sample=logs.attempt_sample,
        )
        return lane_context.tools_of(self._config, plan_builder.of_realtime(self._config), observe, workers)

    def _update_for(self, known: messages.Known) -> messages.DriverUpdate:
        """Return the driver's answer to a worker that has the version `known` of the registry.

        Called on the threads of the TaskServer. Waits only while the snapshot or the changes that the worker lacks are pickled.
        """
        newest = self._registry.newest
        is_paused = newest is None or self._registry.pause_reason() is not None or self._context.network.is_paused
        suppressed = self._context.unhealthy.current().suppressed
        if newest is None:
            return messages.DriverUpdate(suppressed=suppressed, is_paused=is_paused)
        is_new = known.base_id != newest.base_id or known.revision is None
        if not is_new:
            self._packer.forget_unused()
        return messages.DriverUpdate(
            base_id=newest.base_id,
            base=self._packer.packed(newest) if is_new else None,
            changes=self._packer.packed_changes(newest) if is_new or known.revision != newest.revision else None,
            suppressed=suppressed,
            is_paused=is_paused,
        )

    # While a query runs.

    def _watch(self, query: _Query, watch: health.Watch) -> QueryEnd:
        looked_at, reported = time.monotonic(), -1
        while query.streaming_query.isActive:
            if self._stop.is_set():
                return QueryEnd.STOP
            delay_s = self._collect(query, watch)
            if (fault := query.server.fault()) is not None:
                log.warning(task_server.RESTARTS, NAME, fault)
                return QueryEnd.FAULT
            if query.server.asks_for_restart:
                return _outcome_of_pause(once=query.once)
            if self._switches_mode(query, delay_s):
                return QueryEnd.REPLAN
            now = time.monotonic()
            if not query.once and now - looked_at > TOPICS_EVERY_S:
                looked_at, before = now, self._topics.partitions
                self._topics.find()
                if self._topics.partitions != before and query.mode is mode_switch.Mode.REALTIME:
                    log.info("lane %s restarts its query: its topics now have %d partitions", NAME, self._topics.total)
                    return QueryEnd.REPLAN
            reported = self._report_progress(query, watch, reported)
            time.sleep(POLL_S)
        return self._outcome_of(query)

    def _collect(self, query: _Query, watch: health.Watch) -> float:
        """Apply the tasks' new reports. Return the greatest age of a record when it was read, in s; 0: no record was read."""
        reports = query.server.drain()
        if reports.counters != Counters():  # an empty report would set the gauges to 0
            self._seen.add(reports.counters)
        self._context.record(telemetry.WorkerReport(reports.counters, reports.gone, reports.unresponsive))
        metrics.RECORDS.labels(NAME).inc(reports.records)
        if query.server.has_advanced:
            self._restarts = 0
        if query.server.running_tasks >= query.partitions or query.mode is mode_switch.Mode.CATCHING_UP:
            watch.enter(health.QueryPhase.RUNNING)
            watch.wait_for(None)  # a quiet lane reaches no new position
        watch.reach(query.server.positions)
        self._show_paused(query.server, watch)
        return reports.delay_s

    def _show_paused(self, server: task_server.TaskServer, watch: health.Watch) -> None:
        """Log newly paused partitions, count their topics, and leave these topics out of the lag that `/healthz` judges."""
        paused, positions = server.paused, server.positions
        topics = {topic for topic, _ in paused}
        metrics.PAUSED_TOPICS.labels(NAME).set(len(topics))
        watch.pause_topics({topic: positions.get(topic, {}) for topic in topics})
        if new := paused - self._paused:
            log.warning(task_server.PAUSES, NAME, ", ".join(f"{topic}/{number}" for topic, number in sorted(new)))
        self._paused |= paused

    def _switches_mode(self, query: _Query, delay_s: float) -> bool:
        if (
            query.once
            or query.server.paused
            or not self._topics.have_slots()
            or self._registry.pause_reason() is not None
            or self._context.network.is_paused
        ):
            return False  # with `once`, paused partitions or too few slots the mode is fixed; a pause makes the records old
        before = self._mode_switch
        self._mode_switch = before.observe(delay_s, self._config.realtime.behind_after_s, time.monotonic())
        if self._mode_switch.mode is query.mode:
            return False
        if self._mode_switch.mode is mode_switch.Mode.CATCHING_UP:
            behind_s = max(before.oldest_s, delay_s)
            log.warning(
                "lane %s reads records that are %.0f s old by their time in Kafka: it catches up in micro-batches, then "
                "returns to real time by itself. If this is logged often, or the lane stays in micro-batches, look at its lag. "
                "If records wait, give the lane more CPU. If none wait, a producer has a slow clock or writes old times: set "
                "message.timestamp.type=LogAppendTime for the lane's topics", NAME, behind_s,
            )  # fmt: skip
        else:
            log.info("lane %s leaves its micro-batches, and delivers in real time from now on", NAME)
        return True

    def _report_progress(self, query: _Query, watch: health.Watch, reported: int) -> int:
        progress = query.streaming_query.lastProgress
        if progress is None or progress["batchId"] == reported:
            return reported
        ends = streaming_lane.positions(progress)
        query.server.reach(((topic, number), at) for topic, numbers in ends.items() for number, at in numbers.items())
        watch.reach(query.server.positions)
        if progress["numInputRows"]:
            streaming_lane.log_commit(NAME, progress, progress["numInputRows"])
        return int(progress["batchId"])

    # At the end of a query.

    def _end(self, running: StreamingQuery) -> None:
        """End a query. Spark's own log is off meanwhile, because Spark would log each aborted task as an error."""
        context = self._one_by_one.sparkContext
        context.setLogLevel("OFF")
        try:
            streaming_lane.end(NAME, running)
        finally:
            context.setLogLevel(session.LOG_LEVEL)

    def _stop_tasks(self, query: _Query) -> None:
        """Stop the tasks. Wait for the deliveries that they have begun, at most `delivery.stop_within_s` + STOPS_WITHIN_S s."""
        query.server.stop_tasks()
        within_s = self._config.delivery.stop_within_s + STOPS_WITHIN_S
        deadline = time.monotonic() + within_s
        while query.streaming_query.isActive and (running := query.server.running_tasks):
            if time.monotonic() > deadline:
                log.warning(task_server.CUT_OFF, running, NAME, within_s)
                return
            time.sleep(POLL_S / 4)

    def _outcome_of(self, query: _Query) -> QueryEnd:
        """Return why a query ended by itself; raise LaneFailed if a restart would not help."""
        failure = query.streaming_query.exception()
        if failure is None:
            return QueryEnd.DONE
        text = str(failure)
        if kafka_outage.is_kafka_outage(text):
            log.warning(streaming_lane.WAITS_FOR_KAFKA, NAME, streaming_lane.cause_of(text))
            return QueryEnd.KAFKA_AWAY
        if (fault := query.server.fault()) is not None:
            log.warning(task_server.RESTARTS, NAME, fault)
            return QueryEnd.FAULT
        folders = disk_space.folders(self._in_batches, self._config.spark.checkpoint)
        space = disk_space.free_space(folders) if disk_space.is_disk_full(text) else ""
        raise errors.LaneFailed(
            f"lane {NAME} ended, and all lanes stop: {streaming_lane.reason_of(failure)}{space}. "
            "Committed work is kept. Fix the cause as in docs/operations.md#fanoutabsent-fanoutnotready, and start again"
        ) from failure

    def _count_restart(self, fault: str) -> None:
        metrics.REALTIME_RESTARTS.inc()
        self._restarts += 1
        if self._restarts > MOST_RESTARTS:
            raise errors.LaneFailed(
                f"lane {NAME} has restarted {MOST_RESTARTS} times without handling a record, and all lanes stop: "
                f"{fault}. Written results are kept. Fix the cause, and start again: {task_server.LOOK_AT}"
            )


def _outcome_of_pause(*, once: bool) -> QueryEnd:
    """Log that the query ends because of paused partitions; return READ_AGAIN, or with `once` KAFKA_AWAY."""
    if once:
        log.warning(streaming_lane.WAITS_FOR_SCHEMAS, NAME)
        return QueryEnd.KAFKA_AWAY
    log.info("lane %s restarts its query, to read its paused partitions again", NAME)
    return QueryEnd.READ_AGAIN
