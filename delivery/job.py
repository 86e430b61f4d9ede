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
from delivery.stages import backlog, claim, disabling, lanes, lookup, session, snapshot, topics
from delivery.stages.held import Held
from delivery.stages.network import Network
from delivery.stages.realtime import lane as realtime_lane

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
    names = names or realtime_lane.default_names(config, LANES)
    claim.take(config.spark.checkpoint, names)
    if opened := plan.opened_for_development(config.delivery):
        log.warning(plan.GUARD_IS_OPEN, opened)
    registry = (lookup.Lookups if config.snapshot.source == "lookup" else snapshot.Broadcasts)(config, stop=stop)
    network = Network()
    watches = {name: health.Watch(hold=lambda: network.hold_reason() or registry.hold_reason(), stop=stop) for name in names}
    serving.serve(config.metrics, watches)
    for name, watch in watches.items():
        backlog.watch(config, name, watch, stop)
    topics.ensure_all(config)
    with session.running(config.spark, libraries) as spark, disabling.running(config, stop) as disabler:
        source: dict[str, lanes.Hold] = {name: functools.partial(registry.source, spark.sparkContext, name) for name in watches}
        hold = {name: network.holding(take, stop) for name, take in source.items()}
        common = lanes.Common(held=Held(config.delivery.attempt_timeout_s), network=network, disable=disabler.disable)
        made = lanes.made(config, spark, hold, stop, common)
        fast = realtime_lane.made(config, spark, registry, common, stop=stop, names=names)
        lanes.run(made | fast, watches, stop, once=once)
        if made:  # the tasks of the other one have waited for what goes on in their workers
            lanes.rest(config, spark)
    log.info("stopped in order: %s", HANDLED if once else COMMITTED)
