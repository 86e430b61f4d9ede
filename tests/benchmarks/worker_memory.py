"""Measure the memory of a worker of a real Spark session, with a whole registry and a micro-batch under way.

Run: `python -m tests.benchmarks.worker_memory [--subscriptions 100000] [--events 20000]`. A real Postgres and Spark, no Kafka;
all endpoints are paused, so that what is due shows in the results without a request. Prints a JSON line for each worker.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import orjson
import pyarrow as pa

from delivery.config import plan_builder, settings
from delivery.registry_model import EndpointStatus
from delivery.stages.lanes import session, telemetry
from delivery.stages.registry import broadcasts
from delivery.stages.tasks import arrow, deliver_events, observer, task_context
from delivery.webhooks.lanes import worker_plan
from delivery.webhooks.routing import published_registry, registries
from delivery.webhooks.routing.registry_snapshot import Snapshot
from fanout.jvm import jars
from fanout.local import postgres_server, stack
from subscriptions_db.postgres import connect, migrate
from subscriptions_db.secrets import keyring
from subscriptions_db.snapshot import registry_reader
from tests.benchmarks import population
from tests.support import assignments, sinks

SCHEMA = pa.schema([("document", pa.string())])


class Measured:
    """The partition function, which tells at its end what its process takes."""

    def __init__(self, plan: worker_plan.Plan, source: registries.RegistrySource, observe: observer.Observer) -> None:
        self._written = sinks.Nowhere()
        self._tools, self._source = task_context.Tools(plan=plan, observe=observe, sink=self._written), source

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Deliver; yield one row of JSON."""
        chunks = (list(deliver_events.records(batch)) for batch in batches)
        list(assignments.task(self._tools, self._source, chunks))
        found = {"pid": os.getpid(), "rows": self._written.count, **memory_mb()}
        document = orjson.dumps(found)
        yield pa.RecordBatch.from_arrays([arrow.values(pa.string(), [document])], schema=SCHEMA)


def memory_mb() -> dict[str, float]:
    """Return what is resident, what is this process's alone, and its share of what it shares with others; and the peak."""
    rollup = (line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    status = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    kilobytes = {words[0]: int(words[1]) for words in (*rollup, *status) if words[-1] == "kB"}
    alone = kilobytes["Private_Clean:"] + kilobytes["Private_Dirty:"]
    return {
        "resident_mb": kilobytes["Rss:"] // 1024,
        "alone_mb": alone // 1024,
        "proportional_mb": kilobytes["Pss:"] // 1024,
        "peak_mb": kilobytes["VmHWM:"] // 1024,
    }


def main() -> None:
    """Measure two micro-batches, so that the second finds the workers as they stay."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--subscriptions", type=int, default=100_000)
    parser.add_argument("--events", type=int, default=20_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        base = registry(Path(folder), arguments.subscriptions)
    spark = session.start(settings.SparkSettings(), session.Libraries(connector=jars.ensure().connector))
    published = published_registry.Published(base_id="measured", base=base, changes=None, confirmed_at=0.0)
    source = broadcasts.Broadcaster(spark.sparkContext).source(published, "direct")
    config = settings.Settings()
    function = Measured(
        plan_builder.plan_of(config), source, telemetry.Telemetry(spark.sparkContext, "measured", config.logs).observer
    )
    rows = [
        (f"events.{kind}", 0, offset, 0, orjson.dumps({"tenant_id": tenant, "sub_tenant_id": department, "amount": amount}))
        for offset, (kind, tenant, department, amount) in enumerate(population.events(arguments.events, random.Random(1)))
    ]
    records = spark.createDataFrame(rows, "topic string, partition int, offset long, appended_at_ms long, value binary")
    records = records.selectExpr("*", "CAST(NULL AS STRING) AS headers").repartition(config.spark.parallelism).cache()
    for _ in range(2):
        for row in records.mapInArrow(function, "document string").collect():
            print(row["document"], flush=True)
    spark.stop()


def registry(folder: Path, subscriptions: int) -> Snapshot:
    """Return a registry of this size, read from Postgres, with every endpoint paused."""
    server = postgres_server.EmbeddedPostgres(folder / "postgres")
    server.start()
    try:
        config = settings.Settings.model_validate(
            {"database": {"url": server.url, "statement_timeout_s": 3600}, "keys": {"ring": {"benchmark": stack.new_key()}}}
        )
        ring = keyring.KeyRing.from_settings(config.keys)
        with connect.connect(config.database) as connection:
            migrate.migrate(connection)
            population.load(connection, ring, subscriptions, random.Random(subscriptions))
            base = registry_reader.read_full(connection, ring, plan_builder.guard_of(config.delivery))
    finally:
        server.stop()
    paused = {key: replace(row, status=EndpointStatus.PAUSED) for key, row in base.endpoints.items()}
    return replace(base, endpoints=paused)


if __name__ == "__main__":
    main()
