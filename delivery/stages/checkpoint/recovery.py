"""Know when a micro-batch runs again, and give its tasks the journal of what its earlier run has written.

Runs on the driver. Spark writes the offsets of a micro-batch before it runs and its commit afterwards. Where a lane starts and
finds offsets without a commit, that micro-batch was broken off, and is the first to run.
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
from delivery.config import kafka_clients, settings, worker_plans
from delivery.stages.checkpoint import completed_reader
from delivery.webhooks.results.completed_work import CompletedWorkLog, FastLaneLog

log = logging.getLogger(__name__)


class Uncommitted(NamedTuple):
    """A micro-batch that was begun and not committed."""

    batch_id: int
    since_ms: int
    """When it was begun first."""


def uncommitted(spark: SparkSession, checkpoint: str) -> Uncommitted | None:
    """Return the micro-batch that a lane's checkpoint says is to run again."""
    begun, committed = newest(spark, checkpoint)
    if begun <= committed:
        return None
    logged = spark.read.text(f"{checkpoint}/offsets/{begun}").where(F.col("value").startswith('{"batchWatermarkMs"')).collect()
    return Uncommitted(begun, int(json.loads(logged[0][0])["batchTimestampMs"])) if logged else None


def require_whole(spark: SparkSession, checkpoint: str) -> None:
    """Raise LaneFailed where micro-batches were committed of which the offsets are gone.

    Spark would run the newest of which it has the offsets, an old one, and refuse when all of that was sent once more.
    """
    begun, committed = newest(spark, checkpoint)
    if begun < committed:
        raise errors.LaneFailed(
            f"{checkpoint} is damaged: offsets/{committed} is gone, though commits/{committed} is there. "
            "Nothing was sent: restore a backup of the folder"
        )


class Reruns:
    """Give the tasks of each micro-batch of one lane their journal."""

    def __init__(
        self, config: settings.Settings, spark: SparkSession, lane: str, of: type[CompletedWorkLog] = FastLaneLog
    ) -> None:
        self._spark = spark
        self._checkpoint = f"{config.spark.checkpoint.rstrip('/')}/{lane}"
        self._fresh = completed_reader.Journal(
            client=kafka_clients.for_librdkafka(config.kafka),
            topics=worker_plans.of(config).topics,
            since_ms=_now_ms(),
            lane=of,
        )
        self._first: tuple[int, completed_reader.Journal] | None = None
        self.journal = self._fresh
        """Of the micro-batch that was begun last."""
        self._is_untouched = False

    def untouched(self) -> None:
        """Take note that the micro-batch which was begun last is handed back before anything of it was done."""
        self._is_untouched = True

    def read(self) -> None:
        """Read the journal of the micro-batch that was broken off, if there is one. Called before the lane starts."""
        if self._is_untouched:  # whatever an earlier run had done of it is known already
            self._is_untouched = False
            return
        try:
            found = uncommitted(self._spark, self._checkpoint)
        except Exception:  # the journal only saves repeats; whether the checkpoint can be used is Spark's to say
            log.exception(
                "the checkpoint does not say whether a micro-batch was broken off; if one was, it is made again whole"
            )
            return
        if found is not None:
            log.info("micro-batch %d was broken off, and runs again", found.batch_id)
            of = dataclasses.replace(self._fresh, since_ms=found.since_ms)
            self._first = found.batch_id, dataclasses.replace(of, known=completed_reader.read(of))

    def began(self, batch_id: int) -> None:
        """Take note that a micro-batch begins."""
        if self._first is not None and self._first[0] == batch_id:
            self.journal = self._first[1]
        else:
            self._first = None
            self.journal = dataclasses.replace(self._fresh, since_ms=_now_ms())


def _now_ms() -> int:
    return int(time.time() * 1000)


def newest(spark: SparkSession, checkpoint: str) -> tuple[int, int]:
    """Return the newest micro-batch that was begun and the newest that was committed; -1: none."""
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
