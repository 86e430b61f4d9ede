"""Read and change the offset log in a lane's checkpoint folder, and write, read and delete other files in or beside the folder.

Runs on the driver, and in `fanout accept-loss`. This code changes the offset log only while no query of the lane runs. A
position is the next offset of a partition.
Guarantee: the files that a crash leaves behind are whole, because Spark's file manager replaces a file at once or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from delivery import errors
from delivery.stages.checkpoint import object_store, recovery

_LINES = 3
"""Lines of a file of Spark's offset log: (1) the version, (2) the micro-batch's start time and settings, (3) its end
offsets."""
Positions = dict[str, dict[str, int]]
"""The next offset by topic and partition, as in Spark's offset log. The partition is a decimal text."""


def write(spark: SparkSession, name: str, text: str) -> None:
    """Write `text` as the whole content of a checkpoint's file, at once or not at all. `name` is the file's path or URL."""
    manager, path = _manager(spark, name)
    file = manager.createAtomic(path, True)
    file.write(text.encode())
    file.close()


def read(spark: SparkSession, name: str) -> str | None:
    """Return the text of a checkpoint's file; None: there is no such file. `name` is the file's path or URL."""
    manager, path = _manager(spark, name)
    if not manager.exists(path):
        return None
    stream = manager.open(path)
    try:
        jvm: Any = spark.sparkContext._jvm  # noqa: SLF001  # PySpark has no public way to the JVM
        return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    finally:
        stream.close()


def delete(spark: SparkSession, name: str) -> None:
    """Delete a file or folder of a checkpoint, if it exists. `name` is its path or URL."""
    manager, path = _manager(spark, name)
    manager.delete(path)


def committed(spark: SparkSession, folder: str) -> Positions:
    """Return the committed positions of the lane whose checkpoint folder is `folder`; empty if it has committed nothing.

    Raise LaneFailed if the folder is damaged or another version of Spark wrote it.
    """
    _, number = recovery.newest(spark, folder)
    return {} if number < 0 else Checkpoint(spark, folder).positions


def _manager(spark: SparkSession, name: str) -> tuple[Any, Any]:
    """Return Spark's file manager for the path or URL `name`, and `name` as Hadoop's Path."""
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001  # PySpark has no public way to the JVM
    path = jvm.org.apache.hadoop.fs.Path(name)
    hadoop = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001  # it names the file manager
    return getattr(jvm, object_store.MANAGER).create(path, hadoop), path


class Checkpoint:
    """The offset log in one lane's checkpoint folder: the committed positions, and the end of an interrupted micro-batch.

    The constructor reads the positions. The constructor raises LaneFailed if the folder is damaged or another version of Spark
    wrote it, or if a micro-batch was started and none was committed. In a folder without a started micro-batch the positions
    are empty.
    """

    def __init__(self, spark: SparkSession, folder: str) -> None:
        recovery.require_whole(spark, folder)
        self._spark = spark
        self._folder = folder
        begun, committed = recovery.newest(spark, folder)
        if committed < 0 <= begun:
            raise errors.LaneFailed(
                f"{folder} has committed nothing yet, so there is no position to move, and no loss was accepted. Move the "
                "folder elsewhere, and start the job with source.starting_offsets = earliest: the lane begins at the first "
                "record that Kafka holds, and may repeat deliveries"
            )
        self._committed, self._begun = committed, begun if begun > committed else None
        self.positions: Positions = {} if committed < 0 else self._read(committed)
        """The committed positions; empty if the lane has never started a micro-batch, or if the positions of all its topics
        were moved elsewhere."""
        self.has_committed = committed >= 0
        """True if the lane has committed a micro-batch."""

    def move(self, positions: Positions, limited: Callable[[Positions], Positions], *, began_ms: int | None = None) -> None:
        """Make the lane continue from `positions`.

        If a micro-batch was interrupted, `limited` gets its stored end offsets, and returns the end offsets to store instead.
        `began_ms` becomes the start time of the committed micro-batch and of the interrupted one, in milliseconds since the
        epoch. Results and receipts that were written before this time are then ignored. None: the times stay. If a partition
        has a position and no end offset, the micro-batch reads nothing of the partition. Called only if the lane has committed
        a micro-batch.
        """
        if self._begun is not None:  # first: after a crash between the two writes the next call finds the same losses
            ends = limited(self._read(self._begun))
            # Spark refuses to run a micro-batch whose end offsets lack a partition of its start offsets.
            topics = positions.keys() | ends.keys()
            self._write(self._begun, {topic: positions.get(topic, {}) | ends.get(topic, {}) for topic in topics}, began_ms)
        self._write(self._committed, positions, began_ms)

    def has_whole_ends(self, reads: Callable[[str], bool]) -> bool:
        """Return True if the interrupted micro-batch has end offsets of all committed topics, and only of topics that are read.

        `reads` returns True for a topic that the lane reads now. Also return True if no micro-batch was interrupted. Spark
        refuses to run a micro-batch whose end offsets lack a topic.
        """
        if self._begun is None:
            return True
        ends = self._read(self._begun)
        return self.positions.keys() <= ends.keys() and all(map(reads, ends))

    def change(self, change: Callable[[Positions], Positions]) -> None:
        """Replace the committed positions, and the end offsets of an interrupted micro-batch, each by the result of `change`.

        Called only if the lane has committed a micro-batch.
        """
        if self._begun is not None:
            self._write(self._begun, change(self._read(self._begun)))
        self.positions = change(self.positions)
        self._write(self._committed, self.positions)

    def _read(self, number: int) -> Positions:
        *_, offsets = self._lines(number)
        found: Positions = json.loads(offsets)
        return found

    def _write(self, number: int, positions: Positions, began_ms: int | None = None) -> None:
        version, metadata, _ = self._lines(number)
        if began_ms is not None:
            metadata = json.dumps(json.loads(metadata) | {"batchTimestampMs": began_ms}, separators=(",", ":"))
        text = "\n".join([version, metadata, json.dumps(positions, separators=(",", ":"))])
        write(self._spark, self._name(number), text)

    def _lines(self, number: int) -> list[str]:
        name = self._name(number)
        lines = (read(self._spark, name) or "").splitlines()
        if len(lines) != _LINES:
            raise errors.LaneFailed(
                f"{name} is damaged, or another version of Spark wrote it, so this job or command ends. The file is unchanged. "
                "If fanout's version was changed, start the earlier version again. Otherwise restore a backup of the lane's "
                "folder (docs/operations.md), and start again"
            )
        return lines

    def _name(self, number: int) -> str:
        return f"{self._folder}/offsets/{number}"
