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
from typing import NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that every PySpark codebase uses

from delivery import errors
from delivery.config import kafka_clients, plan_builder, settings
from delivery.stages.kafka import completed_reader
from delivery.webhooks.results.completed_work import CompletedWorkLog, FastLaneLog

log = logging.getLogger(__name__)


class InterruptedBatch(NamedTuple):
    """A micro-batch that was started and not committed, so it runs again."""

    batch_id: int
    since_ms: int
    """When the micro-batch first started; milliseconds since the epoch."""


def uncommitted(spark: SparkSession, checkpoint: str) -> InterruptedBatch | None:
    """Return the interrupted micro-batch of a lane, which runs again. `checkpoint` is the lane's folder.

    None: every micro-batch was committed, or the file of the interrupted one has no start time.
    """
    begun, committed = newest(spark, checkpoint)
    if begun <= committed:
        return None
    logged = spark.read.text(f"{checkpoint}/offsets/{begun}").where(F.col("value").startswith('{"batchWatermarkMs"')).collect()
    return InterruptedBatch(begun, int(json.loads(logged[0][0])["batchTimestampMs"])) if logged else None


def require_whole(spark: SparkSession, checkpoint: str) -> None:
    """Raise LaneFailed if the offsets of the newest committed micro-batch are gone from the lane's folder `checkpoint`.

    Without these offsets Spark would run an earlier micro-batch again: the newest one whose offsets the folder has. Spark would
    fail only after all deliveries of that micro-batch had been sent again. If a later micro-batch was started, Spark would fail
    at once.
    """
    committed = max(_numbers(spark, f"{checkpoint}/commits"), default=-1)
    if committed >= 0 and committed not in _numbers(spark, f"{checkpoint}/offsets"):
        raise errors.LaneFailed(
            f"{checkpoint} is damaged: offsets/{committed} is gone, though commits/{committed} exists. The lane does not start "
            "with this folder, and sends nothing: restore a backup of the folder"
        )


class Reruns:
    """Provide `work_log`, the completed-work log for the tasks of the present micro-batch of one lane.

    The driver reads completed deliveries into the log only for a micro-batch that runs again. `of` is the class that interprets
    the lane's result records.
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
        self._first: tuple[int, completed_reader.CompletedWork] | None = None
        self.work_log = self._fresh
        """The completed-work log of the micro-batch that started last."""
        self._is_untouched = False

    def mark_untouched(self) -> None:
        """Record that the lane sent nothing of the last micro-batch and left it uncommitted: the next `load` does nothing."""
        self._is_untouched = True

    def load(self) -> None:
        """Read the completed work of an interrupted micro-batch, if there is one. Called before the lane's query starts.

        If the checkpoint cannot be read, log the error: the deliveries of an interrupted micro-batch are then sent again.
        """
        if self._is_untouched:  # the work of its earlier run, if there was one, is known already
            self._is_untouched = False
            return
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
            self._first = found.batch_id, dataclasses.replace(interrupted, known=completed_reader.read(interrupted))

    def begin(self, batch_id: int) -> None:
        """Set `work_log` for the micro-batch `batch_id`. Called as each micro-batch starts."""
        if self._first is not None and self._first[0] == batch_id:
            self.work_log = self._first[1]
        else:
            self._first = None
            self.work_log = dataclasses.replace(self._fresh, since_ms=_now_ms())


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
