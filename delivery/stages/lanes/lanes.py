"""Run the lanes: what each makes ready, plans, and does with a micro-batch.

Runs on the driver. Each lane is a streaming query on a thread of its own, with its own checkpoint folder and its own scheduler
pool, so that neither lane's tasks wait for all of the other's. When one ends by itself all end, and whoever started the process
starts it again: a process that delivers a part of what it should would look well.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from pyspark import InheritableThread, SparkContext
from pyspark.sql import DataFrame, SparkSession

from delivery.config import kafka_clients, settings, worker_plans
from delivery.model import EndpointId
from delivery.observability import health, metrics
from delivery.stages.checkpoint import recovery, shards
from delivery.stages.kafka import outage, sink, source, wakeups
from delivery.stages.lanes import streaming_lane, telemetry
from delivery.stages.lanes.clock_check import ClockCheck
from delivery.stages.lanes.network_outage import Network
from delivery.stages.lanes.suppressed_endpoints import SuppressedEndpoints
from delivery.stages.registry import task_delta
from delivery.stages.registry.endpoint_disabler import FAILING
from delivery.stages.scaling import size
from delivery.stages.tasks import (
    batch_shard,
    deliver_batches,
    deliver_events,
    deliver_retries,
    drain,
    observer,
    retry_shard,
    route,
    task_context,
)
from delivery.webhooks.policy import error_classes
from delivery.webhooks.results.completed_work import CompletedWorkLog, FastLaneLog, RetryLaneLog
from delivery.webhooks.routing import registries
from delivery.webhooks.state.backlog import Pending

log = logging.getLogger(__name__)

WHOLE_TURN_S = 300.0
"""Longer than any turn takes."""
LAST_TASKS_S = 3.0
"""Seconds for which tasks of an abandoned job may run: Spark ends workers after `spark.python.task.killTimeout`, 2 s."""
TRIGGERS_EARLY = 2
"""Trigger intervals by which a batch may leave early: it is sent only after the micro-batch in which it becomes due."""
MOST_STARTS = 3
"""Consecutive restarts after lost executors before a lane fails."""
Acquire = Callable[[], registries.RefreshedSource | None]
Disable = Callable[[Iterable[EndpointId], str], None]


class Lane(Protocol):
    """A lane, as it is run."""

    def run(self, watch: health.Watch, *, once: bool) -> None:
        """Run until the job is to stop, or with `once` until all that is in Kafka now has been handled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneContext:
    """What the lanes of one application tell each other."""

    suppressed: SuppressedEndpoints
    network: Network
    disable: Disable
    """Called with endpoints that are to get nothing more, and why. Must not wait."""
    sizing: size.Sizing
    clocks: ClockCheck = field(default_factory=ClockCheck)

    def record(self, report: telemetry.WorkerReport) -> None:
        """Take what the workers told of a micro-batch of any lane."""
        self.network.record(report.tally.reach)
        self.clocks.record(report.tally.clock_ahead_s)
        if not self.network.is_broken:
            self.suppressed.add_unresponsive(report.unresponsive)
        if report.gone:
            self.disable(report.gone, error_classes.GONE)


def context(config: settings.Settings, network: Network, disable: Disable, sizing: size.Sizing) -> LaneContext:
    """Return what the lanes of an application share."""
    suppressed = SuppressedEndpoints(config.delivery.attempt_timeout_s)
    return LaneContext(suppressed=suppressed, network=network, disable=disable, sizing=sizing)


class Direct:
    """Route and deliver in one step."""

    def __init__(
        self, config: settings.Settings, spark: SparkSession, acquire: Acquire, stop: threading.Event, context: LaneContext
    ) -> None:
        self._config, self._spark, self._acquire, self._stop, self._context = config, spark, acquire, stop, context
        self._seen = telemetry.Telemetry(spark.sparkContext, "direct", config.logs)
        self._tools = _tools(config, self._seen)
        self._reruns = recovery.Reruns(config, spark, "direct")
        self._size = context.sizing.now()

    def run(self, watch: health.Watch, *, once: bool) -> None:
        """As Lane."""
        if not once and (known := self._acquire()) is not None:
            self._size = self._context.sizing.now()  # it may have changed while the registry was waited for
            self._handle(deliver_events.no_records(self._spark, self._size.tasks), known)
        lane = streaming_lane.Lane(
            "direct",
            acquire=self._acquire,
            handle=self._handle,
            stop=self._stop,
            watch=watch,
            is_kafka_back=functools.partial(outage.is_over, self._config.kafka),
            on_begin=self._reruns.begin,
        )
        config = self._config.spark
        lane.run(self._planned, config, config.trigger_interval_s, once=once)

    def _planned(self) -> DataFrame:
        self._reruns.load()
        self._size = self._context.sizing.now()
        config = self._config.source
        at_most = config.max_events_per_batch * self._size.executors
        return source.read(self._spark, self._config.kafka, config, at_most=at_most, without_realtime=True)

    def _handle(self, records: DataFrame, known: registries.Source) -> None:
        _require_current(self._reruns, is_current=self._size == self._context.sizing.now())
        tools = self._tools.stamped(self._context.sizing.workers())
        suppressed, work_log = self._context.suppressed.current(), self._reruns.work_log
        task_context.run(
            deliver_events.deliver(records, tools, known, self._size.tasks, suppressed=suppressed, work_log=work_log)
        )
        self._context.record(self._seen.publish())


class _Stateful:
    """What the lanes that keep state have in context."""

    NAME: ClassVar[str]
    JOURNAL: ClassVar[type[CompletedWorkLog]] = FastLaneLog

    def __init__(
        self, config: settings.Settings, spark: SparkSession, acquire: Acquire, stop: threading.Event, context: LaneContext
    ) -> None:
        name, area = self.NAME, config.batch if self.NAME == "batch" else config.retry
        self._config, self._acquire, self._stop, self._context = config, acquire, stop, context
        self._spark = shards.session(spark, area.shards)
        self._interval_s = area.trigger_interval_s
        self._seen = telemetry.Telemetry(spark.sparkContext, name, config.logs)
        self._tools = _tools(config, self._seen)
        self._pending = spark.sparkContext.accumulator(Pending(), observer.PendingParam())
        self._waker = wakeups.Waker(config, name, stop)
        shards.require_kept(spark, config.spark.checkpoint, name, area.shards)
        self._shard_keys = shards.keys(spark, area.shards)
        self._reruns = recovery.Reruns(config, spark, name, self.JOURNAL)
        self._starts = 0
        """Since a micro-batch was handled."""
        self._size = context.sizing.now()

    def _run(
        self,
        planned: Callable[[], DataFrame | None],
        handle: Callable[[DataFrame, registries.RefreshedSource], None],
        watch: health.Watch,
        *,
        once: bool,
    ) -> None:
        if once:
            self._waker.wake()  # so that a micro-batch comes, and what is due by now leaves, also when there are no records
        else:
            self._waker.start()
        lane = streaming_lane.Lane(
            self.NAME,
            acquire=self._acquire,
            handle=handle,
            stop=self._stop,
            watch=watch,
            is_kafka_back=functools.partial(outage.is_over, self._config.kafka),
            on_begin=self._reruns.begin,
            is_woken=True,
        )
        lane.run(planned, self._config.spark, self._interval_s, once=once)

    def _begin_anew(self) -> None:
        self._reruns.load()
        self._size = self._context.sizing.now()
        self._pending.value = Pending()  # which a micro-batch that was broken off has told a part of

    def _deliver(self, due: DataFrame) -> None:
        """Run the tasks that deliver. Raise StartAgain where an executor ended with rows that they were to read."""
        try:
            with self._context.sizing.shuffles.in_use():
                task_context.run(due)
        except task_context.RowsLost:
            self._starts += 1
            if self._starts > MOST_STARTS:
                raise
            log.warning("lane %s restarts after the loss of an executor, and repeats only what has no result", self.NAME)
            self._stop.wait(LAST_TASKS_S)
            raise streaming_lane.StartAgain from None
        self._starts = 0

    def _waits(self) -> Pending | None:
        """Return what waits now, and see to it that the lane is woken for it."""
        told, self._pending.value = self._pending.value, Pending()
        if told.shards < len(self._shard_keys):  # a micro-batch without a single partition asks none of them
            return None
        self._waker.update(told)
        return told


class Batch(_Stateful):
    """Route to shards, keep in state, deliver what leaves."""

    NAME = "batch"
    _delta: task_delta.TaskDelta

    def __init__(
        self,
        config: settings.Settings,
        spark: SparkSession,
        acquire: Acquire,
        stop: threading.Event,
        context: LaneContext,
        *,
        rejects: bool,
    ) -> None:
        super().__init__(config, spark, acquire, stop, context)
        self._rejects = rejects

    def run(self, watch: health.Watch, *, once: bool) -> None:
        """As Lane."""
        self._run(self._planned, self._handle, watch, once=once)

    def _planned(self) -> DataFrame | None:
        self._begin_anew()
        known = self._acquire()
        if known is None:
            return None
        self._delta = task_delta.TaskDelta(self._spark.sparkContext, known)
        ticks_topic = self._config.batch.ticks_topic
        at_most = self._config.batch.max_events_per_micro_batch * self._size.executors
        records = source.read(self._spark, self._config.kafka, self._config.source, at_most=at_most, beside=ticks_topic)
        return self._routed(records.where(records.topic != ticks_topic))

    def _routed(self, records: DataFrame) -> DataFrame:
        early_s = self._interval_s * TRIGGERS_EARLY
        routed = route.route(
            records,
            self._tools,
            self._delta.source,
            self._size.tasks,
            shard_keys=self._shard_keys,
            immediate_flush_s=early_s,
            rejects=self._rejects,
        )
        return batch_shard.batch(routed, round(early_s * 1000), self._pending, self._tools)

    def _handle(self, left: DataFrame, known: registries.RefreshedSource) -> None:
        is_current = self._size == self._context.sizing.now() and self._delta.fits(known)
        _require_current(self._reruns, is_current=is_current)
        self._delta.publish(known)
        tools = self._tools.stamped(self._context.sizing.workers())
        suppressed, work_log = self._context.suppressed.current(), self._reruns.work_log
        self._deliver(
            deliver_batches.deliver_batches(left, tools, known, self._size.tasks, suppressed=suppressed, work_log=work_log)
        )
        self._context.record(self._seen.publish())
        self._waits()


class Retry(_Stateful):
    """Keep what failed in state, let it leave by its endpoint's schedule, deliver it once more."""

    NAME = "retry"
    JOURNAL = RetryLaneLog
    _waits_for_all = False

    def run(self, watch: health.Watch, *, once: bool) -> None:
        """As Lane."""
        self._waits_for_all = once  # there is no later micro-batch for late answers
        self._run(self._planned, self._handle, watch, once=once)

    def _planned(self) -> DataFrame:
        self._begin_anew()
        records = source.read_retries(self._spark, self._config, executors=self._size.executors)
        return self._kept(records.where(records.topic == self._config.delivery.retries_topic))

    def _kept(self, records: DataFrame) -> DataFrame:
        return retry_shard.take_leases(
            records,
            worker_plans.retry_policy(self._config.retry),
            round(self._interval_s * 1000),
            self._pending,
            self._tools,
            parallelism=self._size.tasks,
            shard_keys=self._shard_keys,
        )

    def _handle(self, left: DataFrame, known: registries.RefreshedSource) -> None:
        _require_current(self._reruns, is_current=self._size == self._context.sizing.now())
        settle_s = WHOLE_TURN_S if self._waits_for_all else self._config.retry.settle_s
        tools, work_log = self._tools.stamped(self._context.sizing.workers()), self._reruns.work_log
        self._deliver(
            deliver_retries.deliver_leases(left, tools, known, self._size.tasks, settle_s=settle_s, work_log=work_log)
        )
        self._context.record(self._seen.publish())
        if (told := self._waits()) is not None:
            self._context.suppressed.set_failing(told.suppressed)
            metrics.HELD_ENDPOINTS.set(len(told.suppressed))
            metrics.FAILING_ENDPOINTS.set(len(told.failing))
            failing = self._context.network.failing(told.failing, self._config.retry.disable_after_s)
            if failing:
                self._context.disable(failing, FAILING)


class Registry(Protocol):
    """The registry on the driver, broadcast or looked up."""

    def source(self, context: SparkContext, lane: str, /) -> registries.RefreshedSource | None:
        """Return what the next micro-batch of a lane routes by. Waits while the registry is too old; None: the job stops."""


def acquirers(
    names: Collection[str], registry: Registry, network: Network, spark: SparkSession, stop: threading.Event
) -> dict[str, Acquire]:
    """Return for each lane what gives it the registry, and makes it wait while our own network is broken."""
    sources: dict[str, Acquire] = {name: functools.partial(registry.source, spark.sparkContext, name) for name in names}
    return {name: network.pausing(source, stop) for name, source in sources.items()}


def build(
    config: settings.Settings, spark: SparkSession, acquire: Mapping[str, Acquire], stop: threading.Event, context: LaneContext
) -> dict[str, Lane]:
    """Return the lanes that are to run: those that have a `hold`."""
    lanes: dict[str, Lane] = {}
    if "direct" in acquire:
        lanes["direct"] = Direct(config, spark, acquire["direct"], stop, context)
    if "batch" in acquire:
        lanes["batch"] = Batch(config, spark, acquire["batch"], stop, context, rejects="direct" not in acquire)
    if "retry" in acquire:
        lanes["retry"] = Retry(config, spark, acquire["retry"], stop, context)
    return lanes


def run(lanes: Mapping[str, Lane], watches: Mapping[str, health.Watch], stop: threading.Event, *, once: bool) -> None:
    """Run all lanes, each on its thread, until they end; raise what ended the first that failed."""
    failures: list[BaseException] = []

    def run_one(name: str, lane: Lane) -> None:
        SparkSession.active().sparkContext.setLocalProperty("spark.scheduler.pool", name)
        try:
            lane.run(watches[name], once=once)
        except BaseException as failure:  # noqa: BLE001  # raised below, on the thread that waits for all
            failures.append(failure)
        finally:
            if failures or not once:
                stop.set()

    threads = [InheritableThread(run_one, args=(name, lane), name=f"lane {name}") for name, lane in lanes.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def drain_workers(config: settings.Settings, spark: SparkSession, lanes: Mapping[str, Lane]) -> None:
    """Let what goes on in the workers end, when the lanes have. Never raises: it only saves repeats."""
    if not lanes:  # only the real-time lane ran, and its tasks have waited
        return
    tools = _tools(config, telemetry.Telemetry(spark.sparkContext, "rest", config.logs))
    try:
        drain.drain_workers(spark, tools, config.delivery.stop_within_s)
    except Exception as failure:  # noqa: BLE001  # whatever it is, all lanes have ended well
        log.warning("background attempts in the workers could not be awaited, and the next start may repeat them: %s", failure)


def _require_current(reruns: recovery.Reruns, *, is_current: bool) -> None:
    """Raise StartAgain where the plan of the query is not current any more, before anything of its micro-batch is done.

    The number of executors is in a plan: the tasks, and the bound of events. And Spark gives each shard's task to the executor
    that had it last; only a query that is planned anew spreads the shards over executors that have come.
    """
    if not is_current:
        reruns.mark_untouched()
        raise streaming_lane.StartAgain


def _tools(config: settings.Settings, seen: telemetry.Telemetry) -> task_context.Tools:
    """Return what each task of a lane is given."""
    writing = sink.to(kafka_clients.for_librdkafka(config.kafka))
    return task_context.Tools(plan=worker_plans.of(config), observe=seen.observer, sink=writing)
