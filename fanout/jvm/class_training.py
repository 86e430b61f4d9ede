"""Run Spark as the job does, on generated rows, so that the JVM archives the classes that it loads.

Runs as its own process, started by fanout/jvm/class_archive.py.
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from pydantic import SecretStr
from pyspark.sql import SparkSession, functions

from delivery.config import settings
from delivery.stages.lanes import session
from fanout.jvm import jars

MICRO_BATCHES = 3
"""Id of the micro-batch after which Spark is stopped. Ids begin at 0."""


def main(archive: Path) -> None:
    """Run some micro-batches with Python workers and state. When the JVM exits, it writes its classes to the file `archive`."""
    writing = session.java_options(f"-XX:ArchiveClassesAtExit={archive}")
    connector = jars.ensure().connector
    conf = {"spark.driver.defaultJavaOptions": SecretStr(writing), "spark.sql.shuffle.partitions": SecretStr("1")}
    spark = session.start(settings.SparkSettings(conf=conf), session.Libraries(connector=connector))
    for jar in connector:
        _load_classes(spark, jar)
    rows = spark.readStream.format("rate").option("rowsPerSecond", 100).load().where("value >= 0")  # text loads the SQL parser
    through_python = rows.mapInArrow(_unchanged, rows.schema).dropDuplicates(["value"])
    query = through_python.writeStream.format("noop").option("checkpointLocation", "checkpoint").start()
    while (progress := query.lastProgress) is None or progress.batchId < MICRO_BATCHES:
        query.awaitTermination(1)
    query.stop()
    spark.stop()


def _load_classes(spark: SparkSession, jar: Path) -> None:
    """Load the classes of a jar without initialising them: no broker runs here, so no query on Kafka loads them.

    A class that needs an optional dependency which is not installed is left out. One job of Spark loads all classes, in place
    of one call through py4j for each of 4,000.
    """
    names = [
        (name.removesuffix(".class").replace("/", "."),)
        for name in zipfile.ZipFile(jar).namelist()
        if name.endswith(".class") and not name.startswith("META-INF/") and name != "module-info.class"
    ]
    loaded = functions.expr("try_reflect('org.apache.spark.util.Utils', 'classForName', name, false, false)")
    spark.createDataFrame(names, "name string").select(loaded).write.format("noop").mode("append").save()


def _unchanged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


if __name__ == "__main__":
    main(Path(sys.argv[1]))
