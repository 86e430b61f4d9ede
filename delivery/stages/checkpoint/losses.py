"""Find records that a lane had not read and Kafka no longer holds, and move the positions in the lane's checkpoint past them.

Runs in `fanout accept-loss`, while no job runs the lane, and at the start of a job that moves topics between lanes
(delivery.stages.realtime.topic_moves). A position is the next offset of a partition. Spark refuses to continue where records
are gone (`failOnDataLoss`). Gone records are lost events, and an operator has to accept the loss. Guarantee: no record that
Kafka still holds is skipped, and the lane's state is untouched. One exception: a topic that was deleted and recreated, and now
has more records than were read of the old topic, looks like the old topic.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from delivery import errors
from delivery.stages.checkpoint import recovery

EXPIRED, DELETED, ENDS_BEFORE = "expired", "deleted", "ends before"
"""Reasons of a loss: the records expired, the partition is gone, or the partition ends before the lane's position."""
_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager"
_LINES = 3
"""Lines of a file of Spark's offset log: version, start time and settings of the micro-batch, and end offsets."""
Positions = dict[str, dict[str, int]]
"""The next offset by topic and partition, as in Spark's offset log. The partition is a decimal text."""


class OffsetRange(NamedTuple):
    """The offsets that Kafka holds of one partition: the first, and the offset after the last."""

    low: int
    end: int


class Loss(NamedTuple):
    """Records of a partition that a lane had not read and Kafka no longer holds."""

    topic: str
    partition: int
    why: str
    """EXPIRED, DELETED or ENDS_BEFORE."""
    first: int
    """The first lost offset; with ENDS_BEFORE and DELETED the lane's position."""
    last: int | None
    """The last lost offset; None with ENDS_BEFORE and DELETED: the number of lost records is unknown."""


def moved(positions: Positions, held: Mapping[tuple[str, int], OffsetRange]) -> tuple[Positions, list[Loss]]:
    """Return the positions from which a lane at `positions` can continue, and the losses. Pure.

    `held`: (topic, partition) → the offsets that Kafka holds now.

    1. The partition no longer exists: the new positions do not contain it.
    2. The partition ends before the position: its topic was deleted and recreated, or its log was truncated. The lane reads the
       partition from its first record.
    3. The partition begins after the position: the records in between have expired.
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
    """Return the end offsets of an interrupted micro-batch, limited to what Kafka holds.

    The micro-batch runs again after the positions were moved, and Spark would fail if Kafka did not have all of its records.
    """
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
    """Replace the file `name` of a checkpoint by `text`, whole or not at all."""
    manager, path = _manager(spark, name)
    file = manager.createAtomic(path, True)
    file.write(text.encode())
    file.close()


def read(spark: SparkSession, name: str) -> str | None:
    """Return the text of the file `name` of a checkpoint; None: there is no such file."""
    manager, path = _manager(spark, name)
    if not manager.exists(path):
        return None
    stream = manager.open(path)
    try:
        jvm: Any = spark.sparkContext._jvm  # noqa: SLF001  # no public way, as below
        return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    finally:
        stream.close()


def delete(spark: SparkSession, name: str) -> None:
    """Delete the file `name` of a checkpoint, if it exists."""
    manager, path = _manager(spark, name)
    manager.delete(path)


def _manager(spark: SparkSession, name: str) -> tuple[Any, Any]:
    """Return Spark's file manager for the file `name`, and the path of the file."""
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001  # no public way, as below
    path = jvm.org.apache.hadoop.fs.Path(name)
    hadoop = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001  # it names the file manager
    return getattr(jvm, _MANAGER).create(path, hadoop), path


class Checkpoint:
    """The offset log in one lane's checkpoint folder: the committed positions, and the end of an interrupted micro-batch.

    The constructor reads the positions. It raises LaneFailed if the folder is damaged, or if a micro-batch was started and none
    was committed. In a folder without a started micro-batch the positions are empty.
    """

    def __init__(self, spark: SparkSession, folder: str) -> None:
        recovery.require_whole(spark, folder)
        self._spark = spark
        self._jvm: Any = spark.sparkContext._jvm  # noqa: SLF001  # no public way, as below
        self._hadoop = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001  # it names the file manager
        self._folder = folder
        begun, committed = recovery.newest(spark, folder)
        if committed < 0 <= begun:
            raise errors.LaneFailed(
                f"{folder} has committed nothing yet, so there is no position to move, and nothing was changed. Move the "
                "folder elsewhere, and start the job with source.starting_offsets = earliest: the lane begins at the first "
                "record that Kafka holds, and may repeat deliveries"
            )
        self._committed, self._begun = committed, begun if begun > committed else None
        self.positions: Positions = {} if committed < 0 else self._read(committed)
        """The committed positions; empty if the lane has never started a micro-batch."""

    def move(self, positions: Positions, held: Mapping[tuple[str, int], OffsetRange]) -> None:
        """Make the lane continue from `positions`, and limit an interrupted micro-batch to the records that Kafka holds."""
        if self._begun is not None:  # first: after a crash between the two writes the next call finds the same losses
            self._write(self._begun, clamped(self._read(self._begun), held))
        self._write(self._committed, positions)

    def change(self, change: Callable[[Positions], Positions]) -> None:
        """Replace the committed positions, and the end offsets of an interrupted micro-batch, by the result of `change`."""
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
                f"{path} is damaged, or another version of Spark wrote it. Nothing was changed: restore a backup of the lane's "
                "folder (docs/operations.md)"
            )
        return lines

    def _path(self, number: int) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._folder}/offsets/{number}")
