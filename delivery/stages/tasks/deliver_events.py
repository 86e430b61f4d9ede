"""Deliver records on the executors, and write their results.

The driver creates these task functions for each micro-batch, with the newest registry. The executors' Python workers run them.
Guarantee: at least once. A delivery repeats, with the same `webhook-id`, if a task ended between request and written result.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa
from pyspark import RDD, SparkContext

from delivery.model import Record
from delivery.stages.kafka import record_reader
from delivery.stages.kafka.completed_reader import CompletedWork
from delivery.stages.kafka.offset_ranges import RecordRange
from delivery.stages.tasks import task_context
from delivery.webhooks.routing import registries
from delivery.webhooks.scheduling.unhealthy import NONE_UNHEALTHY, Unhealthy

COLUMNS = ("topic", "partition", "offset", "appended_at_ms", "value", "headers")
"""Columns of the record streams of the real-time lane (`topic_source.read_realtime`), and of its Arrow batches."""
KEY = "key"
"""A further column, the record's key, if the job splits batch records."""


def deliver(
    context: SparkContext,
    assignments: Sequence[Sequence[RecordRange]],
    tools: task_context.Tools,
    source: registries.RegistrySource,
    read: record_reader.ReadsRanges,
    *,
    unhealthy: Unhealthy = NONE_UNHEALTHY,
    work_log: CompletedWork | None = None,
) -> RDD[Any]:
    """Return an RDD without rows, whose tasks read records, deliver them and write the results to Kafka.

    `task_context.run` runs the tasks. Each task reads one of `assignments` with `read`. `assignments` must not be empty.
    Deliveries to suppressed endpoints go to the retry lane. Deliveries that ended according to `work_log` are left out; None:
    no delivery is left out.

    If each assignment is empty, the tasks only warm up the worker processes. The first micro-batch of a process takes seconds
    (imports, the snapshot, connections, the JVM's compiler). No event waits for these seconds in a process that was warmed up.
    """
    task = DeliverAssignment(
        assignments=assignments, tools=tools, source=source, read=read, unhealthy=unhealthy, work_log=work_log
    )
    return task_context.numbered(context, task, len(assignments))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverAssignment:
    """The function of each task: read and deliver records, write the results, yield no rows.

    Each task calls the function with its own number, which is also the number of the task's assignment.
    """

    assignments: Sequence[Sequence[RecordRange]]
    tools: task_context.Tools
    source: registries.RegistrySource
    read: record_reader.ReadsRanges
    unhealthy: Unhealthy = NONE_UNHEALTHY
    work_log: CompletedWork | None = None

    def __call__(self, number: int) -> Iterator[Any]:
        task, ended = self.tools.begin(), task_context.completed_before(self.work_log)
        return task.write_all(task.worker.deliver(self.read(self.assignments[number]), self.source, self.unhealthy, ended))


def records(batch: pa.RecordBatch) -> Iterator[Record]:
    """Yield the records of an Arrow batch that has COLUMNS, and may have KEY."""
    *columns, headers = (batch.column(name).to_pylist() for name in COLUMNS)
    keys = batch.column(KEY).to_pylist() if KEY in batch.schema.names else [None] * batch.num_rows
    # In the order of the fields: keyword arguments would take twice as long.
    return map(Record, *columns, map(_headers, headers), keys)


def _headers(written: str | None) -> tuple[tuple[str, bytes], ...]:
    """Return a record's headers from the JSON of its column: `[{"key": …, "value": base64}, …]`. A null value becomes b"".

    The direct lane's client gives the same result: a name ends at its first NUL, and a record with more than MAX_HEADERS
    headers has none.
    """
    pairs = [] if written is None else orjson.loads(written)
    if len(pairs) > record_reader.MAX_HEADERS:
        return ()
    return tuple((pair["key"].partition("\0")[0], base64.b64decode(pair.get("value", ""))) for pair in pairs)
