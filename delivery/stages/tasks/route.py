"""Route records to segments of the shards on the executors: the batch lane up to its state.

Created on the driver, run in the executors' Python workers. The closure is fixed when the query starts; the newest registry
comes with each micro-batch (delivery.stages.registry.task_delta).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame

from delivery.stages.tasks import arrow, deliver_events, task_context
from delivery.webhooks.routing import intake, registries
from delivery.webhooks.state import chunking

SCHEMA = "shard int, key binary, value binary"
"""Rows for a shard, with a key where the order matters. A row without key and value makes the shard check its due times."""
_ARROW_SCHEMA = pa.schema([("shard", pa.int32()), ("key", pa.binary()), ("value", pa.binary())])


class Row(NamedTuple):
    """A row of SCHEMA."""

    shard: int
    key: bytes | None = None
    value: bytes | None = None


def route(
    records: DataFrame,
    tools: task_context.Tools,
    source: registries.Source,
    parallelism: int,
    *,
    shard_keys: tuple[int, ...],
    immediate_flush_s: float,
    rejects: bool,
) -> DataFrame:
    """Return the segments of `records` for the shards, as SCHEMA."""
    partition = RoutePartition(
        tools=tools, source=source, shard_keys=shard_keys, immediate_flush_s=immediate_flush_s, rejects=rejects
    )
    return records.select(*deliver_events.COLUMNS).coalesce(parallelism).mapInArrow(partition, SCHEMA)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutePartition:
    """The partition function: Arrow batches of records in, rows for the shards out."""

    tools: task_context.Tools
    source: registries.Source
    shard_keys: tuple[int, ...]
    immediate_flush_s: float
    rejects: bool
    """False beside the direct lane, which reports every record that is not an event."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task, shards = self.tools.begin(), len(self.shard_keys)
        # Each shard checks its due times in every micro-batch, also without records.
        yield from written([Row(key) for key in self.shard_keys])
        read = map(deliver_events.records, batches)
        for collected in task.worker.collect(read, self.source, shards=shards, immediate_flush_s=self.immediate_flush_s):
            if not self.rejects:
                found = collected.results.rejections
                collected.results.rejections = [rejection for rejection in found if rejection.reason in intake.LANE_SPECIFIC]
            task.write(collected.results)
            yield from written(Row(self.shard_keys[row.shard], value=row.segment) for row in collected.rows)
        task.finish()


def written(out: Iterable[Row]) -> Iterator[pa.RecordBatch]:
    """Yield rows as Arrow batches of SCHEMA."""
    for chunk in chunking.chunks(out, lambda row: len(row.value or b""), arrow.MAX_BATCH_BYTES):
        shards, keys, values = zip(*chunk, strict=True)
        arrays = [arrow.numbers(shards), arrow.values(pa.binary(), keys), arrow.values(pa.binary(), values)]
        yield pa.RecordBatch.from_arrays(arrays, schema=_ARROW_SCHEMA)
