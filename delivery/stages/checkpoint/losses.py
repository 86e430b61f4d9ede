"""Find records that a lane had not read and Kafka no longer holds, and move the lane's checkpoint past them.

Runs on the driver of a command, while no job runs the lane. Spark refuses to continue where records are gone
(`failOnDataLoss`): they are lost events, and an operator has to accept the loss. Guarantee: no record that Kafka still holds is
skipped, and the lane's state is untouched. One exception: a topic that was deleted and recreated, and now has more records than
were read of the old one, looks like the old topic.
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
"""Lines of Spark's offsets file: its version, the start time and settings of the micro-batch, and its end offsets."""
Positions = dict[str, dict[str, int]]
"""The next offset by topic and partition, as Spark writes them."""


class OffsetRange(NamedTuple):
    """The offsets of a partition that Kafka holds: the first one, and the one after the last."""

    low: int
    end: int


class Loss(NamedTuple):
    """Records of a partition that are gone and that a lane had not read."""

    topic: str
    partition: int
    why: str
    first: int
    last: int | None
    """None: the number of lost records is unknown."""


def moved(positions: Positions, held: Mapping[tuple[str, int], OffsetRange]) -> tuple[Positions, list[Loss]]:
    """Return the positions at which a lane that had reached `positions` can continue, and the records lost before them.

    1. The partition no longer exists: it is left out.
    2. The partition ends before the position: its topic was deleted and recreated, or its log was truncated. All of it is read.
    3. The partition begins after the position: the records between have expired.
    4. The partition is new to a lane that has positions, and does not begin at 0: its first records have expired as well.
    """
    now: Positions = {}
    losses = []
    for topic, number, position in _partitions(positions):
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


def clamped(ends: Positions, held: Mapping[tuple[str, int], OffsetRange]) -> Positions:
    """Return the end offsets of an interrupted micro-batch, limited to what Kafka holds. It runs again after `moved`."""
    now: Positions = {}
    for topic, number, end in _partitions(ends):
        if (there := held.get((topic, int(number)))) is not None:
            now.setdefault(topic, {})[number] = min(max(end, there.low), there.end)
    return now


def _partitions(positions: Positions) -> Iterator[tuple[str, str, int]]:
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
    """The offsets in one lane's folder: the committed ones, and those of an interrupted micro-batch, if there is one."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        recovery.require_whole(spark, folder)
        self._spark = spark
        self._jvm: Any = spark.sparkContext._jvm  # noqa: SLF001  # no public way, as below
        self._hadoop = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001  # it names the file manager
        self._folder = folder
        begun, committed = recovery.newest(spark, folder)
        if committed < 0 <= begun:
            raise errors.LaneFailed(
                f"{folder} has committed nothing yet, so there is no position to move: remove the folder. The lane then starts "
                "from the beginning and loses nothing"
            )
        self._committed, self._begun = committed, begun if begun > committed else None
        self.positions: Positions = {} if committed < 0 else self._read(committed)
        """The committed positions; empty if the lane has committed nothing."""

    def move(self, positions: Positions, held: Mapping[tuple[str, int], OffsetRange]) -> None:
        """Make the lane continue from `positions`."""
        if self._begun is not None:  # first: after a crash between the two writes the next call finds the same losses
            self._write(self._begun, clamped(self._read(self._begun), held))
        self._write(self._committed, positions)

    def change(self, change: Callable[[Positions], Positions]) -> None:
        """Apply `change` to the committed offsets, and to those of an interrupted micro-batch."""
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
            raise errors.LaneFailed(
                f"{path} is damaged, or another version of Spark wrote it. Nothing was changed: see the operations document"
            )
        return lines

    def _path(self, number: int) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._folder}/offsets/{number}")
