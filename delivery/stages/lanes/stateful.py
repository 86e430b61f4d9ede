"""Run a lane that keeps shards in Spark's state: the part that the batch lane and the retry lane share.

Runs on the driver.
"""

from __future__ import annotations

import abc
import functools
import logging
import threading
from collections.abc import Callable
from typing import ClassVar

from pyspark.sql import DataFrame, SparkSession

from delivery.config import lane_areas, settings
from delivery.observability import health
from delivery.stages.checkpoint import paused_topics, recovery, shards
from delivery.stages.kafka import kafka_outage, wakeups
from delivery.stages.lanes import lane_context, streaming_lane, telemetry
from delivery.stages.lanes.streaming_lane import Result
from delivery.stages.tasks import observer, task_context
from delivery.webhooks.results.completed_work import CompletedWorkLog, FastLaneLog
from delivery.webhooks.routing import registries
from delivery.webhooks.state.backlog import ShardBacklog

log = logging.getLogger(__name__)

MOST_RESTARTS = 3
"""Consecutive restarts of a query after lost executors. At the next loss the lane fails."""


class StatefulLane(abc.ABC):
    """Base class of the batch lane and the retry lane: state, wake-ups, and restarts after lost executors.

    The constructor raises the errors of wakeups.Waker and of shards.require_kept.
    """

    NAME: ClassVar[str]
    """Name of the lane, and of its settings area."""
    COMPLETED_WORK_LOG: ClassVar[type[CompletedWorkLog]] = FastLaneLog
    """The class that interprets result records: it finds which deliveries of an interrupted micro-batch had ended."""

    def __init__(
        self,
        config: settings.Settings,
        spark: SparkSession,
        acquire: lane_context.Acquire,
        stop: threading.Event,
        context: lane_context.LaneContext,
    ) -> None:
        name, area = self.NAME, self.area_of(config)
        self._config, self._acquire, self._stop, self._context = config, acquire, stop, context
        self._spark = shards.session(spark, area.shards)
        self._interval_s = area.trigger_interval_s
        self._seen = telemetry.Telemetry(spark.sparkContext, name, config.logs)
        self._tools = lane_context.task_tools(config, self._seen)
        self._pending = spark.sparkContext.accumulator(ShardBacklog(), observer.PendingParam())
        self._waker = wakeups.Waker(config, name, area, stop)
        shards.require_kept(spark, config.spark.checkpoint, name, area.shards)
        self._shard_keys = shards.keys(spark, area.shards)
        self._reruns = recovery.Reruns(config, spark, name, self.COMPLETED_WORK_LOG)
        self._restarts = 0
        """Restarts after lost executors since the last complete micro-batch."""
        self._size = context.sizing.now()
        self._batch_id = -1
        """Number of the present micro-batch."""
        self._due_ms: int | None = None
        """Due time of the last backlog that the shards reported (ShardBacklog)."""

    @staticmethod
    @abc.abstractmethod
    def area_of(config: settings.Settings) -> lane_areas.LaneArea:
        """Return the settings area of the lane, with its shards, its interval and its wake-up topic."""

    def _run(
        self,
        planned: Callable[[], DataFrame | None],
        handle: Callable[[DataFrame, registries.RefreshedSource], Result],
        watch: health.Watch,
        *,
        once: bool,
        paused: paused_topics.PausedTopics | None = None,
        records_of: Callable[[int], int] | None = None,
    ) -> None:
        if once:
            self._waker.wake()  # a micro-batch comes and due entries leave, even without records
        else:
            self._waker.start()
        lane = streaming_lane.StreamingLane(
            self.NAME,
            acquire=self._acquire,
            handle=handle,
            stop=self._stop,
            watch=watch,
            is_kafka_back=functools.partial(kafka_outage.is_over, self._config),
            on_begin=functools.partial(self._begin, paused),
            is_woken=True,
            paused=paused,
            stalled_after_s=self._config.metrics.stalled_after_s,
            records_of=records_of,
        )
        lane.run(planned, self._config.spark, self._interval_s, once=once)

    def _begin(self, paused: paused_topics.PausedTopics | None, batch_id: int) -> None:
        self._batch_id = batch_id
        self._seen.begin()
        self._reruns.begin(batch_id, is_pausing=paused is not None and paused.is_pausing)

    def _prepare_plan(self) -> None:
        self._reruns.load()
        self._size = self._context.sizing.now()
        self._pending.value = ShardBacklog()  # an interrupted micro-batch may have reported a part

    def _deliver(self, due: DataFrame) -> Result:
        """Run the tasks that deliver, and return COMMITTED.

        If an executor ended with shuffled rows that the tasks had to read, return REPLAN: the lane restarts its query. After
        MOST_RESTARTS such restarts without a complete micro-batch between them, raise RowsLost instead. Raise Spark's error if
        a task failed.
        """
        try:
            with self._context.sizing.shuffles.in_use():
                task_context.run(due)
        except task_context.RowsLost:
            self._restarts += 1
            if self._restarts > MOST_RESTARTS:
                raise
            log.warning(
                "an executor ended, and lane %s lost rows with it: the lane restarts, and repeats deliveries without a result. "
                "If the number of tasks has changed, lane batch may also repeat accepted events, in other batches. If "
                "executors end often, check their memory and the cluster manager", self.NAME,
            )  # fmt: skip
            self._stop.wait(lane_context.LAST_TASKS_S)
            return Result.REPLAN
        self._restarts = 0
        return Result.COMMITTED

    def _take_backlog(self) -> ShardBacklog | None:
        """Return the backlog of all shards after a micro-batch, and schedule the lane's next wake-up.

        None: the micro-batch had no input partitions, so the shards did not report. The earlier schedule stays.
        """
        backlog, self._pending.value = self._pending.value, ShardBacklog()
        if backlog.shards < len(self._shard_keys):  # a micro-batch without input partitions asks no shard
            return None
        self._due_ms = backlog.due_ms
        self._waker.update(backlog)
        return backlog
