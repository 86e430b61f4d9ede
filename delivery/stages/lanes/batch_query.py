"""Run the batch lane: route events to shards, keep the events in Spark's state, deliver due batches.

Runs on the driver. A shard is one key of Spark's state. It holds the pending batches of some endpoints.
"""

from __future__ import annotations

import threading
import time

from pyspark.sql import DataFrame, SparkSession

from delivery.config import kafka_clients, settings
from delivery.observability import health
from delivery.stages.checkpoint import paused_topics
from delivery.stages.checkpoint.offset_log import Positions
from delivery.stages.kafka import offset_ranges, record_reader, topic_source
from delivery.stages.lanes import lane_context
from delivery.stages.lanes.lane_context import Acquire, LaneContext
from delivery.stages.lanes.stateful import StatefulLane
from delivery.stages.lanes.streaming_lane import Result
from delivery.stages.registry import task_delta
from delivery.stages.tasks import batch_shard, collect_segments, deliver_batches
from delivery.webhooks.routing import registries

TRIGGERS_EARLY = 2
"""Most trigger intervals by which a batch may leave before its due time. With 0, a batch would always leave late: in the first
micro-batch after its due time."""


class BatchQuery(StatefulLane):
    """The batch lane.

    `direct_from` has the positions at which the direct lane of the same job continues. None: the job runs no direct lane, or
    the direct lane's first offset is unknown. The positions decide which rejected records this lane reports
    (`collect_segments.RouteAssignment.direct_from`).
    """

    NAME = "batch"
    _delta: task_delta.TaskDelta
    _paused: paused_topics.PausedTopics

    def __init__(
        self,
        config: settings.Settings,
        spark: SparkSession,
        acquire: Acquire,
        stop: threading.Event,
        context: LaneContext,
        *,
        direct_from: Positions | None,
    ) -> None:
        super().__init__(config, spark, acquire, stop, context)
        self._direct_from = direct_from
        for name, value in topic_source.PRUNED_SOURCE.items():
            self._spark.conf.set(name, value)
        self._planned_offsets = offset_ranges.PlannedOffsets(self._spark, self.NAME)
        # The records come in the order of the ranges, so that a micro-batch that runs again forms the same batches.
        self._read = record_reader.to(kafka_clients.for_reading(config.kafka), in_order=True)
        self._records: dict[int, int] = {}
        """Number of records and wake-ups of each committed micro-batch. An entry is removed when Spark reports the
        micro-batch's progress."""

    @staticmethod
    def area_of(config: settings.Settings) -> settings.BatchSettings:
        """Return the settings area of the lane."""
        return config.batch

    def run(self, watch: health.Watch, *, once: bool) -> None:
        """Run until the job is asked to stop, or with `once` until all records that are in Kafka now are handled.

        With `once`, batches that are due when these records are handled are delivered. The other batches stay in the state. A
        micro-batch sends at most 64 MiB of a shard (`batcher.BatchingBounds.max_sent_bytes`), so the query starts again while
        batches are still due.
        """
        self._run_query(watch, once=once)
        handled_ms = time.time() * 1000
        while once and not self._stop.is_set() and self._due_ms is not None and self._due_ms <= handled_ms:
            self._due_ms = None  # without a further micro-batch, the lane ends
            self._run_query(watch, once=once)

    def _run_query(self, watch: health.Watch, *, once: bool) -> None:
        self._paused = lane_context.paused_topics_of(self._config, self._spark, self.NAME, watch, self._stop)
        self._run(
            self._planned,
            self._handle,
            watch,
            once=once,
            paused=self._paused,
            records_of=lambda batch_id: self._records.pop(batch_id, 0),
        )

    def _planned(self) -> DataFrame | None:
        left_out = self._paused.topics_to_leave_out()
        self._prepare_plan()
        known = self._acquire()
        if known is None:
            return None
        self._delta = task_delta.TaskDelta(self._spark.sparkContext, known)
        batch = self._config.batch
        at_most = batch.max_events_per_micro_batch * self._size.executors
        offsets = topic_source.read(
            self._spark, self._config.kafka, self._config.source, at_most=at_most, beside=batch.ticks_topic, without=left_out
        )
        return self._routed(topic_source.task_numbers(offsets, self._size.tasks))

    def _routed(self, numbers: DataFrame) -> DataFrame:
        early_s = self._interval_s * TRIGGERS_EARLY
        routed = collect_segments.route(
            numbers,
            self._tools,
            self._delta.source,
            self._read,
            shard_keys=self._shard_keys,
            immediate_flush_s=early_s,
            direct_from=self._direct_from,
        )
        return batch_shard.batch(routed, round(early_s * 1000), self._pending, self._tools)

    def _handle(self, batches: DataFrame, known: registries.RefreshedSource) -> Result:
        is_current = self._size == self._context.sizing.now() and self._delta.fits(known) and not self._paused.must_replan
        if not lane_context.confirm_plan(self._reruns, is_current=is_current):
            return Result.REPLAN
        self._delta.publish(known)
        wake_ups = self._send_ranges()
        tools = self._tools.stamped(self._context.sizing.workers())
        unhealthy, work_log = self._context.unhealthy.current(), self._reruns.work_log
        tasks = deliver_batches.deliver_batches(batches, tools, known, self._size.tasks, unhealthy=unhealthy, work_log=work_log)
        if (result := self._deliver(tasks)) is Result.COMMITTED:
            report = self._seen.publish()
            self._context.record(report)
            self._records[self._batch_id] = report.counters.records + wake_ups
            self._paused.note(self._batch_id, report.paused)
            self._take_backlog()
        return result

    def _send_ranges(self) -> int:
        """Send the micro-batch's ranges of events to its tasks. Return the number of new wake-ups, which no task reads."""
        events, wake_ups = [], 0
        for found in self._planned_offsets.ranges():
            if found.topic == self._config.batch.ticks_topic:
                wake_ups += found.end - found.start
            else:
                events.append(found)
        offset_ranges.send(self._spark.sparkContext, offset_ranges.divided(events, self._size.tasks))
        return wake_ups
