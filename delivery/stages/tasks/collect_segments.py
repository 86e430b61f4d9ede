"""Read records, find the batch lane's endpoints for each, and pack the events into segments for the lane's shards.

The driver creates these task functions. The executors' Python workers run them. A shard is one key of Spark's state. It holds
the pending batches of some endpoints. A segment is one value with events of one shard. The functions' closure is fixed when the
query starts. The newest registry comes with each micro-batch (delivery.stages.registry.task_delta).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame

from delivery.stages.kafka import offset_ranges, record_reader
from delivery.stages.kafka.offset_ranges import RecordRange
from delivery.stages.tasks import arrow, task_context
from delivery.webhooks.routing import intake, registries
from delivery.webhooks.state import chunking

SCHEMA = "shard int, key binary, value binary"
"""Columns of the rows that go to the shards. `shard` is the shard's key in Spark's state. `key` orders the shard's rows, if
their order matters. A row without key and value makes the shard check its due times."""
_ARROW_SCHEMA = pa.schema([("shard", pa.int32()), ("key", pa.binary()), ("value", pa.binary())])


CHUNK_RECORDS = 1000
"""Number of records that are collected together, as a chunk. The last chunk of a task may have fewer. At the end of a chunk
full batches may become a segment, and a micro-batch that runs again must form the same batches. So the size of a chunk must
not depend on how many records Kafka sent at once."""


class RoutedRow(NamedTuple):
    """A row for a shard of the lane's state, with the columns of SCHEMA."""

    shard: int
    key: bytes | None = None
    value: bytes | None = None


def route(
    numbers: DataFrame,
    tools: task_context.Tools,
    source: registries.RegistrySource,
    read: record_reader.ReadsRanges,
    *,
    shard_keys: tuple[int, ...],
    immediate_flush_s: float,
    direct_from: Mapping[str, Mapping[str, int]] | None,
) -> DataFrame:
    """Return rows of SCHEMA for the shards: segments with the events that go to endpoints in batch mode.

    `numbers` has a row for each task (`topic_source.task_numbers`). The tasks read records with `read`. In each micro-batch the
    driver sends the offset ranges of all tasks with `offset_ranges.send`. The first task also yields one row without key and
    value for each shard in `shard_keys`. Events of endpoints with a `max_wait_s` of at most `immediate_flush_s` leave in the
    same micro-batch. `direct_from` has the meaning of `RouteAssignment.direct_from`.
    """
    assignment = RouteAssignment(
        tools=tools,
        source=source,
        read=read,
        shard_keys=shard_keys,
        immediate_flush_s=immediate_flush_s,
        direct_from=direct_from,
    )
    return numbers.mapInArrow(assignment, SCHEMA)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteAssignment:
    """The function that Spark calls in each task: read records, yield rows of SCHEMA for the lane's state.

    Spark passes a row with the task's number in its only column. The function also writes to Kafka the results of this step:
    skipped deliveries, rejected records and offset receipts.
    """

    tools: task_context.Tools
    source: registries.RegistrySource
    read: record_reader.ReadsRanges
    ranges_of: Callable[[int], Sequence[RecordRange]] = offset_ranges.received
    """Returns the offset ranges of the task with a number."""
    shard_keys: tuple[int, ...]
    """The key of each shard in Spark's state (delivery.stages.checkpoint.shards)."""
    immediate_flush_s: float
    direct_from: Mapping[str, Mapping[str, int]] | None
    """The first offset that the direct lane of this job reads, by topic and partition (a decimal text). A missing partition
    counts as 0, as all partitions of the real-time lane do. From this offset on, the direct lane reports rejected records, so
    the batch lane reports only rejections with a reason in `intake.LANE_SPECIFIC`. Before this offset, the batch lane reports
    all rejections: an earlier job read these records, perhaps with other settings. None: the batch lane reports all rejections,
    because the job runs no direct lane, or the direct lane's first offset is unknown."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task, shards = self.tools.begin(), len(self.shard_keys)
        numbers = [number for batch in batches for number in batch.column(0).to_pylist()]
        if 0 in numbers:  # each shard checks its due times in every micro-batch, also without records
            yield from written([RoutedRow(key) for key in self.shard_keys])
        polled = itertools.chain.from_iterable(self.read(self.ranges_of(number)) for number in numbers)
        records = itertools.chain.from_iterable(polled)
        chunks = iter(lambda: list(itertools.islice(records, CHUNK_RECORDS)), [])
        for collected in task.worker.collect(chunks, self.source, shards=shards, immediate_flush_s=self.immediate_flush_s):
            collected.results.rejections = [found for found in collected.results.rejections if self._is_reported(found)]
            task.write(collected.results)
            yield from written(RoutedRow(self.shard_keys[row.shard], value=row.segment) for row in collected.rows)
        task.finish()

    def _is_reported(self, rejection: intake.Rejection) -> bool:
        if self.direct_from is None or rejection.reason in intake.LANE_SPECIFIC:
            return True
        record = rejection.record
        return record.offset < self.direct_from.get(record.topic, {}).get(str(record.partition), 0)


def written(out: Iterable[RoutedRow], *, max_bytes: int = arrow.MAX_BATCH_BYTES) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `out` as Arrow batches of SCHEMA. The values of a batch have at most `max_bytes` in total.

    A row with a larger value gets a batch of its own.
    """
    for chunk in chunking.chunks(out, lambda row: len(row.value or b""), max_bytes):
        shards, keys, values = zip(*chunk, strict=True)
        arrays = [arrow.numbers(shards), arrow.values(pa.binary(), keys), arrow.values(pa.binary(), values)]
        yield pa.RecordBatch.from_arrays(arrays, schema=_ARROW_SCHEMA)
