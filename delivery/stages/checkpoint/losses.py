"""Find what a lane was still to read and Kafka holds no more, and move the lane's checkpoint past it.

Runs on the driver of a command, while no job runs the lane. Spark refuses to go on where records are gone (`failOnDataLoss`):
they are lost events, and somebody has to say that they are given up. Guarantee: nothing that Kafka still holds is passed over,
and what waits in the lane's state is untouched. The exception is a topic that was made anew and has more records by now than
were read of the old one: nobody can tell it from that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from delivery import errors
from delivery.stages.checkpoint import recovery

EXPIRED, DELETED, ENDS_BEFORE = "expired", "deleted", "ends before"
_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager"
_LINES = 3
"""Of Spark's file of offsets: its version, when the micro-batch began and by which settings, and up to where it reads."""
Positions = dict[str, dict[str, int]]
"""The next offset by topic and partition, as Spark writes them."""


class Held(NamedTuple):
    """What Kafka holds of a partition: the first offset, and the one behind the last."""

    low: int
    end: int


class Loss(NamedTuple):
    """Records of a partition that a lane was still to read, and that are gone."""

    topic: str
    partition: int
    why: str
    first: int
    last: int | None
    """None: nobody knows how many there were."""


def moved(positions: Positions, held: Mapping[tuple[str, int], Held]) -> tuple[Positions, list[Loss]]:
    """Return from where a lane can go on that had come to `positions`, and what it has lost by that.

    1. The partition is there no more: it is left out.
    2. It ends before: its topic was deleted and made anew, or its log was cut short. All of it is read.
    3. It begins after: what was between has expired.
    4. It is new to a lane that has positions, and does not begin at 0: what was before has expired as well.
    """
    now: Positions = {}
    losses = []
    for topic, number, position in _each(positions):
        there = held.get((topic, int(number)))
        if there is None:
            losses.append(Loss(topic, int(number), DELETED, position, None))
            continue
        if position > there.end:
            losses.append(Loss(topic, int(number), ENDS_BEFORE, position, None))
        elif position < there.low:
            losses.append(Loss(topic, int(number), EXPIRED, position, there.low - 1))
        is_held = there.low <= position <= there.end
        now.setdefault(topic, {})[number] = position if is_held else there.low
    for (topic, partition), there in held.items():
        if positions and there.low > 0 and str(partition) not in positions.get(topic, {}):
            losses.append(Loss(topic, partition, EXPIRED, 0, there.low - 1))
            now.setdefault(topic, {})[str(partition)] = there.low
    return now, losses


def fitted(ends: Positions, held: Mapping[tuple[str, int], Held]) -> Positions:
    """Return up to where a micro-batch reads that was to read up to `ends` and runs again after what `moved` returns."""
    now: Positions = {}
    for topic, number, end in _each(ends):
        if (there := held.get((topic, int(number)))) is not None:
            now.setdefault(topic, {})[number] = min(max(end, there.low), there.end)
    return now


def _each(positions: Positions) -> Iterator[tuple[str, str, int]]:
    for topic, partitions in positions.items():
        for number, position in partitions.items():
            yield topic, number, position


def write(spark: SparkSession, name: str, text: str) -> None:
    """Write a file of a checkpoint, whole or not at all."""
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001  # no public way, as below
    path = jvm.org.apache.hadoop.fs.Path(name)
    hadoop = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001  # it names the file manager
    file = getattr(jvm, _MANAGER).create(path, hadoop).createAtomic(path, True)
    file.write(text.encode())
    file.close()


class Checkpoint:
    """The offsets in one lane's folder: what it has committed, and the micro-batch that was broken off, if there is one."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        recovery.require_whole(spark, folder)
        self._spark = spark
        self._jvm: Any = spark.sparkContext._jvm  # noqa: SLF001  # no public way, as below
        self._hadoop = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001  # it names the file manager
        self._folder = folder
        begun, committed = recovery.newest(spark, folder)
        if committed < 0 <= begun:
            raise errors.LaneFailed(
                f"{folder} has committed nothing yet: remove it, and the lane begins anew without any loss of its own"
            )
        self._committed, self._begun = committed, begun if begun > committed else None
        self.positions: Positions = {} if committed < 0 else self._read(committed)
        """Up to where everything is committed; empty where nothing is."""

    def move(self, positions: Positions, held: Mapping[tuple[str, int], Held]) -> None:
        """Have the lane go on from `positions`."""
        if self._begun is not None:  # first: after a crash between the two the next call finds the same losses
            self._write(self._begun, fitted(self._read(self._begun), held))
        self._write(self._committed, positions)

    def change(self, change: Callable[[Positions], Positions]) -> None:
        """Have the lane go on by changed offsets, which those of a micro-batch that was broken off become as well."""
        if self._begun is not None:
            self._write(self._begun, change(self._read(self._begun)))
        self.positions = change(self.positions)
        self._write(self._committed, self.positions)

    def _read(self, number: int) -> Positions:
        *_, offsets = self._lines(number)
        found: Positions = json.loads(offsets)
        return found

    def _write(self, number: int, positions: Positions) -> None:
        version, metadata, _ = self._lines(number)
        text = "\n".join([version, metadata, json.dumps(positions, separators=(",", ":"))])
        write(self._spark, f"{self._folder}/offsets/{number}", text)

    def _lines(self, number: int) -> list[str]:
        path = self._path(number)
        stream = path.getFileSystem(self._hadoop).open(path)
        try:
            lines = str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")).splitlines()
        finally:
            stream.close()
        if len(lines) != _LINES:
            raise errors.LaneFailed(f"{path} is damaged, or of another version of Spark: see the operations document")
        return lines

    def _path(self, number: int) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._folder}/offsets/{number}")
