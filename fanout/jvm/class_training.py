"""Run Spark as the job does, on generated rows, so that the JVM archives the loaded classes.

Runs as its own process, started by fanout/jvm/class_archive.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from pydantic import SecretStr

from delivery.config import settings
from delivery.stages.lanes import session
from fanout.jvm import jars

MICRO_BATCHES = 3
"""Micro-batches to run before Spark is stopped."""


def main(archive: Path) -> None:
    """Run some micro-batches with Python workers and state. The JVM writes `archive` at its end."""
    writing = session.java_options(f"-XX:ArchiveClassesAtExit={archive}")
    libraries = session.Libraries(jars=jars.ensure().connector)
    spark = session.start(settings.Spark(conf={"spark.driver.defaultJavaOptions": SecretStr(writing)}), libraries)
    rows = spark.readStream.format("rate").option("rowsPerSecond", 100).load()
    through_python = rows.mapInArrow(_unchanged, rows.schema).dropDuplicates(["value"])
    query = through_python.writeStream.format("noop").option("checkpointLocation", "checkpoint").start()
    while (progress := query.lastProgress) is None or progress.batchId < MICRO_BATCHES:
        query.awaitTermination(1)
    query.stop()
    spark.stop()


def _unchanged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


if __name__ == "__main__":
    main(Path(sys.argv[1]))
