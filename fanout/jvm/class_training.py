"""Run Spark as the job does, on generated rows, so that the JVM archives the classes that it loads.

Runs as its own process, started by fanout/jvm/class_archive.py.
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import SecretStr
from pyspark.sql import DataFrame, Row, SparkSession, functions
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues

from delivery.config import settings
from delivery.stages.lanes import session
from fanout.jvm import jars

MICRO_BATCHES = 3
"""Id of the micro-batch after which Spark is stopped. Ids begin at 0."""


def main(archive: Path) -> None:
    """Run some micro-batches with Python workers and state. When the JVM exits, it writes its classes to the file `archive`."""
    logs = f"-Dlog4j.configurationFile={session.LOG_CONFIGURATION}"  # as `session.start`: the JVM then loads classes for XML
    writing = session.java_options(logs, f"-XX:ArchiveClassesAtExit={archive}")
    connector = jars.ensure().connector
    conf = {"spark.driver.defaultJavaOptions": SecretStr(writing), "spark.sql.shuffle.partitions": SecretStr("1")}
    spark = session.start(settings.SparkSettings(conf=conf), session.Libraries(connector=connector))
    for jar in connector:
        _load_classes(spark, jar)
    rows = spark.readStream.format("rate").option("rowsPerSecond", 100).load().where("value >= 0")  # text loads the SQL parser
    shards = rows.mapInArrow(_unchanged, rows.schema).groupBy("value")
    counted = shards.transformWithState(_Counting(), "value long", "Append", "None")
    query = counted.writeStream.foreachBatch(_deliver).option("checkpointLocation", "checkpoint").start()
    while (progress := query.lastProgress) is None or progress.batchId < MICRO_BATCHES:
        query.awaitTermination(1)
    query.stop()
    spark.stop()


def _load_classes(spark: SparkSession, jar: Path) -> None:
    """Load the classes of a jar without initialising them: no broker runs here, so no query on Kafka loads them.

    A class that needs an optional dependency which is not installed is left out. One Spark job loads all 4,000 classes, in
    place of one call through py4j for each class.
    """
    names = [
        (name.removesuffix(".class").replace("/", "."),)
        for name in zipfile.ZipFile(jar).namelist()
        if name.endswith(".class") and not name.startswith("META-INF/") and name != "module-info.class"
    ]
    loaded = functions.expr("try_reflect('org.apache.spark.util.Utils', 'classForName', name, false, false)")
    spark.createDataFrame(names, "name string").select(loaded).write.format("noop").mode("append").save()


class _Counting(StatefulProcessor):
    """Keep a number for each key, as the lanes with state keep their indexes."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._count = handle.getValueState("count", "value long")
        self._parts = handle.getMapState("parts", "number long", "value long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:  # noqa: ARG002, N802, N803
        """Read and write the state of a key, and yield a row."""
        known = self._count.get()
        for row in rows:
            self._count.update((row.value if known is None else known[0],))
            self._parts.updateValue((0,), (row.value,))
        yield Row(value=key[0])

    def close(self) -> None:
        """Do nothing."""


def _deliver(batch: DataFrame, _: int) -> None:
    batch.coalesce(1).mapInArrow(_unchanged, batch.schema).collect()


def _unchanged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


if __name__ == "__main__":
    main(Path(sys.argv[1]))
