"""Turn records into rows of results, on the executors.

Defined on the driver, run in the executors' Python workers. Guarantee: at least once. What can repeat is what a task had sent
when it failed or its process was killed, because Spark runs the whole task again; each repeat carries the same `webhook-id`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from delivery.model import Record
from delivery.webhooks import routing, rows, worker

SCHEMA = "topic string, key binary, value binary"
_ARROW_SCHEMA = pa.schema([("topic", pa.string()), ("key", pa.binary()), ("value", pa.binary())])


def deliver(records: DataFrame, plan: worker.Plan, source: routing.Source, parallelism: int) -> DataFrame:
    """Deliver `records`; return what to write to Kafka.

    Hundreds of topics are hundreds of input partitions, and each task costs the driver milliseconds: coalesced, a task reads
    several Kafka partitions one after another, and there are as many tasks as can run at once.
    """
    return (
        records.select("topic", "partition", "offset", "appended_at_ms", "value", "headers")
        .coalesce(parallelism)
        .mapInArrow(DeliverPartition(plan=plan, source=source), SCHEMA)
    )


def no_records(spark: SparkSession, parallelism: int) -> DataFrame:
    """Return as many empty partitions as there are tasks: delivering them makes every worker process ready.

    The first micro-batch of a process takes seconds (imports, the snapshot, connections, the JVM's compiler); nobody's events
    should wait for that.
    """
    nothing = spark.range(0, parallelism, 1, parallelism).where("id < 0")
    return nothing.selectExpr(
        "'' AS topic",
        "0 AS partition",
        "id AS offset",
        "id AS appended_at_ms",
        "CAST(NULL AS BINARY) AS value",
        "CAST(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>) AS headers",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverPartition:
    """The partition function: Arrow batches of records in, Arrow batches of rows out."""

    plan: worker.Plan
    source: routing.Source

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        here = worker.of(self.plan)
        for batch in batches:
            results = here.deliver(records(batch), self.source)
            written = list(rows.rows(results, self.plan.topics))
            columns = zip(*written, strict=True) if written else ((), (), ())
            arrays = [pa.array(column, field.type) for column, field in zip(columns, _ARROW_SCHEMA, strict=True)]
            yield pa.record_batch(arrays, schema=_ARROW_SCHEMA)


def records(batch: pa.RecordBatch) -> Iterator[Record]:
    """Yield the records of an Arrow batch with the source's columns."""
    columns = {name: batch.column(name) for name in ("topic", "partition", "offset", "appended_at_ms", "value", "headers")}
    headers = columns.pop("headers")
    # Nested columns are slow to convert, and most topics have no headers at all.
    all_headers = [None] * len(batch) if headers.null_count == len(batch) else headers.to_pylist()
    for topic, partition, offset, appended_at_ms, value, pairs in zip(
        *(column.to_pylist() for column in columns.values()), all_headers, strict=True
    ):
        yield Record(
            topic=topic,
            partition=partition,
            offset=offset,
            appended_at_ms=appended_at_ms,
            value=value,
            headers=tuple((pair["key"], pair["value"] or b"") for pair in pairs or ()),
        )
