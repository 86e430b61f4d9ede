"""Run the direct lane: route and deliver events in the same task, without Spark's state.

Runs on the driver.
"""

from __future__ import annotations

import functools
import threading

from pyspark.sql import DataFrame, SparkSession

from delivery.config import settings
from delivery.observability import health
from delivery.stages.checkpoint import recovery
from delivery.stages.kafka import outage, source
from delivery.stages.lanes import lane_context, streaming_lane, telemetry
from delivery.stages.lanes.lane_context import Acquire, LaneContext
from delivery.stages.lanes.streaming_lane import Result
from delivery.stages.tasks import deliver_events, task_context
from delivery.webhooks.routing import registries


class Direct:
    """The direct lane."""

    def __init__(
        self,
        config: settings.Settings,
        spark: SparkSession,
        acquire: Acquire,
        stop: threading.Event,
        context: LaneContext,
    ) -> None:
        self._config, self._spark, self._acquire, self._stop, self._context = config, spark, acquire, stop, context
        self._seen = telemetry.Telemetry(spark.sparkContext, "direct", config.logs)
        self._tools = lane_context.task_tools(config, self._seen)
        self._reruns = recovery.Reruns(config, spark, "direct")
        self._size = context.sizing.now()

    def run(self, watch: health.Watch, *, once: bool) -> None:
        """Warm up the workers, then run until the job is asked to stop.

        With `once`, run without the warm-up, until all records that are in Kafka now are handled.
        """
        if not once and (known := self._acquire()) is not None:
            self._size = self._context.sizing.now()  # it may have changed during the wait for the registry
            self._deliver(deliver_events.no_records(self._spark, self._size.tasks), known)
        lane = streaming_lane.Lane(
            "direct",
            acquire=self._acquire,
            handle=self._handle,
            stop=self._stop,
            watch=watch,
            is_kafka_back=functools.partial(outage.is_over, self._config),
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

    def _handle(self, records: DataFrame, known: registries.Source) -> Result:
        if not lane_context.confirm_plan(self._reruns, is_current=self._size == self._context.sizing.now()):
            return Result.REPLAN
        self._deliver(records, known)
        return Result.COMMITTED

    def _deliver(self, records: DataFrame, known: registries.Source) -> None:
        tools = self._tools.stamped(self._context.sizing.workers())
        suppressed, work_log = self._context.suppressed.current(), self._reruns.work_log
        task_context.run(
            deliver_events.deliver(records, tools, known, self._size.tasks, suppressed=suppressed, work_log=work_log)
        )
        self._context.record(self._seen.publish())
