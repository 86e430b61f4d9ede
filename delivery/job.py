"""The job's table of contents. Runs on the driver.

    direct  Kafka topics ─► source ─► deliver (route, sign, send) ─► sink ─► attempts · dead letters · rejected events
    batch   Kafka topics ─► source ─► route ─► batch (state) ─► deliver_batches ─► sink ─► the same
    retry   retries topic ─► source ─► retries (state) ─► deliver_turns ─► sink ─► the same
    Postgres ─► snapshot or look-up ─▲                ticks ─▲

The command `fanout run` calls `run`; each name is a file in `delivery/stages/`, and `lanes` puts them together.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection

from delivery import plan, settings
from delivery.stages import disabling, lanes, lookup, session, snapshot, topics, watching
from delivery.stages.checkpoint import lock
from delivery.stages.network import Network
from delivery.stages.realtime import lane as realtime_lane
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
    plan.warn_of_open_guard(config.delivery)
    registry = (lookup.Lookups if config.snapshot.source == "lookup" else snapshot.Broadcasts)(config, stop=stop)
    network = Network()
    watches = watching.begin(config, names, (mine.hold_reason, network.hold_reason, registry.hold_reason), stop)
    topics.ensure_all(config)
    with mine.held(stop) as is_held:
        if not is_held:
            return  # asked to stop while it waited
        with (
            session.running(config.spark, libraries, executors.conf(policy)) as spark,
            disabling.running(config, stop) as disabler,
            controller.running(policy, spark.sparkContext, watches, config, stop) as sizing,
        ):
            hold = lanes.holds(names, registry, network, spark.sparkContext, stop)
            common = lanes.common(config, network, disabler.disable, sizing)
            made = lanes.made(config, spark, hold, stop, common)
            fast = realtime_lane.made(config, spark, registry, common, stop=stop, names=names)
            lanes.run(made | fast, watches, stop, once=once)
            lanes.rest(config, spark, made)
    log.info("stopped in order: %s", HANDLED if once else COMMITTED)
