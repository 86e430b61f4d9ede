"""Deliver records, on the executors, and write what came of them.

Defined on the driver, run in the executors' Python workers. Guarantee: at least once. What can repeat is what a task had sent
and not yet written when it failed or its process was killed (docs/adr/0014); each repeat carries the same `webhook-id`.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import orjson
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from delivery.model import EndpointId, Record
from delivery.stages import sink
from delivery.stages.journal import Journal
from delivery.webhooks import retry_lane, routing, rows, worker
from delivery.webhooks.journal import Key
from delivery.webhooks.results import Results

COLUMNS = ("topic", "partition", "offset", "appended_at_ms", "value", "headers")
"""What `source` gives, and its Arrow batches hold."""
_KINDS = ("string", "int", "long", "long", "binary", "string")
NO_RECORD = tuple(f"CAST(NULL AS {kind}) AS {name}" for name, kind in zip(COLUMNS, _KINDS, strict=True))
"""The columns, for the plan of a source that has no records."""


def deliver(
    records: DataFrame,
    plan: worker.Plan,
    source: routing.Source,
    parallelism: int,
    observe: Callable[[Results], None],
    *,
    writing: sink.Sink,
    held: frozenset[EndpointId] = frozenset(),
    journal: Journal | None = None,
) -> DataFrame:
    """Return the tasks that deliver `records`. `observe` is told, in the worker, of each Arrow batch.

    What is due to `held` goes to the retry lane. What has ended by the `journal` is left out.

    Hundreds of topics are hundreds of input partitions, and each task costs the driver milliseconds: coalesced, a task reads
    several Kafka partitions one after another, and there are as many tasks as can run at once.
    """
    return (
        records.select(*COLUMNS)
        .coalesce(parallelism)
        .mapInArrow(
            DeliverPartition(plan=plan, source=source, observe=observe, writing=writing, held=held, journal=journal),
            sink.NO_ROWS,
        )
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
    """The partition function: Arrow batches of records in."""

    plan: worker.Plan
    source: routing.Source
    observe: Callable[[Results], None]
    writing: sink.Sink
    held: frozenset[EndpointId] = frozenset()
    journal: Journal | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        here, ended, out = worker.of(self.plan), ended_before(self.journal), self.writing()
        for results in here.deliver((records(batch) for batch in batches), self.source, self.held, ended):
            self.observe(results)
            write(out, results, self.plan.topics)
        write_late(out, here, self.observe, self.plan.topics)
        out.finish()
        return sink.nothing()


def ended_before(journal: Journal | None) -> frozenset[Key]:
    """Return which deliveries have ended in an earlier run of this task. Called in the task."""
    context = TaskContext.get()
    return frozenset() if journal is None or context is None else journal.ended(context.attemptNumber())


def write(out: sink.Writing, results: Results, topics: rows.Topics) -> None:
    """Write what came of some records, and what of it goes to the retry lane."""
    out.write(rows.rows(results, topics))
    out.write(rows.postponed(results, topics, now_ms=round(time.time() * 1000)))


def write_late(out: sink.Writing, here: worker.Worker, observe: Callable[[Results], None], topics: rows.Topics) -> None:
    """Write what the retry lane has begun in this process and what has ended since.

    It may be long before the process gets a task of that lane again, and a turn that nobody reports leaves once more.
    """
    if (late := here.ended_turns()) is not None:
        write_ended(out, late, observe, topics)


def write_ended(out: sink.Writing, ended: retry_lane.Ended, observe: Callable[[Results], None], topics: rows.Topics) -> None:
    """Write what came of turns: their reports say what of them waits again."""
    observe(ended.results)
    out.write(rows.rows(ended.results, topics))
    out.write(rows.reports(ended.reports, topics))


def values(batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """Yield what left its shard, of Arrow batches with that one column."""
    return (value for batch in batches for value in batch.column("value").to_pylist())


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
