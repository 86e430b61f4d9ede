"""The job's table of contents: source → route → deliver → results. Runs on the driver.

    Kafka topics ─► source ─► deliver (route, sign, send) ─► sink ─► attempts · dead letters · rejected events
    Postgres ─► snapshot or look-up ─▲

The command `fanout run` calls `run`; each name below is a file in `delivery/stages/`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from pathlib import Path

from pyspark.sql import DataFrame

from delivery import health, plan, serving, settings
from delivery.stages import backlog, deliver, lookup, query, session, sink, snapshot, source, telemetry, topics
from delivery.webhooks import routing

log = logging.getLogger(__name__)

LANE = "direct"


def run(config: settings.Settings, *, jars: Iterable[Path] = (), stop: threading.Event, once: bool = False) -> None:
    """Deliver events until `stop` is set, or with `once` until all that is in Kafka now has been delivered."""
    if opened := plan.opened_for_development(config.delivery):
        log.warning("the address guard is OPEN for development: %s", opened)
    registry = (lookup.Lookups if config.snapshot.source == "lookup" else snapshot.Broadcasts)(config, stop=stop)
    watch = health.Watch(hold=registry.hold_reason, stop=stop)
    serving.serve(config.metrics, watch)
    backlog.watch(config, LANE, watch, stop)
    topics.ensure(config.kafka, topics.of_results(config.delivery), config.delivery.result_partitions)
    spark = session.start(config.spark, jars)
    told = plan.of(config)
    seen = telemetry.Telemetry(spark.sparkContext, LANE, config.logs)

    def hold() -> routing.Source | None:
        return registry.source(spark.sparkContext)

    def handle(records: DataFrame, known: routing.Source) -> None:
        results = deliver.deliver(records, told, known, config.spark.parallelism, seen.observer)
        sink.write(results, config.kafka)
        seen.publish()

    try:
        known = hold()
        if known is not None:
            handle(deliver.no_records(spark, config.spark.parallelism), known)
            records = source.read(spark, config.kafka, config.source)
            lane = query.Lane(LANE, hold=hold, handle=handle, stop=stop, watch=watch)
            lane.run(records, config.spark, once=once)
    finally:
        stop.set()
        spark.stop()
