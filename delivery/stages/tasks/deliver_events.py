"""Deliver records on the executors, and write their results.

Created on the driver for each micro-batch, with the newest registry. Guarantee: as in delivery.stages.tasks.task_context.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import orjson
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from delivery.model import Record
from delivery.stages.checkpoint.completed_reader import CompletedWork
from delivery.stages.tasks import task_context
from delivery.webhooks.routing import registries
from delivery.webhooks.scheduling import deferral

COLUMNS = ("topic", "partition", "offset", "appended_at_ms", "value", "headers")
"""The columns of `source` and of its Arrow batches."""
_KINDS = ("string", "int", "long", "long", "binary", "string")
NO_RECORD = tuple(f"CAST(NULL AS {kind}) AS {name}" for name, kind in zip(COLUMNS, _KINDS, strict=True))
"""The same columns as SQL, for a plan without records."""


def deliver(
    records: DataFrame,
    tools: task_context.Tools,
    source: registries.Source,
    parallelism: int,
    *,
    suppressed: deferral.SuppressedEndpoints = deferral.NONE_SUPPRESSED,
    work_log: CompletedWork | None = None,
) -> DataFrame:
    """Return the tasks that deliver `records`, which have COLUMNS and no others.

    Deliveries to `suppressed` endpoints are deferred to the retry lane. Deliveries that ended according to `work_log` are left
    out.

    Hundreds of topics are hundreds of input partitions, and each task costs the driver milliseconds. So the partitions are
    coalesced to as many tasks as can run at once, and a task reads several Kafka partitions one after another.
    """
    partition = DeliverPartition(tools=tools, source=source, suppressed=suppressed, work_log=work_log)
    return records.coalesce(parallelism).mapInArrow(partition, task_context.NO_ROWS)


def no_records(spark: SparkSession, parallelism: int) -> DataFrame:
    """Return as many empty partitions as there are tasks. Delivering them warms up every worker process.

    The first micro-batch of a process takes seconds (imports, the snapshot, connections, the JVM's compiler). No event should
    wait for that.
    """
    nothing = spark.range(0, parallelism, 1, parallelism).where("id < 0")
    return nothing.selectExpr(*NO_RECORD)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverPartition:
    """The partition function: Arrow batches of records in."""

    tools: task_context.Tools
    source: registries.Source
    suppressed: deferral.SuppressedEndpoints = field(default_factory=lambda: deferral.NONE_SUPPRESSED)
    work_log: CompletedWork | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task, ended = self.tools.begin(), task_context.completed_before(self.work_log)
        return task.write_all(task.worker.deliver(map(records, batches), self.source, self.suppressed, ended))


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
