"""The job's table of contents. Runs on the driver.

    direct  Kafka topics ─► source ─► deliver (route, sign, send) ─► sink ─► attempts · dead letters · rejected events
    batch   Kafka topics ─► source ─► route ─► batch (state) ─► deliver_batches ─► sink ─► the same
    retry   retries topic ─► source ─► retries (state) ─► deliver_turns ─► sink ─► the same
    Postgres ─► snapshot or look-up ─▲                ticks ─▲

The command `fanout run` calls `run`; each name is a file in `delivery/stages/`, and `lanes` puts them together.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Collection

from delivery import health, plan, serving, settings
from delivery.stages import backlog, disabling, lanes, lookup, session, snapshot, topics
from delivery.stages.checkpoint import lock
from delivery.stages.held import Held
from delivery.stages.network import Network
from delivery.stages.scaling import controller, executors

log = logging.getLogger(__name__)
LANES = ("direct", "batch", "retry")
HANDLED = "all that was in Kafka at the start is handled"
COMMITTED = "every micro-batch that had begun is committed, and the next start goes on behind it"


def run(
    config: settings.Settings,
    *,
    libraries: session.Libraries,
    stop: threading.Event,
    names: Collection[str] = LANES,
    once: bool = False,
) -> None:
    """Deliver events in the lanes named until `stop` is set, or with `once` until all that is in Kafka now has been handled."""
    policy = controller.policy_of(config)
    mine = lock.Lock(config.spark, names)
    if opened := plan.opened_for_development(config.delivery):
        log.warning(plan.GUARD_IS_OPEN, opened)
    registry = (lookup.Lookups if config.snapshot.source == "lookup" else snapshot.Broadcasts)(config, stop=stop)
    network = Network()
    holds = mine.hold_reason, network.hold_reason, registry.hold_reason
    watches = {name: health.Watch(hold=lambda: next(filter(None, (one() for one in holds)), None), stop=stop) for name in names}
    serving.serve(config.metrics, watches)
    backlog.watch_all(config, watches, stop)
    topics.ensure_all(config)
    with mine.held(stop) as is_held:
        if not is_held:
            return  # asked to stop while it waited
        with (
            session.running(config.spark, libraries, executors.conf(policy)) as spark,
            disabling.running(config, stop) as disabler,
            controller.running(policy, spark.sparkContext, watches, config, stop) as sizing,
        ):
            source: dict[str, lanes.Hold] = {
                name: functools.partial(registry.source, spark.sparkContext, name) for name in names
            }
            hold = {name: network.holding(take, stop) for name, take in source.items()}
            held = Held(config.delivery.attempt_timeout_s)
            common = lanes.Common(held=held, network=network, disable=disabler.disable, sizing=sizing)
            lanes.run(lanes.made(config, spark, hold, stop, common), watches, stop, once=once)
            lanes.rest(config, spark)
    log.info("stopped in order: %s", HANDLED if once else COMMITTED)
