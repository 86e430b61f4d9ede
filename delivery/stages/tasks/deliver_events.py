"""Deliver records, on the executors, and write what came of them.

Defined on the driver anew for each micro-batch, with the newest registry. Guarantee: as delivery.stages.tasks.task_context.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import orjson
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from delivery.model import Record
from delivery.stages.checkpoint.completed_reader import Journal
from delivery.stages.tasks import task_context
from delivery.webhooks.routing import registries
from delivery.webhooks.scheduling import deferral

COLUMNS = ("topic", "partition", "offset", "appended_at_ms", "value", "headers")
"""What `source` gives, and its Arrow batches hold."""
_KINDS = ("string", "int", "long", "long", "binary", "string")
NO_RECORD = tuple(f"CAST(NULL AS {kind}) AS {name}" for name, kind in zip(COLUMNS, _KINDS, strict=True))
"""The columns, for the plan of a source that has no records."""


def deliver(
    records: DataFrame,
    tools: task_context.Tools,
    source: registries.Source,
    parallelism: int,
    *,
    held: deferral.SuppressedEndpoints = deferral.NONE_SUPPRESSED,
    journal: Journal | None = None,
) -> DataFrame:
    """Return the tasks that deliver `records`, which have COLUMNS and no others.

    What is due to `held` goes to the retry lane. What has ended by the `journal` is left out.

    Hundreds of topics are hundreds of input partitions, and each task costs the driver milliseconds: coalesced, a task reads
    several Kafka partitions one after another, and there are as many tasks as can run at once.
    """
    partition = DeliverPartition(tools=tools, source=source, held=held, journal=journal)
    return records.coalesce(parallelism).mapInArrow(partition, task_context.NO_ROWS)


def no_records(spark: SparkSession, parallelism: int) -> DataFrame:
    """Return as many empty partitions as there are tasks: delivering them makes every worker process ready.

    The first micro-batch of a process takes seconds (imports, the snapshot, connections, the JVM's compiler); nobody's events
    should wait for that.
    """
    nothing = spark.range(0, parallelism, 1, parallelism).where("id < 0")
    return nothing.selectExpr(*NO_RECORD)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverPartition:
    """The partition function: Arrow batches of records in."""

    tools: task_context.Tools
    source: registries.Source
    held: deferral.SuppressedEndpoints = field(default_factory=lambda: deferral.NONE_SUPPRESSED)
    journal: Journal | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task, ended = self.tools.begin(), task_context.ended_before(self.journal)
        return task.write_all(task.worker.deliver(map(records, batches), self.source, self.held, ended))


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
