"""Turn records into rows of results, on the executors.

Defined on the driver, run in the executors' Python workers. Guarantee: at least once. What can repeat is what a task had sent
and not yet written when it failed or its process was killed (docs/adr/0014); each repeat carries the same `webhook-id`.
"""

from __future__ import annotations

import base64
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import orjson
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from delivery.model import EndpointId, Record
from delivery.stages import arrow
from delivery.stages.journal import Journal
from delivery.webhooks import chunks, routing, rows, worker
from delivery.webhooks.journal import Key
from delivery.webhooks.results import Results

COLUMNS = ("topic", "partition", "offset", "appended_at_ms", "value", "headers")
"""What `source` gives, and its Arrow batches hold."""
_KINDS = ("string", "int", "long", "long", "binary", "string")
NO_RECORD = tuple(f"CAST(NULL AS {kind}) AS {name}" for name, kind in zip(COLUMNS, _KINDS, strict=True))
"""The columns, for the plan of a source that has no records."""
SCHEMA = "topic string, key binary, value binary"
_ARROW_SCHEMA = pa.schema([("topic", pa.string()), ("key", pa.binary()), ("value", pa.binary())])


def deliver(
    records: DataFrame,
    plan: worker.Plan,
    source: routing.Source,
    parallelism: int,
    observe: Callable[[Results], None],
    *,
    held: frozenset[EndpointId] = frozenset(),
    journal: Journal | None = None,
) -> DataFrame:
    """Deliver `records`; return what to write to Kafka. `observe` is told, in the worker, of each Arrow batch.

    What is due to `held` goes to the retry lane. What has ended by the `journal` is left out.

    Hundreds of topics are hundreds of input partitions, and each task costs the driver milliseconds: coalesced, a task reads
    several Kafka partitions one after another, and there are as many tasks as can run at once.
    """
    return (
        records.select(*COLUMNS)
        .coalesce(parallelism)
        .mapInArrow(DeliverPartition(plan=plan, source=source, observe=observe, held=held, journal=journal), SCHEMA)
    )


def no_records(spark: SparkSession, parallelism: int) -> DataFrame:
    """Return as many empty partitions as there are tasks: delivering them makes every worker process ready.

    The first micro-batch of a process takes seconds (imports, the snapshot, connections, the JVM's compiler); nobody's events
    should wait for that.
    """
    nothing = spark.range(0, parallelism, 1, parallelism).where("id < 0")
    return nothing.selectExpr(*NO_RECORD)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverPartition:
    """The partition function: Arrow batches of records in, Arrow batches of rows out."""

    plan: worker.Plan
    source: routing.Source
    observe: Callable[[Results], None]
    held: frozenset[EndpointId] = frozenset()
    journal: Journal | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        here, ended = worker.of(self.plan), ended_before(self.journal)
        for results in here.deliver((records(batch) for batch in batches), self.source, self.held, ended):
            self.observe(results)
            topics = self.plan.topics
            handed_over = rows.postponed(results, topics, now_ms=round(time.time() * 1000))
            yield from written(itertools.chain(rows.rows(results, topics), handed_over))


def ended_before(journal: Journal | None) -> frozenset[Key]:
    """Return which deliveries have ended in an earlier run of this task. Called in the task."""
    context = TaskContext.get()
    return frozenset() if journal is None or context is None else journal.ended(context.attemptNumber())


def written(made: Iterable[rows.Row]) -> Iterator[pa.RecordBatch]:
    """Yield rows as Arrow batches of SCHEMA."""
    for chunk in chunks.of(made, lambda row: len(row.value), arrow.MAX_BATCH_BYTES):
        topics, keys, values = zip(*chunk, strict=True)
        arrays = [arrow.values(pa.string(), [topic.encode() for topic in topics])]
        arrays += [arrow.values(pa.binary(), keys), arrow.values(pa.binary(), values)]
        yield pa.RecordBatch.from_arrays(arrays, schema=_ARROW_SCHEMA)


def records(batch: pa.RecordBatch) -> Iterator[Record]:
    """Yield the records of an Arrow batch with the source's columns."""
    columns = (batch.column(name).to_pylist() for name in COLUMNS)
    for topic, partition, offset, appended_at_ms, value, headers in zip(*columns, strict=True):
        yield Record(
            topic=topic,
            partition=partition,
            offset=offset,
            appended_at_ms=appended_at_ms,
            value=value,
            headers=() if headers is None else _headers(headers),
        )


def _headers(written: str) -> tuple[tuple[str, bytes], ...]:
    """Return the headers that the source wrote as JSON: `[{"key": …, "value": base64}, …]`, a null value left out."""
    return tuple((pair["key"], base64.b64decode(pair.get("value", ""))) for pair in orjson.loads(written))
