"""Find the offset ranges of a lane's current micro-batch, as Spark has planned them, divide them among tasks, and send them.

Used by the direct lane and the batch lane. Runs on the driver. The executors use only RecordRange and `received`. Spark's Kafka
source chooses the offsets of a micro-batch, and Spark writes them to the checkpoint before the micro-batch runs. The lane's
tasks read these records themselves (docs/adr/0053).
"""

from __future__ import annotations

import base64
import heapq
import re
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
from pyspark import SparkContext, TaskContext
from pyspark.sql import SparkSession

from delivery import errors

ENTRIES_AT_ONCE = 100
"""Partitions in one answer of the JVM. The JVM sends an answer of more than 8 KiB in parts, and the second part comes 40 ms
later, because each side waits for the other (Nagle's algorithm and delayed acknowledgements)."""
_ENTRY = re.compile(r"\(([\w.-]+)-(\d+),(-?\d+)\)")
"""A partition and its offset, as Scala writes a pair of a Kafka TopicPartition and a number."""
PARTITION_COST = 4
"""One more partition costs a task as much as this many records."""
PROPERTY = "fanout.offset_ranges"
"""Name of the local property (`SparkContext.setLocalProperty`) with the ranges of all tasks of a micro-batch. Spark copies the
local properties of the thread that runs a micro-batch to each task. Each task gets all ranges: those of 1,000 partitions have
about 20 kB."""
_encoder = msgspec.msgpack.Encoder()


class RecordRange(NamedTuple):
    """A run of offsets of one partition."""

    topic: str
    partition: int
    start: int
    """The first offset."""
    end: int
    """The offset after the last offset of the run."""


_decoder = msgspec.msgpack.Decoder(list[list[RecordRange]])


class PlannedOffsets:
    """The offsets of the micro-batch that the query called `name` runs now. Used in its `foreachBatch` function."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        self._spark = spark
        self._name = name

    def ranges(self) -> list[RecordRange]:
        """Return the offsets to read, of partitions with at least one new offset.

        A partition that the query has never read begins at 0. Raise LaneFailed if a partition is gone, or ends before the
        query's position. Spark makes these checks only when it plans to read the records itself. Without the checks, Spark
        would commit the end offsets, and the records would be lost.
        """
        # The Kafka source is the first leaf, because `topic_source.task_numbers` puts it first in its union.
        planned = self._execution().lastExecution().analyzed().collectLeaves().head()
        if planned.getClass().getSimpleName() == "LocalRelation":  # in place of a source without new offsets
            return []
        start, end = (found.get().partitionToOffsets().toSet() for found in (planned.startOffset(), planned.endOffset()))
        starts, ends = dict(_entries(start.diff(end))), dict(_entries(end.diff(start)))
        for place, offset in starts.items():
            _require_held(place, offset, ends.get(place))
        ranges = [RecordRange(*place, starts.get(place, 0), offset) for place, offset in ends.items()]
        return [found for found in ranges if found.start < found.end]

    def _execution(self) -> Any:
        # PySpark has no public way to the offsets of a micro-batch.
        for query in self._spark._jsparkSession.streams().active():  # noqa: SLF001
            if query.name() == self._name:
                return query.streamingQuery()
        raise errors.LaneFailed(
            f"the query {self._name} has ended while it handled a micro-batch. The next start runs this micro-batch again. The "
            "log before this line names the cause"
        )


def _require_held(place: tuple[str, int], position: int, end: int | None) -> None:
    """Raise LaneFailed if a partition ends before the query's position. `end` None: the partition no longer exists."""
    if end is not None and end >= position:
        return
    if end is None:
        found = f"no longer exists (the lane's position is {position}): the topic was deleted"
    else:
        found = f"ends at offset {end}, but the lane's position is {position}: the topic was created again, or its log was cut"
    raise errors.LaneFailed(
        f"partition {place[1]} of topic {place[0]} {found}. So the lane ends here. With the job stopped, "
        "`fanout accept-loss` lists what is lost"
    )


def _entries(offsets: Any) -> Iterable[tuple[tuple[str, int], int]]:
    """Yield partition and offset of each entry of a set in the JVM."""
    entries = offsets.toSeq()
    for begin in range(0, entries.size(), ENTRIES_AT_ONCE):
        part = entries.slice(begin, begin + ENTRIES_AT_ONCE)
        found = _ENTRY.findall(part.mkString())
        if len(found) != part.size():  # the partitions that _ENTRY missed would be committed without being read
            raise errors.LaneFailed(
                "Spark gave the offsets of a micro-batch in an unknown form, so none of its records was read: install the "
                "pinned pyspark"
            )
        for topic, partition, offset in found:
            yield (topic, int(partition)), int(offset)


def divided(ranges: Sequence[RecordRange], tasks: int) -> tuple[tuple[RecordRange, ...], ...]:
    """Divide the ranges into at most `tasks` parts with about equal loads. No part is empty, so there may be fewer.

    Each partition is read by exactly one task. The same ranges and number of tasks always give the same result.
    """
    parts: list[list[RecordRange]] = [[] for _ in range(min(tasks, len(ranges)))]
    loads = [(0, number) for number in range(len(parts))]
    for found in sorted(ranges, key=lambda found: (found.start - found.end, found)):
        load, number = loads[0]
        parts[number].append(found)
        heapq.heapreplace(loads, (load + found.end - found.start + PARTITION_COST, number))
    return tuple(map(tuple, parts))


def send(context: SparkContext, assignments: Sequence[Sequence[RecordRange]]) -> None:
    """Send the ranges of each task to the tasks of this micro-batch, which read them with `received`.

    Needed if Spark has serialized the plan at the start of the query: the closure of such a plan cannot have the ranges.

    Called inside the function of `foreachBatch`, on the thread on which Spark calls that function.
    """
    context.setLocalProperty(PROPERTY, base64.b64encode(zlib.compress(_encoder.encode(assignments), 1)).decode())


def received(number: int) -> list[RecordRange]:
    """Return the ranges of the task with this number, as `send` sent them. A task beyond the last part gets none.

    Raise RuntimeError if the driver's thread has never sent ranges. Each micro-batch must send its own ranges: otherwise its
    tasks would get the ranges of an earlier micro-batch.
    """
    context = TaskContext.get()
    sent = None if context is None else context.getLocalProperty(PROPERTY)
    if sent is None:
        raise RuntimeError(
            f"this task got no offset ranges (local property {PROPERTY}), so the task fails: it was started outside "
            "foreachBatch. Send this traceback to the maintainers of the platform"
        )
    assignments = _decoder.decode(zlib.decompress(base64.b64decode(sent)))
    return assignments[number] if number < len(assignments) else []
