"""Take leases from the shards of the retry lane, as delivery.webhooks.retries.shard_scheduler decides.

The driver creates these task functions. The executors' Python workers run them. A shard is one key of Spark's state. It holds
the retry entries of some endpoints. A lease holds retry entries of one FIFO that a worker attempts now. These functions do not
use the registry, so their closure stays the same while the query runs.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import Accumulator
from pyspark.sql import DataFrame

from delivery.registry_model import EndpointId
from delivery.stages.tasks import route, shard_state, task_context
from delivery.webhooks.batching import segment
from delivery.webhooks.retries import retry_records, shard_scheduler, window
from delivery.webhooks.state import backlog

COLUMNS = ("partition", "offset", "key", "value")
"""Columns of the retries topic that these tasks read."""
_place = struct.Struct(">iq").pack
"""Encode partition and offset as bytes that sort in the same order. All records of an endpoint are in one partition."""
_shard_of = functools.lru_cache(maxsize=50_000)(segment.shard_of)


def take_leases(
    records: DataFrame,
    policy: window.ShardPolicy,
    look_ahead_ms: int,
    pending: Accumulator[backlog.Pending],
    tools: task_context.Tools,
    *,
    parallelism: int,
    shard_keys: tuple[int, ...],
) -> DataFrame:
    """Return the leases to deliver now, in rows that `shard_state.items_of` reads.

    `records` come from the retries topic: postponed deliveries, reports of leases, and other messages for the shards. Each
    record goes to the shard of its endpoint. The shard then decides by `policy`. An entry may leave up to `look_ahead_ms`
    before its due time. The tasks add to `pending` the backlog of each shard: the entries that still wait.
    """
    spread = (
        records.select(*COLUMNS)
        .where(retry_records.HAS_MESSAGE)
        .coalesce(parallelism)
        .mapInArrow(SpreadPartition(tools=tools, shard_keys=shard_keys), route.SCHEMA)
    )
    return shard_state.decide_shards(spread, RetryDecision(policy=policy, look_ahead_ms=look_ahead_ms), pending, tools.begin)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadPartition:
    """The function that Spark calls for a partition of records: yield a row of `route.SCHEMA` for each record with a key.

    A record's key is the id of its endpoint, and the endpoint determines the row's shard. Before these rows, one row without
    key and value goes to each shard, so that the shard checks its due times.
    """

    tools: task_context.Tools
    shard_keys: tuple[int, ...]
    """The key of each shard in Spark's state (delivery.stages.checkpoint.shards)."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = self.tools.begin()
        # Each shard checks its due times in every micro-batch, also without records.
        yield from route.written([route.Row(key) for key in self.shard_keys])
        for batch in batches:
            columns = (batch.column(name).to_pylist() for name in COLUMNS)
            yield from route.written(
                route.Row(self._shard_key_of(key), key=_place(partition, offset), value=value)
                for partition, offset, key, value in zip(*columns, strict=True)
                if key is not None
            )
        task.finish()

    def _shard_key_of(self, key: bytes) -> int:
        return self.shard_keys[_shard_of(EndpointId(key.decode()), len(self.shard_keys))]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryDecision:
    """The decision function of the retry lane. `shard_state.Shard` calls it for each shard in each micro-batch."""

    policy: window.ShardPolicy
    look_ahead_ms: int
    """Milliseconds by which an entry may leave before its due time."""

    def __call__(
        self, index: bytes | None, arrived: list[bytes], read: Callable[[int], bytes], now_ms: int
    ) -> shard_state.Decided:
        """Decide which retry entries of one shard are leased now, and which segments the shard writes and removes."""
        known = shard_scheduler.decoded(index)
        decided = shard_scheduler.decide(known, arrived, read, self.policy, now_ms=now_ms, look_ahead_ms=self.look_ahead_ms)
        written = shard_scheduler.encoded(decided.index) if decided.changed else None
        return shard_state.Decided(
            decided.leases, decided.append, decided.drop, written, shard_scheduler.backlog_of(decided, now_ms)
        )
