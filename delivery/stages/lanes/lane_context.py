"""Hold the state that the lanes of one application share, and build the values that their tasks need.

Runs on the driver. Each lane calls this code on its own thread.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from delivery.config import kafka_clients, plan_builder, settings
from delivery.observability import health
from delivery.observability.clock_check import ClockCheck
from delivery.registry_model import Disable
from delivery.stages.checkpoint import paused_topics, recovery
from delivery.stages.kafka import event_writer, kafka_outage, sink
from delivery.stages.lanes import telemetry
from delivery.stages.lanes.network_outage import Network
from delivery.stages.lanes.unhealthy_endpoints import UnhealthyEndpoints
from delivery.stages.scaling import size
from delivery.stages.tasks import observer, task_context
from delivery.webhooks.lanes import worker_plan
from delivery.webhooks.policy import error_classes
from delivery.webhooks.routing import registries

LAST_TASKS_S = 3.0
"""Seconds that a lane waits before it restarts after a failed Spark job, whose tasks may still run. Spark ends their workers
after `spark.python.task.killTimeout`, 2 s."""
Acquire = Callable[[], registries.RefreshedSource | None]
"""A lane's function that returns the registry for the next micro-batch. It may wait. None: the job is asked to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneContext:
    """The state that the lanes of one application share."""

    unhealthy: UnhealthyEndpoints
    network: Network
    """The state of our own network: while it is broken, all lanes pause."""
    disable: Disable
    sizing: size.Sizing
    """The number of executors and tasks for which the lanes plan."""
    clocks: ClockCheck = field(default_factory=ClockCheck)
    """Logs a warning when a worker's clock differs from the driver's clock."""

    def record(self, report: telemetry.WorkerReport) -> None:
        """Apply a report of the workers.

        Called after each micro-batch. The real-time lane calls it ten times a second, with the reports that have arrived since.

        1. Our network is broken, or works again: pause or resume all lanes.
        2. A worker's clock differs from the driver's: log a warning, if none was logged recently.
        3. Endpoints are late or unresponsive, and our network is not broken: name these endpoints to all workers, and suppress
           the unresponsive endpoints.
        4. Endpoints are gone: request to disable them.
        """
        self.network.record(report.counters.reach)
        self.clocks.record(report.counters.clock_ahead_s)
        if not self.network.is_broken:
            self.unhealthy.add_late(report.late)
            self.unhealthy.add_unresponsive(report.unresponsive)
        if report.gone:
            self.disable(report.gone, error_classes.GONE)


def create(config: settings.Settings, network: Network, disable: Disable, sizing: size.Sizing) -> LaneContext:
    """Return the shared state for the lanes of one application."""
    unhealthy = UnhealthyEndpoints(config.delivery.attempt_timeout_s)
    return LaneContext(unhealthy=unhealthy, network=network, disable=disable, sizing=sizing)


def task_tools(config: settings.Settings, seen: telemetry.Telemetry) -> task_context.Tools:
    """Return the tools for the tasks of the direct, batch or retry lane, by the settings. `seen` counts their results."""
    return tools_of(config, plan_builder.plan_of(config), seen.observer)


def tools_of(
    config: settings.Settings, plan: worker_plan.Plan, observe: observer.Observer, workers: int | None = None
) -> task_context.Tools:
    """Return the tools for tasks with this plan that report to `observe`, and write to the Kafka of `config`.

    `workers` is the number of worker processes that share the limits of a host or endpoint. None: `Tools.stamped` sets it for
    each micro-batch.
    """
    client = kafka_clients.for_librdkafka(config.kafka)
    return task_context.Tools(
        plan=plan, observe=observe, sink=sink.to(client), write_events=event_writer.to(client), workers=workers
    )


def paused_topics_of(
    config: settings.Settings, spark: SparkSession, lane: str, watch: health.Watch, stop: threading.Event
) -> paused_topics.PausedTopics:
    """Return the PausedTopics of one lane, at first without a topic. The lane leaves out the topics that are paused later."""
    folder = f"{config.spark.checkpoint.rstrip('/')}/{lane}"
    is_answering = functools.partial(kafka_outage.schema_registry_answers, config.schema_registry)
    return paused_topics.PausedTopics(spark, folder, watch, stop, is_answering)


def confirm_plan(reruns: recovery.Reruns, *, is_current: bool) -> bool:
    """Return `is_current`. If it is False, the plan of the lane's query no longer fits, and the lane restarts its query.

    In each lane, a plan must fit the number of executors. In the direct and batch lanes it must also fit the paused topics, and
    in the batch lane the registry too.

    If it is False, also record in `reruns` that nothing of the micro-batch was sent. The micro-batch runs again with the new
    plan. A plan contains the number of executors: in the number of tasks, and in the limit of events. In a lane with state,
    Spark also runs each shard (a key of the state) on the executor that ran it last. Spark spreads the shards over new
    executors only with a new plan.
    """
    if not is_current:
        reruns.mark_untouched()
    return is_current
