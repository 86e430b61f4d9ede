"""Run the real-time lane: choose its trigger, watch its tasks while a batch lasts, start it again, end it in order.

Runs on the driver. The lane's plan ends in the tasks, which write their results themselves; Spark is given nothing back.
Guarantee: at least once. Spark commits a batch when its tasks have ended, so after all that it caused was written.
"""

from __future__ import annotations

import enum
import logging
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from delivery import errors
from delivery.config import kafka_clients, settings, worker_plans
from delivery.observability import health, metrics
from delivery.stages.checkpoint import disk_space, recovery
from delivery.stages.kafka import outage, sink
from delivery.stages.lanes import lanes, session, streaming_lane, telemetry
from delivery.stages.realtime import collected, floors, messages, moving, pace, partition, records, slots
from delivery.stages.realtime.hub import Hub
from delivery.stages.registry import lookup_source, registry_follower
from delivery.stages.tasks import observer, task_context
from delivery.webhooks.results.counters import Counters

log = logging.getLogger(__name__)

NAME = "realtime"
POLL_S = 0.1
"""Seconds between two looks at what the tasks have told."""
TOPICS_EVERY_S = 10.0
"""Seconds between two looks for new partitions, which a running batch does not read."""
MOST_STARTS = 5
"""Starts in a row after which nothing was delivered, before the lane gives up."""
STOPS_WITHIN_S = 10.0
"""Seconds that tasks have to write what has ended, beside `delivery.stop_within_s` for what goes on alone."""
CATCH_UP_INTERVAL = "0 seconds"


class Outcome(enum.Enum):
    """Why a query was ended, or has ended."""

    STOP = enum.auto()
    DONE = enum.auto()
    """With `once`: all that was in Kafka is handled."""
    PLAN_AGAIN = enum.auto()
    FAULT = enum.auto()
    """A task failed or was lost. What it had begun may go on for a moment."""
    KAFKA_AWAY = enum.auto()


WITHOUT_LANE = (
    "lane direct leaves out the topics of source.realtime_pattern, and lane realtime does not run here: run it in another "
    "application on the same topics, name it in --lanes (drivers.NAME.lanes of the chart), or remove the pattern"
)


def default_names(config: settings.Settings, known: Collection[str]) -> list[str]:
    """Return the lanes that run where none are named: all that are known, this one only if it has topics."""
    return [name for name in known if name != NAME or config.source.realtime_pattern]


def made(
    config: settings.Settings,
    spark: SparkSession,
    registry: registry_follower.Broadcasts | lookup_source.Lookups,
    common: lanes.Common,
    *,
    stop: threading.Event,
    names: Collection[str],
) -> dict[str, lanes.Lane]:
    """Return the lane, if it is named. Before, give topics over where the pattern has changed.

    Raises SettingsError where the lane cannot run by these settings, and what delivery.stages.realtime.moving does.
    """
    moving.move(spark, config, names)
    if NAME not in names:
        if config.source.realtime_pattern and "direct" in names:
            log.warning(WITHOUT_LANE)
        return {}
    if not config.source.realtime_pattern:
        raise errors.SettingsError("lane realtime has no topics: set source.realtime_pattern")
    if isinstance(registry, lookup_source.Lookups):
        raise errors.SettingsError('lane realtime needs snapshot.source = "broadcast": its workers follow the driver')
    return {NAME: Realtime(config, spark, registry.follower, stop, common, shares=len(names) > 1)}


@dataclass(frozen=True, slots=True)
class _Query:
    """A query as it runs."""

    itself: StreamingQuery
    hub: Hub
    mode: pace.Mode
    partitions: int
    once: bool


class Realtime:
    """The lane. `shares` says whether other lanes run in this application and need slots as well."""

    def __init__(
        self,
        config: settings.Settings,
        spark: SparkSession,
        registry: registry_follower.Follower,
        stop: threading.Event,
        common: lanes.Common,
        *,
        shares: bool,
    ) -> None:
        self._config, self._registry, self._stop, self._common = config, registry, stop, common
        self._one_by_one, self._in_batches = records.session(spark), spark.newSession()
        self._for_others = config.spark.parallelism if shares else 0
        self._seen = telemetry.Telemetry(spark.sparkContext, NAME, config.logs)
        self._checkpoint = f"{config.spark.checkpoint.rstrip('/')}/{NAME}"
        self._pace = pace.Pace(since=time.monotonic())
        self._found: dict[str, int] = {}
        """The lane's topics, and how many partitions each has."""
        self._starts = 0
        """Since something was delivered."""

    def run(self, watch: health.Watch, *, once: bool) -> None:
        """As lanes.Lane."""
        self._find_topics(is_first=True)
        while self._registry.current() is not None and (once or self._await_topics(watch)):
            try:
                outcome = self._run_query(watch, once=once)
            except errors.LaneFailed:
                watch.entered(health.Phase.ENDED)
                raise
            if outcome in {Outcome.STOP, Outcome.DONE} or self._stop.is_set():
                return
            if outcome is Outcome.FAULT:
                self._stop.wait(lanes.LAST_TASKS_S)  # so that what goes on in the tasks is written, and not made again
            while outcome is Outcome.KAFKA_AWAY and not self._stop.wait(streaming_lane.ASK_S):
                if outage.is_over(self._config.kafka):
                    break
            self._find_topics()

    # Topics and slots.

    def _find_topics(self, *, is_first: bool = False) -> None:
        """Look which partitions there are. Raise SettingsError where there are too few slots for those of the start."""
        found = slots.partitions(self._config)
        if found is None or found == self._found:
            return
        self._found = found
        why = slots.refusal(found, slots.available(self._one_by_one.sparkContext), self._for_others)
        if why is not None and is_first:
            raise errors.SettingsError(why)
        if why is not None:
            log.error("new partitions: %s. Until then the lane delivers in micro-batches", why)

    def _has_slots(self) -> bool:
        return slots.refusal(self._found, slots.available(self._one_by_one.sparkContext), self._for_others) is None

    def _await_topics(self, watch: health.Watch) -> bool:
        """Wait until there is a topic; return False when the job is to stop."""
        while not self._found and not self._stop.is_set():
            watch.entered(health.Phase.RUNNING)
            self._stop.wait(1.0)
            self._find_topics()
        return not self._stop.is_set()

    # One query.

    def _run_query(self, watch: health.Watch, *, once: bool) -> Outcome:
        recovery.require_whole(self._in_batches, self._checkpoint)
        try:
            begin = floors.read(self._in_batches, self._config, self._checkpoint)
        except errors.KafkaUnavailable as exc:
            log.warning("lane %s waits for Kafka: %s", NAME, exc)
            return Outcome.KAFKA_AWAY
        mode = self._pace.mode if self._has_slots() and not once else pace.Mode.CATCHING_UP
        metrics.REALTIME_CATCHING_UP.set(mode is pace.Mode.CATCHING_UP)
        host, bind = _addresses(self._one_by_one.sparkContext)
        hub = Hub(self._news, begin.next_offsets, bind=bind, host=host, port=self._config.realtime.port)
        try:
            running = _Query(self._start(begin, hub, mode, once=once), hub, mode, sum(self._found.values()), once)
            try:
                outcome = self._watch(running, watch)
                if outcome in {Outcome.STOP, Outcome.PLAN_AGAIN}:
                    self._stop_tasks(running)
            finally:
                self._end(running.itself)
                self._take(running, watch)
        finally:
            hub.close()
        if outcome is Outcome.FAULT:
            self._count_start(hub)
        return outcome

    def _start(self, begin: floors.Begin, hub: Hub, mode: pace.Mode, *, once: bool) -> StreamingQuery:
        deliver = partition.DeliverRealtime(
            tools=self._tools(mode), driver=hub.address, stop_within_s=self._config.delivery.stop_within_s, ended=begin.ended
        )
        config = self._config
        if begin.is_first and begin.next_offsets:  # topics that the direct lane had come to the middle of
            config = config.model_copy(update={"source": config.source.model_copy(update={"starting_offsets": "earliest"})})
        if mode is pace.Mode.REALTIME:
            rows = records.one_by_one(self._one_by_one, config, begin.next_offsets)
        else:
            rows = records.in_micro_batches(self._in_batches, config, begin.next_offsets)
        writer = (
            rows.mapInArrow(deliver, task_context.NO_ROWS)
            .writeStream.queryName(NAME)
            .outputMode("update")
            .format("noop")
            .option("checkpointLocation", self._checkpoint)
        )
        if once:
            return writer.trigger(availableNow=True).start()
        if mode is pace.Mode.CATCHING_UP:
            return writer.trigger(processingTime=CATCH_UP_INTERVAL).start()
        realtime: Any = writer  # whose stub does not know this trigger
        query: StreamingQuery = realtime.trigger(realTime=f"{self._config.realtime.batch_s} seconds").start()
        return query

    def _tools(self, mode: pace.Mode) -> task_context.Tools:
        # Record by record, each partition has a worker of its own.
        workers = sum(self._found.values()) if mode is pace.Mode.REALTIME else self._config.spark.parallelism
        logs = self._config.logs
        observe = observer.Observer(
            total=collected.Adding("total"),
            gone=collected.Adding("gone"),
            silent=collected.Adding("silent"),
            level=logs.level,
            format=logs.format,
            attempt_sample=logs.attempt_sample,
        )
        writing = sink.to(kafka_clients.for_librdkafka(self._config.kafka))
        return task_context.Tools(plan=worker_plans.of_realtime(self._config), observe=observe, sink=writing, workers=workers)

    def _news(self, known: messages.Known) -> messages.News:
        """Say what a worker does not know. Called on the threads of the hub; never waits."""
        newest = self._registry.newest
        is_paused = newest is None or self._registry.hold_reason() is not None or self._common.network.is_paused
        held = self._common.held.now()
        if newest is None:
            return messages.News(held=held, is_paused=is_paused)
        is_new = known.base_id != newest.base_id or known.revision is None
        return messages.News(
            base_id=newest.base_id,
            base=newest.base if is_new else None,
            changes=newest.changes if is_new or known.revision != newest.revision else None,
            held=held,
            is_paused=is_paused,
        )

    # While it runs.

    def _watch(self, running: _Query, watch: health.Watch) -> Outcome:
        looked_at, reported = time.monotonic(), -1
        while running.itself.isActive:
            if self._stop.is_set():
                return Outcome.STOP
            delay_s = self._take(running, watch)
            if (fault := running.hub.fault()) is not None:
                log.warning("lane %s starts its query again, with the records that have no receipt: %s", NAME, fault)
                return Outcome.FAULT
            if self._changes_over(running, delay_s):
                return Outcome.PLAN_AGAIN
            now = time.monotonic()
            if now - looked_at > TOPICS_EVERY_S:
                looked_at, before = now, self._found
                self._find_topics()
                if self._found != before and running.mode is pace.Mode.REALTIME:
                    log.info("lane %s is planned again: its topics have %d partitions", NAME, sum(self._found.values()))
                    return Outcome.PLAN_AGAIN
            reported = self._note_progress(running, watch, reported)
            time.sleep(POLL_S)
        return self._judged(running)

    def _take(self, running: _Query, watch: health.Watch) -> float:
        """Pass on what the tasks have told; return how old the oldest record was that they have read."""
        heard = running.hub.take()
        if heard.tally != Counters():  # in which gauges would be 0
            self._seen.account(heard.tally)
        self._common.told(telemetry.Told(heard.tally, heard.gone, heard.silent))
        metrics.RECORDS.labels(NAME).inc(heard.records)
        if running.hub.has_advanced:
            self._starts = 0
        if running.hub.running >= running.partitions or running.mode is pace.Mode.CATCHING_UP:
            watch.entered(health.Phase.RUNNING)
        watch.reached(running.hub.positions)
        return heard.delay_s

    def _changes_over(self, running: _Query, delay_s: float) -> bool:
        if running.once or not self._has_slots() or self._registry.hold_reason() is not None or self._common.network.is_paused:
            return False  # what is old has waited on purpose
        before = self._pace
        self._pace = before.told(delay_s, self._config.realtime.behind_after_s, time.monotonic())
        if self._pace.mode is running.mode:
            return False
        if self._pace.mode is pace.Mode.CATCHING_UP:
            behind_s = max(before.oldest_s, delay_s)
            log.warning("lane %s has fallen behind by %.0f s: it catches up in micro-batches", NAME, behind_s)
        else:
            log.info("lane %s has caught up: it delivers record by record again", NAME)
        return True

    def _note_progress(self, running: _Query, watch: health.Watch, reported: int) -> int:
        progress = running.itself.lastProgress
        if progress is None or progress["batchId"] == reported:
            return reported
        ends = streaming_lane.positions(progress)
        running.hub.reached(((topic, number), at) for topic, numbers in ends.items() for number, at in numbers.items())
        watch.reached(running.hub.positions)
        if progress["numInputRows"]:
            streaming_lane.log_commit(NAME, progress)
        return int(progress["batchId"])

    # Its end.

    def _end(self, running: StreamingQuery) -> None:
        """End a query. Spark's own log is off meanwhile: it reports each task that is broken off as an error."""
        context = self._one_by_one.sparkContext
        context.setLogLevel("OFF")
        try:
            running.stop()
        finally:
            context.setLogLevel(session.LOG_LEVEL)

    def _stop_tasks(self, running: _Query) -> None:
        """Let the tasks write what they have begun. What Spark would then break off is nothing."""
        running.hub.stop_tasks()
        deadline = time.monotonic() + self._config.delivery.stop_within_s + STOPS_WITHIN_S
        while running.hub.running and running.hub.fault() is None and time.monotonic() < deadline:
            time.sleep(POLL_S / 4)

    def _judged(self, running: _Query) -> Outcome:
        """Say why the query has ended by itself; raise LaneFailed where a new start would not help."""
        failure = running.itself.exception()
        if failure is None:
            return Outcome.DONE
        text = str(failure)
        if outage.is_meant(text):
            log.warning("lane %s waits for Kafka: %s", NAME, streaming_lane.cause_of(text))
            return Outcome.KAFKA_AWAY
        fault = running.hub.fault()
        if fault is not None:
            log.warning("lane %s starts its query again, with the records that have no receipt: %s", NAME, fault)
            return Outcome.FAULT
        folders = disk_space.folders(self._in_batches, self._config.spark.checkpoint)
        space = disk_space.told(folders) if disk_space.is_meant(text) else ""
        raise errors.LaneFailed(
            f"lane {NAME} ended: {streaming_lane.cause_of(text) or type(failure).__name__}{space}. "
            "What was committed is kept: mend the cause, and start again"
        ) from failure

    def _count_start(self, hub: Hub) -> None:
        metrics.REALTIME_RESTARTS.inc()
        self._starts += 1
        if self._starts > MOST_STARTS:
            raise errors.LaneFailed(
                f"lane {NAME} has started {MOST_STARTS} times without delivering anything: {hub.fault()}. "
                "What was written is kept: mend the cause, and start again"
            )


def _addresses(context: SparkContext) -> tuple[str, str]:
    """Return where workers reach the driver, and where it listens."""
    if (context.master or "").startswith("local["):
        return "127.0.0.1", "127.0.0.1"
    conf = context.getConf()
    host = conf.get("spark.driver.host", "127.0.0.1")
    return host, conf.get("spark.driver.bindAddress", host)
