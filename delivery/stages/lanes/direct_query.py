"""Run the direct lane: route and deliver events in the same task, without Spark's state.

Runs on the driver.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from delivery.config import kafka_clients, settings
from delivery.observability import health
from delivery.stages.checkpoint import paused_topics, recovery
from delivery.stages.kafka import kafka_outage, offset_ranges, record_reader, topic_source
from delivery.stages.kafka.offset_ranges import RecordRange
from delivery.stages.lanes import lane_context, streaming_lane, telemetry
from delivery.stages.lanes.lane_context import Acquire, LaneContext
from delivery.stages.lanes.streaming_lane import Result
from delivery.stages.tasks import deliver_events, task_context
from delivery.webhooks.routing import registries


class DirectQuery:
    """The direct lane: its tasks read events, route them, and deliver them at once."""

    _paused: paused_topics.PausedTopics

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
        self._planned_offsets = offset_ranges.PlannedOffsets(spark, "direct")
        takes_apart = config.source.batch_records == "taken_apart"  # the records of a batch's events get the batch's key
        self._read = record_reader.to(kafka_clients.for_reading(config.kafka), with_keys=takes_apart)
        self._records: dict[int, int] = {}
        """Number of handled records of each committed micro-batch that Spark has not reported yet."""
        self._batch_id = -1
        """Number of the present micro-batch."""

    def run(self, watch: health.Watch, *, once: bool) -> None:
        """Warm up the workers, then run until the job is asked to stop.

        With `once`, run without the warm-up, until all records that are in Kafka now are handled.
        """
        if not once and (known := self._acquire()) is not None:
            self._size = self._context.sizing.now()  # it may have changed during the wait for the registry
            self._deliver([()] * self._size.tasks, known)
        self._paused = lane_context.paused_topics_of(self._config, self._spark, "direct", watch, self._stop)
        lane = streaming_lane.StreamingLane(
            "direct",
            acquire=self._acquire,
            handle=self._handle,
            stop=self._stop,
            watch=watch,
            is_kafka_back=functools.partial(kafka_outage.is_over, self._config),
            on_begin=self._begin,
            paused=self._paused,
            stalled_after_s=self._config.metrics.stalled_after_s,
            records_of=lambda batch_id: self._records.pop(batch_id, 0),
        )
        config = self._config.spark
        lane.run(self._planned, config, config.trigger_interval_s, once=once)

    def _begin(self, batch_id: int) -> None:
        self._batch_id = batch_id
        self._seen.begin()
        self._reruns.begin(batch_id, is_pausing=self._paused.is_pausing)

    def _planned(self) -> DataFrame:
        left_out = self._paused.topics_to_leave_out()
        self._reruns.load()
        self._size = self._context.sizing.now()
        config = self._config.source
        at_most = config.max_events_per_batch * self._size.executors
        return topic_source.read(
            self._spark, self._config.kafka, config, at_most=at_most, without_realtime=True, without=left_out
        )

    def _handle(self, _: DataFrame, known: registries.RegistrySource) -> Result:
        is_current = self._size == self._context.sizing.now() and not self._paused.must_replan
        if not lane_context.confirm_plan(self._reruns, is_current=is_current):
            return Result.REPLAN
        assignments = offset_ranges.divided(self._planned_offsets.ranges(), self._size.tasks)
        report = self._deliver(assignments or [()], known)
        self._records[self._batch_id] = report.counters.records
        self._paused.note(self._batch_id, report.paused)
        return Result.COMMITTED

    def _deliver(
        self, assignments: Sequence[Sequence[RecordRange]], known: registries.RegistrySource
    ) -> telemetry.WorkerReport:
        context, tools = self._spark.sparkContext, self._tools.stamped(self._context.sizing.workers())
        unhealthy, work_log = self._context.unhealthy.current(), self._reruns.work_log
        task_context.run(
            deliver_events.deliver(context, assignments, tools, known, self._read, unhealthy=unhealthy, work_log=work_log)
        )
        report = self._seen.publish()
        self._context.record(report)
        return report
