"""Run the retry lane: keep postponed deliveries in Spark's state, lease the due deliveries, attempt them again.

Runs on the driver. A shard is one key of Spark's state. It holds the retry entries of some endpoints. A FIFO is the queue of
entries of one endpoint, or of one order key. A lease holds those entries of one FIFO that a worker attempts now, or ends
without an attempt.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from delivery.config import plan_builder, settings
from delivery.observability import health, metrics
from delivery.registry_model import FAILING, AttemptedEndpoint
from delivery.stages.kafka import topic_source
from delivery.stages.lanes import lane_context
from delivery.stages.lanes.stateful import StatefulLane
from delivery.stages.lanes.streaming_lane import Result
from delivery.stages.tasks import deliver_retries, retry_shard
from delivery.webhooks.results.completed_work import RetryLaneLog
from delivery.webhooks.routing import registries
from delivery.webhooks.state.backlog import ShardBacklog

WHOLE_LEASE_S = 300.0
"""Seconds that a task waits for its leases with `once`: longer than any lease lasts."""


class RetryQuery(StatefulLane):
    """The retry lane: its shards keep postponed deliveries, and its tasks attempt the due deliveries."""

    NAME = "retry"
    COMPLETED_WORK_LOG = RetryLaneLog
    _waits_for_all = False

    @staticmethod
    def area_of(config: settings.Settings) -> settings.RetrySettings:
        """Return the settings area of the lane."""
        return config.retry

    def run(self, watch: health.Watch, *, once: bool) -> None:
        """Run until the job is asked to stop.

        With `once`, run until all records that are in Kafka now are handled and all leases have ended.
        """
        self._waits_for_all = once  # no later micro-batch could report leases that end late
        self._run(self._planned, self._handle, watch, once=once)

    def _planned(self) -> DataFrame:
        self._prepare_plan()
        records = topic_source.read_retries(self._spark, self._config, executors=self._size.executors)
        return self._leased(records.where(records.topic == self._config.delivery.retries_topic))

    def _leased(self, records: DataFrame) -> DataFrame:
        return retry_shard.take_leases(
            records,
            plan_builder.retry_policy(self._config.retry),
            round(self._interval_s * 1000),
            self._pending,
            self._tools,
            topic=self._config.delivery.retries_topic,
            parallelism=self._size.tasks,
            shard_keys=self._shard_keys,
        )

    def _handle(self, leases: DataFrame, known: registries.RefreshedSource) -> Result:
        if not lane_context.confirm_plan(self._reruns, is_current=self._size == self._context.sizing.now()):
            return Result.REPLAN
        settle_s = WHOLE_LEASE_S if self._waits_for_all else self._config.retry.settle_s
        tools, work_log = self._tools.stamped(self._context.sizing.workers()), self._reruns.work_log
        tasks = deliver_retries.deliver_leases(leases, tools, known, self._size.tasks, settle_s=settle_s, work_log=work_log)
        if (result := self._deliver(tasks)) is not Result.COMMITTED:
            return result
        self._context.record(self._seen.publish())
        if (backlog := self._take_backlog()) is not None:
            self._apply(backlog)
        return result

    def _apply(self, backlog: ShardBacklog) -> None:
        """Suppress in all lanes the endpoints that the shards suppress, and disable the endpoints that failed for too long."""
        self._context.unhealthy.set_reported(backlog.suppressed, backlog.watched)
        metrics.HELD_ENDPOINTS.set(len(backlog.suppressed))
        metrics.FAILING_ENDPOINTS.set(len(backlog.failing))
        failing = self._context.network.failing(backlog.failing, self._config.retry.disable_after_s)
        if failing:
            self._context.disable(map(AttemptedEndpoint, failing), FAILING)
