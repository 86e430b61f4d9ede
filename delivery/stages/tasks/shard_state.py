"""Keep each shard of a lane in Spark's state, and decide in each micro-batch which items leave the shard.

Used by the batch and the retry lane. The driver calls `decide_shards`. The executors' Python workers run the rest. A shard
holds the waiting items of some endpoints, and is one key of Spark's state. The cost of the state depends on keys and
micro-batches, not on events (docs/architecture.md). A shard has an index and segments. The index is one small value, rewritten
when it changes. A segment holds items. A segment is written once, read when a decision needs its items, and removed when none
of its items is left. The number of a segment is never reused.
Guarantee: Spark commits the state with the offsets, so a micro-batch that runs again finds the same state.
"""

from __future__ import annotations

import collections
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import msgspec
import pyarrow as pa
from pyspark import Accumulator
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812  # the name that every PySpark codebase uses
from pyspark.sql import types as T  # noqa: N812  # the name that every PySpark codebase uses
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues

from delivery.stages import process_state
from delivery.webhooks.state import chunking
from delivery.webhooks.state.backlog import ShardBacklog

ROW_BYTES = 256 * 1024
"""Most bytes of items in one output row; a larger item has a row of its own. A row costs about 10 µs, whatever its size, and
ten thousand endpoints have ten thousand small batches."""
_BYTES = T.StructType([T.StructField("bytes", T.BinaryType())])
_NUMBER = T.StructType([T.StructField("number", T.LongType())])


class Arrived(NamedTuple):
    """A value that arrived for a shard.

    1. In the batch lane: a segment.
    2. In the retry lane: a message of the retries topic. If `key` is empty: the time in ms up to which a task has read the
       retries topic (`retry_shard.SpreadPartition`).
    """

    key: bytes
    """The key of the value's row (`collect_segments.SCHEMA`); empty: the row has none. A shard's values are in the order of
    their keys."""
    value: bytes


class Decided(NamedTuple):
    """The decision on one shard in one micro-batch: items to deliver, changes of the shard's state, and its backlog."""

    due: list[bytes]
    """Batches or leases to deliver now."""
    append: dict[int, bytes]
    """Segments to write, by number."""
    drop: list[int]
    """Numbers of the segments to remove."""
    written: bytes | None
    """The new index; None: the shard did not change, and neither index nor segments are written."""
    pending: ShardBacklog
    """The backlog: the items that still wait in the shard."""


class RunningTask(Protocol):
    """The task that decides on shards. `task_context.Task` implements it."""

    def finish(self) -> object:
        """Write the remaining results of the worker, and wait until Kafka has all rows of the task.

        Raise KafkaUnavailable if a row could not be written.
        """


class Decide(Protocol):
    """The decision function of a lane: `BatchDecision` or `RetryDecision`. Survives pickling."""

    def __call__(self, index: bytes | None, arrived: list[Arrived], read: Callable[[int], bytes], now_ms: int) -> Decided:
        """Decide on a shard by its index, the values that arrived for the shard, and the time of the micro-batch.

        `read` returns a segment of the shard by its number. `index` None: the shard is new. Raise StateUnreadable if this
        version cannot read the index or a segment, and RecordUnreadable if it cannot read a value that arrived. Raise
        LookupError if `read` finds no segment.
        """


def decide_shards(
    rows: DataFrame, decide: Decide, pending: Accumulator[ShardBacklog], begin: Callable[[], RunningTask]
) -> DataFrame:
    """Return the batches or leases to deliver now, in rows that `items_of` reads. "Now" is the start of the micro-batch.

    `rows` has the columns of `collect_segments.SCHEMA`. A task calls `begin` in the worker before the task's first shard, and
    not if the task has no rows. `pending` adds up the backlogs of the shards.

    Spark writes the time into the offset log, so a micro-batch that runs again decides by the same time. The timers of
    `transformWithState` would need a micro-batch at each trigger, even without waiting items. With four shards, such a
    micro-batch took 0.9 CPU seconds on a busy machine. Instead each row carries the time, and delivery.stages.kafka.wakeups
    sends a record when an item is due.
    """
    return (
        rows.select("shard", "key", "value", F.unix_millis(F.current_timestamp()).alias("now_ms"))
        .groupBy("shard")
        .transformWithState(Shard(decide, pending, begin), "value binary", "Append", "None")
        .select("value")
    )


def items_of(batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """Yield the batches or leases in the rows that `decide_shards` returns. Called in the tasks that deliver."""
    values = (value for batch in batches for value in batch.column("value").to_pylist())
    return itertools.chain.from_iterable(map(items_in_row, values))


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[bytes])


def items_in_row(value: bytes) -> list[bytes]:
    """Return the batches or leases that share a row of `decide_shards`."""
    return _decoder.decode(value)


MOST_LEFT_OPEN = 8
"""Most connections to the state that a process leaves open after their tasks. See `_leave_open`."""


def _leave_open(connection: Any) -> None:
    """Keep a task's socket to the state server open until this process has run some more tasks.

    Also do not report to the server that the processor is closed. The server is a thread of the JVM
    (TransformWithStateInPySparkStateServer of Spark 4.1). After such a report, or when the worker closes its socket, the thread
    stops without closing its own socket, so the JVM would leak one socket in each task. The thread closes its socket if Spark
    interrupts the thread during a read. Spark interrupts it when the task ends.
    """
    connection.set_handle_state = lambda _: None
    left_open: collections.deque[Any] = process_state.STATE_CONNECTIONS.get(lambda: collections.deque(maxlen=MOST_LEFT_OPEN))
    left_open.append(connection)


class Shard(StatefulProcessor):
    """The processor that Spark calls for each shard with rows in a micro-batch: read the shard's state, decide, write it."""

    def __init__(self, decide: Decide, pending: Accumulator[ShardBacklog], begin: Callable[[], RunningTask]) -> None:
        self._decide = decide
        self._pending = pending
        self._begin = begin
        self._task: RunningTask | None = None
        self._connection: Any = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state. Spark calls `init` and `close` in each task, and once on the driver before the query starts."""
        self._connection = handle._statefulProcessorApiClient  # noqa: SLF001  # see _leave_open
        self._index = handle.getValueState("index", _BYTES)
        self._segments = handle.getMapState("segments", _NUMBER, _BYTES)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:  # noqa: ARG002, N802, N803
        """Decide on the shard `key` by the values that arrived for it, sorted by the column `key` of `rows`.

        Yield rows with the batches or leases to deliver, and write what changed of the shard into Spark's state.
        """
        self._task = self._task or self._begin()
        arrived: list[Arrived] = []
        now_ms = 0
        for row in rows:
            now_ms = row.now_ms
            if row.value is not None:
                arrived.append(Arrived(bytes(row.key or b""), bytes(row.value)))
        arrived.sort(key=operator.attrgetter("key"))
        written = self._index.get()
        index = None if written is None else bytes(written[0])
        decided = self._decide(index, arrived, self._read, now_ms)
        for chunk in chunking.chunks(decided.due, len, ROW_BYTES):
            yield Row(value=_encoder.encode(chunk))
        self._pending.add(decided.pending)
        if decided.written is None:
            return
        for number, segment in decided.append.items():
            self._segments.updateValue((number,), (segment,))
        for number in decided.drop:
            self._segments.removeKey((number,))
        self._index.update((decided.written,))

    def close(self) -> None:
        """If the Spark task has handled rows, write its last results and end it. Otherwise do nothing."""
        if self._task is not None:
            self._task.finish()
            _leave_open(self._connection)

    def _read(self, number: int) -> bytes:
        segment = self._segments.getValue((number,))
        if segment is None:
            raise LookupError(
                f"segment {number} of a shard is missing in its state, so all lanes stop, and the state is unchanged: restore "
                "a backup of the checkpoint"
            )
        return bytes(segment[0])
