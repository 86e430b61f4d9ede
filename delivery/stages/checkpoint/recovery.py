"""Recognise a micro-batch that runs again, and give its tasks the log of the work that its earlier run completed.

Runs on the driver; `fanout accept-loss` uses only `newest` and `require_whole`. Spark writes the offsets of a micro-batch
before the micro-batch runs, and the commit afterwards. Offsets without a commit at the start of a lane belong to an interrupted
micro-batch, which runs first.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from collections.abc import Mapping
from typing import NamedTuple

from pyspark.sql import SparkSession

from delivery import errors
from delivery.config import kafka_clients, plan_builder, settings
from delivery.stages.kafka import completed_reader
from delivery.webhooks.results.completed_work import MAX_COMPLETED, CompletedWorkLog, FastLaneLog

log = logging.getLogger(__name__)

Ends = Mapping[str, Mapping[str, int]]
"""End offsets of a micro-batch: topic → partition (a decimal text) → the offset after the last record."""


class InterruptedBatch(NamedTuple):
    """A micro-batch that was started and not committed, so it runs again."""

    batch_id: int
    since_ms: int
    """When the micro-batch first started; milliseconds since the epoch."""
    ends: Ends
    """The micro-batch reads up to these offsets."""


def uncommitted(spark: SparkSession, checkpoint: str) -> InterruptedBatch | None:
    """Return the interrupted micro-batch of a lane, which runs again. `checkpoint` is the lane's folder.

    None: every micro-batch was committed, or the file of the interrupted one has no start time.
    """
    begun, committed = newest(spark, checkpoint)
    if begun <= committed:
        return None
    metadata, ends = _logged(spark, checkpoint, begun)
    return InterruptedBatch(begun, int(metadata["batchTimestampMs"]), ends) if metadata else None


def ends_of(spark: SparkSession, checkpoint: str, batch_id: int) -> Ends:
    """Return the end offsets of a micro-batch that was started. `checkpoint` is the lane's folder."""
    return _logged(spark, checkpoint, batch_id)[1]


def _logged(spark: SparkSession, checkpoint: str, batch_id: int) -> tuple[dict[str, int], Ends]:
    """Return the metadata and the end offsets in the file about a micro-batch. A part that the file does not have is empty."""
    lines = [row.value for row in spark.read.text(f"{checkpoint}/offsets/{batch_id}").collect()]
    found = [json.loads(line) for line in lines if line.startswith("{")]
    metadata: dict[str, int] = next((part for part in found if "batchWatermarkMs" in part), {})
    return metadata, next((part for part in found if part is not metadata), {})


def require_whole(spark: SparkSession, checkpoint: str) -> None:
    """Raise LaneFailed if the offsets of the newest committed micro-batch are gone from the lane's folder `checkpoint`.

    Without these offsets Spark would run an earlier micro-batch again: the newest one whose offsets the folder has. Spark would
    fail only after all deliveries of that micro-batch had been sent again. Only if the micro-batch after the newest committed
    one was started too, Spark would fail at once.
    """
    committed = max(_numbers(spark, f"{checkpoint}/commits"), default=-1)
    if committed >= 0 and committed not in _numbers(spark, f"{checkpoint}/offsets"):
        raise errors.LaneFailed(
            f"{checkpoint} is damaged: offsets/{committed} is gone, though commits/{committed} exists. The lane does not start "
            "with this folder, and sends nothing: restore a backup of the folder"
        )


class _Rerun(NamedTuple):
    """The last interrupted micro-batch, and its completed-work log."""

    batch_id: int
    work_log: completed_reader.CompletedWork
    ends: Ends
    """Once the lane has committed these offsets, it reads no record again that `work_log` knows."""


class Reruns:
    """Provide `work_log`, the completed-work log for the tasks of the present micro-batch of one lane.

    The driver reads completed deliveries into the log only for a micro-batch that runs again. If the lane pauses topics in that
    micro-batch, a later micro-batch reads the records of these topics. Until then the log of every micro-batch contains the
    completed deliveries, at most MAX_COMPLETED. The driver keeps them in memory only: a restart of the process forgets them.
    `of` is the class that interprets the lane's result records.
    """

    def __init__(
        self, config: settings.Settings, spark: SparkSession, lane: str, of: type[CompletedWorkLog] = FastLaneLog
    ) -> None:
        self._spark = spark
        self._checkpoint = f"{config.spark.checkpoint.rstrip('/')}/{lane}"
        self._fresh = completed_reader.CompletedWork(
            client=kafka_clients.for_librdkafka(config.kafka),
            topics=plan_builder.plan_of(config).topics,
            since_ms=_now_ms(),
            lane=of,
        )
        self._rerun: _Rerun | None = None
        self.work_log = self._fresh
        """The completed-work log of the micro-batch that started last."""
        self._is_untouched = False
        self._are_left_out = False
        """True: the rerun's log is still needed, but only for records of topics that the present query does not read."""

    def mark_untouched(self) -> None:
        """Record that the lane sent nothing of the last micro-batch and left it uncommitted: the next `load` does nothing."""
        self._is_untouched = True

    def load(self) -> None:
        """Read the completed work of an interrupted micro-batch, if there is one. Called before the lane's query starts.

        If the checkpoint cannot be read, log the error: the deliveries of an interrupted micro-batch are then sent again.
        """
        if self._is_untouched:  # the work of its earlier run, if there was one, is known already
            self._is_untouched = False
        else:
            self._load_interrupted()
        self._are_left_out = self._rerun is not None and self._are_others_read(self._rerun.ends)

    def _load_interrupted(self) -> None:
        try:
            found = uncommitted(self._spark, self._checkpoint)
        except Exception:  # the log only prevents repeats; Spark decides whether the checkpoint can be used
            log.exception(
                "the checkpoint %s could not be read for an interrupted micro-batch. The lane tries to start all the same: if "
                "there is such a micro-batch, all of its deliveries are sent again. They have the same webhook-id, except "
                "batches that get other events. Check that the job may read this folder",
                self._checkpoint,
            )
            return
        if found is not None:
            log.info(
                "micro-batch %d of %s was interrupted, and runs again without the deliveries that the topics name as completed",
                found.batch_id,
                self._checkpoint,
            )
            interrupted = dataclasses.replace(self._fresh, since_ms=found.since_ms)
            known, ends = completed_reader.read(interrupted), found.ends
            if self._rerun is not None and len(known) + len(self._rerun.work_log.known) <= MAX_COMPLETED:
                known |= self._rerun.work_log.known
                ends = _later(self._rerun.ends, ends)
            self._rerun = _Rerun(found.batch_id, dataclasses.replace(interrupted, known=known), ends)

    def begin(self, batch_id: int, *, is_pausing: bool = False) -> None:
        """Set `work_log` for the micro-batch `batch_id`. Called as each micro-batch starts.

        `is_pausing`: True if the lane has paused topics, whose records come in a later micro-batch.
        """
        if self._rerun is not None and self._rerun.batch_id == batch_id:
            self.work_log = self._rerun.work_log
            return
        if self._rerun is not None and not is_pausing and not self._are_left_out:
            reached = self._reached()
            if reached is None or _covers(reached, self._rerun.ends):
                self._rerun = None
        known = frozenset() if self._rerun is None or self._are_left_out else self._rerun.work_log.known
        self.work_log = dataclasses.replace(self._fresh, since_ms=_now_ms(), known=known)

    def _are_others_read(self, ends: Ends) -> bool:
        """Return True if committed micro-batches have read up to `ends`, except in topics that the newest one lacks.

        A micro-batch lacks a topic if it has no end offsets of it: as a rule, because the query leaves the topic out. Return
        False if there is no such topic, or if the checkpoint cannot be read.
        """
        if (reached := self._reached()) is None:
            return False
        others = {topic: ends[topic] for topic in ends.keys() & reached.keys()}
        return len(others) < len(ends) and _covers(reached, others)

    def _reached(self) -> Ends | None:
        """Return the end offsets of the newest committed micro-batch; None, with an error in the log: they cannot be read."""
        try:
            _, committed = newest(self._spark, self._checkpoint)
            return ends_of(self._spark, self._checkpoint, committed) if committed >= 0 else {}
        except Exception:  # the completed-work log only prevents repeats
            log.exception(
                "the checkpoint %s could not be read after a micro-batch had run again. The lane continues. Some deliveries of "
                "paused topics may be sent again. Check that the job may read this folder",
                self._checkpoint,
            )
            return None


def _covers(reached: Ends, ends: Ends) -> bool:
    """Return True if each offset in `ends` is reached: no partition has a smaller offset in `reached`."""
    return all(
        reached.get(topic, {}).get(number, 0) >= end for topic, partitions in ends.items() for number, end in partitions.items()
    )


def _later(ends: Ends, others: Ends) -> Ends:
    """Return each partition of `ends` and `others` with the larger of its offsets."""
    pairs = {topic: (ends.get(topic, {}), others.get(topic, {})) for topic in ends.keys() | others.keys()}
    return {
        topic: {number: max(first.get(number, 0), second.get(number, 0)) for number in first.keys() | second.keys()}
        for topic, (first, second) in pairs.items()
    }


def _now_ms() -> int:
    return int(time.time() * 1000)


def newest(spark: SparkSession, checkpoint: str) -> tuple[int, int]:
    """Return the numbers of the newest started and of the newest committed micro-batch in a lane's folder; -1: none."""
    begun, committed = (max(_numbers(spark, f"{checkpoint}/{part}"), default=-1) for part in ("offsets", "commits"))
    return begun, committed


def _numbers(spark: SparkSession, folder: str) -> list[int]:
    context = spark.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path(folder)  # type: ignore[union-attr]  # noqa: SLF001  # no public way
    files = path.getFileSystem(context._jsc.hadoopConfiguration())  # noqa: SLF001
    if not files.exists(path):
        return []
    names = [status.getPath().getName() for status in files.listStatus(path)]
    return [int(name) for name in names if name.isdigit()]
