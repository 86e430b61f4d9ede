"""The job's table of contents. Runs on the driver.

    direct  event topics ─► source ─► deliver_events (route, sign, send) ─► sink ─► attempts, dead letters, rejected records
    batch   event topics ─► source ─► route ─► batch_shard (state) ─► deliver_batches ─► sink ─► the same
    retry   retries topic ─► source ─► retry_shard (state) ─► deliver_retries ─► sink ─► the same

`fanout run` calls `run`. Each name is a file below `delivery/stages/`; `lanes` connects them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection

from delivery.config import settings, worker_plans
from delivery.stages.checkpoint import lock
from delivery.stages.kafka import topics
from delivery.stages.lanes import lanes, session, watching
from delivery.stages.lanes.network_outage import Network
from delivery.stages.realtime import lane as realtime_lane
from delivery.stages.registry import endpoint_disabler, sources
from delivery.stages.scaling import controller, executors

log = logging.getLogger(__name__)
LANES = ("direct", "batch", "retry", realtime_lane.NAME)
HANDLED = "all that was in Kafka at the start is handled"
COMMITTED = "every micro-batch that had begun is committed, and the next start goes on behind it"


def run(
    config: settings.Settings,
    *,
    libraries: session.Libraries,
    stop: threading.Event,
    names: Collection[str] | None = None,
    once: bool = False,
) -> None:
    """Deliver events in the lanes named until `stop` is set, or with `once` until all that is in Kafka now has been handled."""
    policy, names = controller.policy_of(config), names or realtime_lane.default_names(config, LANES)
    mine = lock.Lock(config.spark, names)
    worker_plans.warn_of_open_guard(config.delivery)
    registry, network = sources.source(config, stop), Network()
    watches = watching.begin(config, names, (mine.hold_reason, network.hold_reason, registry.hold_reason), stop)
    topics.ensure_all(config)
    with mine.held(stop) as is_held:
        if not is_held:  # asked to stop while it waited
            return
        with (
            session.running(config.spark, libraries, executors.conf(policy)) as spark,
            endpoint_disabler.running(config, stop) as disabler,
            controller.running(policy, spark.sparkContext, watches, config, stop) as sizing,
        ):
            hold = lanes.holds(names, registry, network, spark.sparkContext, stop)
            common = lanes.common(config, network, disabler.disable, sizing)
            made = lanes.made(config, spark, hold, stop, common)
            fast = realtime_lane.made(config, spark, registry, common, stop=stop, names=names)
            lanes.run(made | fast, watches, stop, once=once)
            lanes.rest(config, spark, made)
    log.info("stopped in order: %s", HANDLED if once else COMMITTED)
