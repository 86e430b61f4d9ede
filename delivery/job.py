"""The job's table of contents. `fanout run` calls `run`, on the driver.

Each name between two arrows is a file below `delivery/stages/`. `lanes/` and `realtime/` connect the stages.
    direct    event topics ─► topic_source, record_reader ─► deliver_events ─► sink ─► attempts, dead letters, rejected, retries
    batch     event topics ─► topic_source ─► collect_segments ─► batch_shard ─► deliver_batches ─► sink ─► the same topics
    retry     retries topic ─► topic_source ─► retry_shard ─► deliver_retries ─► sink ─► the same topics
    realtime  topics of source.realtime_pattern ─► realtime_source ─► deliver_realtime ─► sink ─► the same topics
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection

from delivery import job_lanes
from delivery.config import plan_builder, settings
from delivery.stages.checkpoint_lock import lock
from delivery.stages.kafka import topics
from delivery.stages.lanes import lane_context, network_outage, session, supervisor, watching
from delivery.stages.registry import job_registry, registry_sources
from delivery.stages.scaling import controller, executor_absence, executors

log = logging.getLogger(__name__)


def run(
    config: settings.Settings,
    *,
    access: job_registry.JobRegistry,
    libraries: session.Libraries,
    stop: threading.Event,
    names: Collection[str] | None = None,
    once: bool = False,
) -> None:
    """Run lanes `names` (None: `default_names`) until `stop` is set, or with `once` until all present records are handled."""
    policy, named = controller.policy_of(config), names or job_lanes.LANES
    names = job_lanes.names_to_run(config, names)
    checkpoint, network, absence = lock.Lock(config.spark, names), network_outage.Network(), executor_absence.ExecutorAbsence()
    plan_builder.warn_of_open_guard(config.delivery)
    registry = registry_sources.source(config, access, stop)
    watches = watching.begin(config, names, (checkpoint, absence, network, registry), stop)
    topics.prepare(config)
    with checkpoint.acquired(stop) as is_held:
        if not is_held:
            return
        with (
            session.running(config.spark, libraries, executors.conf(policy)) as spark,
            absence.watching(spark.sparkContext, stop),
            access.disabling(stop) as disable,
            controller.running(policy, spark.sparkContext, watches, config, stop) as sizing,
        ):
            shared = lane_context.create(config, network, disable, sizing)
            built = supervisor.build(config, spark, supervisor.acquirers(names, registry, network, spark, stop), stop, shared)
            realtime = job_lanes.build_realtime(config, spark, registry, shared, stop=stop, names=named, once=once)
            supervisor.run(built | realtime, watches, stop, once=once)
            ending = supervisor.ending(stop, once=once)
            in_batches = next((lane.micro_batch_session for lane in realtime.values()), None)
            supervisor.drain_workers(config, spark if built else None, in_batches)
    log.info("stopped gracefully: %s", ending)
