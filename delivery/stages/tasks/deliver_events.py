"""Deliver records on the executors, and write their results.

The driver creates these task functions for each micro-batch, with the newest registry. The executors' Python workers run them.
Guarantee: at least once. A delivery repeats, with the same `webhook-id`, if a task ended between request and written result.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import orjson
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from delivery.model import Record
from delivery.stages.kafka.completed_reader import CompletedWork
from delivery.stages.tasks import task_context
from delivery.webhooks.routing import registries
from delivery.webhooks.scheduling.unhealthy import NONE_UNHEALTHY, Unhealthy

COLUMNS = ("topic", "partition", "offset", "appended_at_ms", "value", "headers")
"""Columns of the record streams that delivery.stages.kafka.topic_source reads, and of their Arrow batches."""
KEY = "key"
"""A further column, the record's key, if the job splits batch records."""
_KINDS = ("string", "int", "long", "long", "binary", "string")
NO_RECORD = tuple(f"CAST(NULL AS {kind}) AS {name}" for name, kind in zip(COLUMNS, _KINDS, strict=True))
"""COLUMNS as SQL expressions of nulls, for a plan without records."""


def deliver(
    records: DataFrame,
    tools: task_context.Tools,
    source: registries.RegistrySource,
    parallelism: int,
    *,
    unhealthy: Unhealthy = NONE_UNHEALTHY,
    work_log: CompletedWork | None = None,
) -> DataFrame:
    """Return a frame without rows, whose tasks deliver `records` and write the results to Kafka.

    `task_context.run` runs the tasks. `records` has COLUMNS, and may have KEY.

    Deliveries to suppressed endpoints go to the retry lane. Deliveries that ended according to `work_log` are left out; None:
    no delivery is left out.

    Hundreds of topics are hundreds of input partitions, and each task costs the driver milliseconds. So the partitions are
    coalesced to `parallelism` tasks, as many as can run at once. A task reads several Kafka partitions one after another.
    """
    partition = DeliverPartition(tools=tools, source=source, unhealthy=unhealthy, work_log=work_log)
    return records.coalesce(parallelism).mapInArrow(partition, task_context.NO_ROWS)


def no_records(spark: SparkSession, parallelism: int) -> DataFrame:
    """Return a frame of `parallelism` empty partitions, to warm up the worker processes.

    The direct lane delivers it once at its start, except with `--once`. The first micro-batch of a process takes seconds
    (imports, the snapshot, connections, the JVM's compiler). No event waits for these seconds in a process that was warmed up.
    """
    nothing = spark.range(0, parallelism, 1, parallelism).where("id < 0")
    return nothing.selectExpr(*NO_RECORD)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverPartition:
    """The function that Spark calls for a partition of records: deliver them, write the results, yield no rows."""

    tools: task_context.Tools
    source: registries.RegistrySource
    unhealthy: Unhealthy = NONE_UNHEALTHY
    work_log: CompletedWork | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task, ended = self.tools.begin(), task_context.completed_before(self.work_log)
        return task.write_all(task.worker.deliver(map(records, batches), self.source, self.unhealthy, ended))


def records(batch: pa.RecordBatch) -> Iterator[Record]:
    """Yield the records of an Arrow batch that has COLUMNS, and may have KEY."""
    *columns, headers = (batch.column(name).to_pylist() for name in COLUMNS)
    keys = batch.column(KEY).to_pylist() if KEY in batch.schema.names else [None] * batch.num_rows
    # In the order of the fields: keyword arguments would take twice as long.
    return map(Record, *columns, map(_headers, headers), keys)


def _headers(written: str | None) -> tuple[tuple[str, bytes], ...]:
    """Return a record's headers from the JSON of its column: `[{"key": …, "value": base64}, …]`. A null value becomes b""."""
    if written is None:
        return ()
    return tuple((pair["key"], base64.b64decode(pair.get("value", ""))) for pair in orjson.loads(written))
