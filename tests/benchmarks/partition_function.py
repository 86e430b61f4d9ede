"""Compare the forms of the partition function: `mapInArrow` and a literal `foreachPartition`, the same work in both.

Run: `python -m tests.benchmarks.partition_function --json FILE`. It reads the same 50,000 records of 450 bytes from a real
Kafka, parses and routes each, and sends nothing. The forms take turns within one run, because the machine's speed drifts.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson
import psutil
import pyarrow as pa
from pyspark.sql import DataFrame, Row

from delivery.config import settings
from delivery.model import Record
from delivery.stages.lanes import session
from delivery.stages.tasks import deliver_events
from delivery.webhooks.events import parsing
from delivery.webhooks.routing import matching
from delivery.webhooks.routing.registry_snapshot import Snapshot
from fanout.jvm import jars
from fanout.kafka import publishing
from fanout.local import kafka_server
from tests.support import builders

EVENTS = 50_000
TENANTS = 100
_routers: dict[int, matching.Router] = {}


def router(snapshot: Snapshot) -> matching.Router:
    """Return this process's router, as a worker keeps it."""
    return _routers.setdefault(len(snapshot.subscriptions), matching.Router(snapshot))


def work(records: Iterable[Record], snapshot: Snapshot) -> int:
    """Parse and route; return how many deliveries are due."""
    of, layout = router(snapshot), parsing.Layout()
    return sum(len(of.matches(parsing.parse(record, layout))) for record in records)


@dataclass(frozen=True)
class NoOp:
    """Read the Arrow batches and give their first column back."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch([batch.column("offset")], ["due"])


@dataclass(frozen=True)
class InArrow:
    """The product's form: Arrow batches in, Arrow batches out."""

    snapshot: Snapshot

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch([pa.array([work(deliver_events.records(batch), self.snapshot)])], ["due"])


@dataclass(frozen=True)
class OfRows:
    """The literal form: pickled rows in, nothing out; what it learns would have to be written by itself."""

    snapshot: Snapshot

    def __call__(self, rows: Iterable[Row]) -> None:
        work((Record(**row.asDict() | {"headers": tuple(row.headers or ())}) for row in rows), self.snapshot)


def measure(run: object) -> tuple[float, float, float]:
    """Return wall seconds, and CPU seconds of the JVM and of the Python workers."""
    before, began = cpu(), time.perf_counter()
    run()  # type: ignore[operator]
    wall = time.perf_counter() - began
    after = cpu()
    return wall, after[0] - before[0], after[1] - before[1]


def cpu() -> tuple[float, float]:
    """Return CPU seconds used so far by the JVM and by the Python workers below it."""
    jvm = python = 0.0
    for child in psutil.Process().children(recursive=True):
        times = child.cpu_times()
        if "java" in child.name():
            jvm += times.user + times.system
        elif "python" in child.name():
            python += times.user + times.system
    return jvm, python


def main() -> None:
    """Measure and print a row per form; also as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    subscriptions = [
        builders.subscription(f"s{n}", event_type="order.*", scope=builders.scope(f"tenant-{n % TENANTS + 1}"))
        for n in range(1000)
    ]
    snapshot = builders.snapshot(
        builders.endpoint(), *subscriptions, tenants=tuple(f"tenant-{n}" for n in range(1, TENANTS + 1))
    )
    with tempfile.TemporaryDirectory() as folder:
        libraries = jars.ensure()
        broker = kafka_server.EmbeddedKafka(Path(folder), libraries=libraries)
        broker.start()
        try:
            config = settings.Settings(kafka=settings.KafkaSettings(bootstrap_servers=broker.bootstrap_servers))
            made = publishing.generated(
                EVENTS, event_type="order.created", tenants=TENANTS, source=config.source, rng=random.Random(1)
            )
            publishing.publish_all(config, made)
            results = compare(config, libraries, snapshot, arguments.rounds)
        finally:
            broker.stop()
    for name, row in results.items():
        print(name, row)
    if arguments.json:
        arguments.json.write_bytes(orjson.dumps(results, option=orjson.OPT_INDENT_2))


def compare(config: settings.Settings, libraries: jars.Jars, snapshot: Snapshot, rounds: int) -> dict[str, dict[str, float]]:
    """Return the medians of each form."""
    spark = session.start(config.spark, session.Libraries(connector=libraries.connector))

    def read() -> DataFrame:
        options = {"kafka.bootstrap.servers": config.kafka.bootstrap_servers, "subscribe": "events.order.created"}
        return (
            spark.read.format("kafka")
            .options(**options)
            .load()
            .selectExpr("topic", "partition", "offset", "unix_millis(timestamp) appended_at_ms", "value",
                        "CAST(NULL AS STRING) AS headers")
            .coalesce(config.spark.parallelism)
        )  # fmt: skip

    forms = {
        "mapInArrow, no work": lambda: read().mapInArrow(NoOp(), "due long").write.format("noop").mode("overwrite").save(),
        "mapInArrow": lambda: read().mapInArrow(InArrow(snapshot), "due long").write.format("noop").mode("overwrite").save(),
        "foreachPartition": lambda: read().foreachPartition(OfRows(snapshot)),
    }
    measured: dict[str, list[tuple[float, float, float]]] = {name: [] for name in forms}
    for turn in range(rounds + 2):
        for name, run in forms.items():
            row = measure(run)
            if turn >= 2:  # the first two are the JVM's warm-up
                measured[name].append(row)
    spark.stop()
    return {
        name: {
            "wall_s": round(statistics.median(row[0] for row in rows), 2),
            "jvm_us_per_event": round(statistics.median(row[1] for row in rows) / EVENTS * 1e6, 1),
            "python_us_per_event": round(statistics.median(row[2] for row in rows) / EVENTS * 1e6, 1),
        }
        for name, rows in measured.items()
    }


if __name__ == "__main__":
    main()
