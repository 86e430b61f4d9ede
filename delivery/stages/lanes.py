"""Run the lanes: what each makes ready, plans, and does with a micro-batch.

Runs on the driver. Each lane is a streaming query on a thread of its own, with its own checkpoint folder and its own scheduler
pool, so that neither lane's tasks wait for all of the other's. When one ends by itself all end, and whoever started the process
starts it again: a process that delivers a part of what it should would look well.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from pyspark import InheritableThread
from pyspark.sql import DataFrame, SparkSession

from delivery import health, plan, settings
from delivery.stages import (
    batch,
    carried,
    deliver,
    deliver_batches,
    observer,
    query,
    rerun,
    route,
    shards,
    sink,
    source,
    telemetry,
    ticks,
)
from delivery.webhooks import routing
from delivery.webhooks.pending import Pending

log = logging.getLogger(__name__)

Hold = Callable[[], routing.RefreshedSource | None]


class Lane(Protocol):
    """A lane, as it is run."""

    def warm(self, known: routing.RefreshedSource) -> None:
        """Make the worker processes and the JVM ready, so that no event waits for that."""

    def run(self, watch: health.Watch, *, once: bool) -> None:
        """Run until the job is to stop, or with `once` until all that is in Kafka now has been handled."""


class Direct:
    """Route and deliver in one step."""

    def __init__(self, config: settings.Settings, spark: SparkSession, hold: Hold, stop: threading.Event) -> None:
        self._config, self._spark, self._hold, self._stop = config, spark, hold, stop
        self._plan = plan.of(config)
        self._seen = telemetry.Telemetry(spark.sparkContext, "direct", config.logs)
        self._reruns = rerun.Reruns(config, spark, "direct")

    def warm(self, known: routing.RefreshedSource) -> None:
        """As Lane."""
        self._handle(deliver.no_records(self._spark, self._config.spark.parallelism), known)

    def run(self, watch: health.Watch, *, once: bool) -> None:
        """As Lane."""
        self._reruns.read()
        began = self._reruns.began
        lane = query.Lane("direct", hold=self._hold, handle=self._handle, stop=self._stop, watch=watch, began=began)
        config = self._config.spark
        lane.run(self._planned, config, config.trigger_interval_s, once=once)

    def _planned(self) -> DataFrame:
        return source.read(self._spark, self._config.kafka, self._config.source)

    def _handle(self, records: DataFrame, known: routing.Source) -> None:
        parallelism, journal = self._config.spark.parallelism, self._reruns.journal
        results = deliver.deliver(records, self._plan, known, parallelism, self._seen.observer, journal=journal)
        sink.write(results, self._config.kafka)
        self._seen.publish()


class Batch:
    """Route to shards, keep in state, deliver what leaves."""

    def __init__(
        self, config: settings.Settings, spark: SparkSession, hold: Hold, stop: threading.Event, *, rejects: bool
    ) -> None:
        self._config, self._spark, self._hold, self._stop = config, spark, hold, stop
        self._rejects = rejects
        self._plan = plan.of(config)
        self._seen = telemetry.Telemetry(spark.sparkContext, "batch", config.logs)
        self._reruns = rerun.Reruns(config, spark, "batch")
        self._pending = spark.sparkContext.accumulator(Pending(), observer.MergingPending())
        self._ticker = ticks.Ticker(config, stop)
        shards.require_kept(spark, f"{config.spark.checkpoint.rstrip('/')}/batch", config.batch.shards)
        self._shard_keys = shards.keys(spark, config.batch.shards)
        self._carrier: carried.Carrier

    def warm(self, known: routing.RefreshedSource) -> None:
        """As Lane: some micro-batches of the whole plan, on a checkpoint that is thrown away."""
        self._carrier = carried.Carrier(self._spark.sparkContext, known)
        nothing = self._spark.readStream.format("rate-micro-batch").options(rowsPerBatch=1, numPartitions=1).load()
        nothing = nothing.where("value < 0").selectExpr(*deliver.NO_RECORD)
        with _thrown_away(self._spark, f"{self._config.spark.checkpoint.rstrip('/')}/warm-up-{uuid.uuid4().hex}") as folder:
            query_ = (
                self._routed(nothing)
                .writeStream.option("checkpointLocation", folder)
                .foreachBatch(lambda left, _: self._handle(left, known))
                .trigger(once=True)
                .start()
            )
            query_.awaitTermination()

    def run(self, watch: health.Watch, *, once: bool) -> None:
        """As Lane."""
        if once:
            self._ticker.tick()  # so that a micro-batch comes, and what is due by now leaves, also when there are no events
        else:
            self._ticker.start()
        self._reruns.read()
        began = self._reruns.began
        lane = query.Lane("batch", hold=self._hold, handle=self._handle, stop=self._stop, watch=watch, began=began)
        lane.run(self._planned, self._config.spark, self._config.batch.trigger_interval_s, once=once)

    def _planned(self) -> DataFrame:
        known = self._hold()
        if known is not None:
            self._carrier = carried.Carrier(self._spark.sparkContext, known)
        ticks_topic = self._config.batch.ticks_topic
        records = source.read(self._spark, self._config.kafka, self._config.source, beside=ticks_topic)
        return self._routed(records.where(records.topic != ticks_topic))

    def _routed(self, records: DataFrame) -> DataFrame:
        interval_s = self._config.batch.trigger_interval_s
        routed = route.route(
            records,
            self._plan,
            self._carrier.source,
            self._config.spark.parallelism,
            self._seen.observer,
            shard_keys=self._shard_keys,
            pass_through_s=interval_s * 2,
            rejects=self._rejects,
        )
        return batch.batch(routed, round(interval_s * 1000), self._pending)

    def _handle(self, left: DataFrame, known: routing.RefreshedSource) -> None:
        if not self._carrier.can_carry(known):
            raise query.StartAgain
        self._carrier.carry(known)
        parallelism, journal = self._config.spark.parallelism, self._reruns.journal
        results = deliver_batches.deliver_batches(left, self._plan, known, parallelism, self._seen.observer, journal=journal)
        sink.write(results, self._config.kafka)
        self._seen.publish()
        told, self._pending.value = self._pending.value, Pending()
        if told.shards >= len(self._shard_keys):  # a micro-batch without a single partition asks none of them
            self._ticker.waits(told)


def warm(lanes: Mapping[str, Lane], known: Mapping[str, routing.RefreshedSource | None]) -> None:
    """Make all lanes ready by the registry that is known; None where the job is to stop."""
    for name, lane in lanes.items():
        if (registry := known[name]) is not None:
            began = time.monotonic()
            lane.warm(registry)
            log.info("lane %s is warm after %.1f s", name, time.monotonic() - began)


def run(lanes: Mapping[str, Lane], watches: Mapping[str, health.Watch], stop: threading.Event, *, once: bool) -> None:
    """Run all lanes, each on its thread, until they end; raise what ended the first that failed."""
    failures: list[BaseException] = []

    def run_one(name: str, lane: Lane) -> None:
        SparkSession.active().sparkContext.setLocalProperty("spark.scheduler.pool", name)
        try:
            lane.run(watches[name], once=once)
        except BaseException as failure:  # noqa: BLE001  # raised below, on the thread that waits for all
            failures.append(failure)
        finally:
            if failures or not once:
                stop.set()

    threads = [InheritableThread(run_one, args=(name, lane), name=f"lane {name}") for name, lane in lanes.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


@contextlib.contextmanager
def _thrown_away(spark: SparkSession, folder: str) -> Iterator[str]:
    """Give a folder that the executors reach, and remove it."""
    try:
        yield folder
    finally:
        context = spark.sparkContext
        path = context._jvm.org.apache.hadoop.fs.Path(folder)  # type: ignore[union-attr]  # noqa: SLF001  # no public way
        path.getFileSystem(context._jsc.hadoopConfiguration()).delete(path, True)  # noqa: SLF001
