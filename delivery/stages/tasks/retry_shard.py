"""Take leases from the shards of the retry lane, as delivery.webhooks.retries.shard_scheduler decides.

The driver creates these task functions. The executors' Python workers run them. A shard is one key of Spark's state. It holds
the retry entries of some endpoints. A lease holds retry entries of one FIFO that a worker attempts now, or ends without an
attempt. These functions do not use the registry, so their closure stays the same while the query runs.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import Accumulator
from pyspark.sql import DataFrame

from delivery import errors
from delivery.registry_model import EndpointId
from delivery.stages.tasks import collect_segments, shard_state, task_context
from delivery.webhooks.batching import segment
from delivery.webhooks.retries import retry_messages, shard_backlog, shard_scheduler, window
from delivery.webhooks.state import backlog

COLUMNS = ("partition", "offset", "appended_at_ms", "key", "value")
"""Columns of the retries topic that these tasks read. `appended_at_ms` is the record's time in Kafka: when the broker appended
the record. With `CreateTime` it is when the worker gave the record to its producer."""
_place = struct.Struct(">iq")
"""Partition and offset as bytes that sort in the same order. All records of an endpoint are in one partition."""
_time = struct.Struct(">q")
"""A time in ms since the epoch, as the value of a row without key."""
_shard_of = functools.lru_cache(maxsize=50_000)(segment.shard_of)


def take_leases(
    records: DataFrame,
    policy: window.ShardPolicy,
    look_ahead_ms: int,
    pending: Accumulator[backlog.ShardBacklog],
    tools: task_context.Tools,
    *,
    topic: str,
    parallelism: int,
    shard_keys: tuple[int, ...],
) -> DataFrame:
    """Return the leases to deliver now, in rows that `shard_state.items_of` reads.

    `records` come from the retries topic, which `topic` names: postponed deliveries, reports of leases, and other messages for
    the shards. At most `parallelism` tasks read `records`. Each record goes to the shard of its endpoint, whose key is one of
    `shard_keys`. The shard then decides by `policy`. The tasks add to `pending` the backlog of each shard: the entries that
    still wait, the endpoints to suppress, and the failing endpoints.

    No entry is leased before it is due. The driver wakes the lane `look_ahead_ms` before the due time of the backlog. So the
    backlog's due time is `look_ahead_ms` after the due time of the next entry. The wake-up then comes when the entry is due.
    """
    spread = (
        records.select(*COLUMNS)
        .coalesce(parallelism)
        .mapInArrow(SpreadPartition(tools=tools, shard_keys=shard_keys), collect_segments.SCHEMA)
    )
    return shard_state.decide_shards(
        spread, RetryDecision(topic=topic, policy=policy, look_ahead_ms=look_ahead_ms), pending, tools.begin
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadPartition:
    """The function that Spark calls for a partition of records: yield rows for the shards, with `collect_segments.SCHEMA`.

    1. First, a row without key and value for each shard, so that the shard checks its due times.
    2. Then a row for each record with a key and a value, for the shard of the record's endpoint. The record's key is the id of
       the endpoint. A record without a value is padding (delivery.webhooks.retries.retry_records), and yields no row.
    3. At the end, a row without key for each shard, unless the task has read no record. The row's value is a time in ms since
       the epoch. The task has read a last record in each of its partitions: the value is the earliest timestamp of these last
       records.
    """

    tools: task_context.Tools
    shard_keys: tuple[int, ...]
    """The key of each shard in Spark's state (delivery.stages.checkpoint.shards)."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = self.tools.begin()
        # Each shard checks its due times in every micro-batch, also without records.
        yield from collect_segments.written([collect_segments.RoutedRow(key) for key in self.shard_keys])
        read_until: dict[int, int] = {}
        for batch in batches:
            columns = [batch.column(name).to_pylist() for name in COLUMNS]
            # The last record of a partition decides. The newest time would be that of the worker with the fastest clock.
            read_until |= zip(columns[0], columns[2], strict=True)
            yield from collect_segments.written(
                collect_segments.RoutedRow(self._shard_key_of(key), key=_place.pack(partition, offset), value=value)
                for partition, offset, _, key, value in zip(*columns, strict=True)
                if key is not None and value is not None
            )
        if read_until:
            # To all shards: each partition may have the report of any shard.
            least_ms = _time.pack(min(read_until.values()))
            yield from collect_segments.written([collect_segments.RoutedRow(key, value=least_ms) for key in self.shard_keys])
        task.finish()

    def _shard_key_of(self, key: bytes) -> int:
        # A key that is no UTF-8 belongs to a record of another program. Its shard then names the record.
        return self.shard_keys[_shard_of(EndpointId(key.decode(errors="replace")), len(self.shard_keys))]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryDecision:
    """The decision function of the retry lane. `shard_state.Shard` calls it for each shard in each micro-batch."""

    topic: str
    """Name of the retries topic, for the message about an unreadable record."""
    policy: window.ShardPolicy
    look_ahead_ms: int
    """Milliseconds by which the driver wakes the lane before the due time of its backlog. So the backlog's due time is
    the due time of the first entry plus these milliseconds. Then no wake-up comes before an entry is due."""

    def __call__(
        self, index: bytes | None, arrived: list[shard_state.Arrived], read: Callable[[int], bytes], now_ms: int
    ) -> shard_state.Decided:
        """Decide which retry entries of one shard are leased now, and which segments the shard writes and removes.

        Raise RecordUnreadable, and change nothing, if a record is no message that this version reads.
        `shard_state.Decide` names the other errors.
        """
        known = shard_scheduler.decoded(index)
        decided = shard_scheduler.decide(
            known,
            [self._message(record) for record in arrived if record.key],
            read,
            self.policy,
            now_ms=now_ms,
            look_ahead_ms=self.look_ahead_ms,
            behind_ms=behind_ms(arrived, now_ms),
        )
        written = shard_scheduler.encoded(decided.index) if decided.changed else None
        return shard_state.Decided(decided.leases, decided.append, decided.drop, written, shard_backlog.of(decided, now_ms))

    def _message(self, record: shard_state.Arrived) -> shard_scheduler.Message:
        try:
            return retry_messages.message(record.value)
        except (errors.StateUnreadable, ValueError, RecursionError) as exc:
            partition, offset = _place.unpack(record.key)
            raise errors.RecordUnreadable(
                f"record {self.topic}:{partition}:{offset} is no message that this version of fanout reads "
                f"({str(exc).partition('. ')[0]}), so all lanes stop before the record, and the state is unchanged. If a "
                "newer version of fanout wrote the record, start that version. If another program wrote it, stop it and the "
                f"job, delete the partition's records before offset {offset + 1} (kafka-delete-records), and run `fanout "
                "accept-loss --yes`. The deletion also removes earlier records that the lane has not read: `fanout reconcile` "
                "then names the lost deliveries"
            ) from exc


def behind_ms(arrived: Iterable[shard_state.Arrived], now_ms: int) -> int:
    """Return by how many ms at most the lane is behind in the retries topic; 0: it is not behind.

    A partition is behind by the time from its last record in this micro-batch to `now_ms`, the start of the micro-batch. The
    largest value of all partitions counts, because any partition may have a message for the shard. A micro-batch reads every
    partition with unread records. So a partition without a record in the micro-batch is not behind.
    """
    read_until = (_time.unpack(row.value)[0] for row in arrived if not row.key)
    return max(0, now_ms - min(read_until, default=now_ms))
