"""Keep what waits in Spark's state, and let it leave: the shell around the decisions of a lane.

Runs in the executors' Python workers. One key is one shard of endpoints: Spark's state costs by the key and micro-batch, not by
the event (docs/architecture.md). A shard's index is one small value, rewritten when it changes; its segments are written once
under growing numbers, read when something leaves, and removed. Guarantee: Spark commits the state with the offsets, so that a
micro-batch that runs again finds the state that it found the first time.
"""

from __future__ import annotations

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

from delivery.webhooks.state import chunking
from delivery.webhooks.state.backlog import Pending

ROW_BYTES = 256 * 1024
"""What leaves shares rows of so many bytes; what is larger has one alone. A row costs some 10 µs on its way, whatever is in it,
and ten thousand endpoints have ten thousand small batches where a thousand have a thousand."""
_BYTES = T.StructType([T.StructField("bytes", T.BinaryType())])
_NUMBER = T.StructType([T.StructField("number", T.LongType())])


class Decided(NamedTuple):
    """What is to be done with a shard."""

    left: list[bytes]
    append: dict[int, bytes]
    drop: list[int]
    written: bytes | None
    """The index; None: nothing changed, and nothing is written."""
    told: Pending


class Begun(Protocol):
    """A task that has begun, in its worker."""

    def finish(self) -> object:
        """End it."""


class Decide(Protocol):
    """The decision of a lane. Survives pickling."""

    def __call__(self, index: bytes | None, arrived: list[bytes], read: Callable[[int], bytes], now_ms: int) -> Decided:
        """Decide by a shard's index, what arrived for it, and its segments."""


def kept(rows: DataFrame, decide: Decide, told: Accumulator[Pending], begin: Callable[[], Begun]) -> DataFrame:
    """Return what leaves now, by the time at which the micro-batch began, in rows that `left` reads.

    `begin` is called as each task begins, in its worker. The time is in the offset log: a micro-batch that runs again decides
    by the same. `transformWithState` knows processing time, but only by running a micro-batch at each trigger, whether anything
    waits or not: 0.9 CPU seconds each with four shards, the empty routing included, on a busy machine. Here the rows bring the
    time, and delivery.stages.kafka.wakeups a record when something is due.
    """
    return (
        rows.select("shard", "key", "value", F.unix_millis(F.current_timestamp()).alias("now_ms"))
        .groupBy("shard")
        .transformWithState(Shard(decide, told, begin), "value binary", "Append", "None")
        .select("value")
    )


def left(batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """Yield what has left, of the Arrow batches that come of `kept`."""
    values = (value for batch in batches for value in batch.column("value").to_pylist())
    return itertools.chain.from_iterable(map(those_in, values))


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[bytes])


def those_in(value: bytes) -> list[bytes]:
    """Return what shares a row."""
    return _decoder.decode(value)


class Shard(StatefulProcessor):
    """The state of one shard, and its decision in each micro-batch."""

    def __init__(self, decide: Decide, told: Accumulator[Pending], begin: Callable[[], Begun]) -> None:
        self._decide = decide
        self._told = told
        self._begin = begin
        self._task: Begun | None = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Name the state. Called once a task, and once on the driver before the query begins, as `close` is."""
        self._index = handle.getValueState("index", _BYTES)
        self._segments = handle.getMapState("segments", _NUMBER, _BYTES)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:  # noqa: ARG002, N802, N803
        """Take what came for the shard, in the order of its keys where it has some; yield what leaves it."""
        self._task = self._task or self._begin()
        arrived, now_ms = [], 0
        for row in rows:
            now_ms = row.now_ms
            if row.value is not None:
                arrived.append((bytes(row.key or b""), bytes(row.value)))
        arrived.sort(key=operator.itemgetter(0))
        written = self._index.get()
        index = None if written is None else bytes(written[0])
        decided = self._decide(index, [value for _, value in arrived], self._read, now_ms)
        for some in chunking.chunks(decided.left, len, ROW_BYTES):
            yield Row(value=_encoder.encode(some))
        self._told.add(decided.told)
        if decided.written is None:
            return
        for number, segment in decided.append.items():
            self._segments.updateValue((number,), (segment,))
        for number in decided.drop:
            self._segments.removeKey((number,))
        self._index.update((decided.written,))

    def close(self) -> None:
        """End the task, if one has begun."""
        if self._task is not None:
            self._task.finish()

    def _read(self, number: int) -> bytes:
        kept = self._segments.getValue((number,))
        if kept is None:
            raise LookupError(f"segment {number} of a shard is not in its state")
        return bytes(kept[0])
