"""Start Spark as this application needs it.

Runs on the driver.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from delivery import errors
from delivery.config import settings
from delivery.stages.checkpoint import object_store
from delivery.stages.lanes import local_address

log = logging.getLogger(__name__)

LOG_LEVEL = "WARN"
"""What Spark itself logs."""
LOG_CONFIGURATION = Path(__file__).with_name("log4j2.xml")
JVM_OPTIONS = ("-XX:+UseParallelGC", "-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m")
"""Less CPU than by default: the collector a sixth of the JVM's in the load test, as small heaps do without shorter pauses; the
quick compiler alone another third, as the other one takes minutes for code that mostly waits (docs/adr/0024). With one compiler
the JVM keeps 48 MB for its code, and a lane with state fills them in 90 s: it throws most of it away and compiles anew, for ten
seconds at twice the latency. 240 MB is what it keeps with both."""
RETAINED = "20"
"""So many finished jobs, stages and queries Spark remembers."""
ALWAYS = {
    # A task that is run twice at once would send twice.
    "spark.speculation": "false",
    # Where an executor took with it what other tasks were to read, Spark would run all of those again, beside those that still
    # run, and tell none of them: both would send. The lane starts again instead, by its journal (docs/adr/0025).
    "spark.stage.maxConsecutiveAttempts": "1",
    "spark.executor.defaultJavaOptions": " ".join(JVM_OPTIONS),
    "spark.python.worker.reuse": "true",
    # The broadcast snapshot holds customers' secrets; without this, its blocks would lie on the local disks in the clear.
    "spark.io.encryption.enabled": "true",
    # The key of those blocks, and closures with the login of Kafka, cross between driver and executors: only to who knows the
    # application's secret, and encrypted. Spark makes the secret by itself on one machine, on Kubernetes and on YARN.
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    # Of names and values; also of the options of the Kafka source.
    "spark.redaction.regex": r"(?i)secret|password|token|access[.]?key|keystore[.]key|credential|user[.]info|jaas"
    r"|keys?[._]ring|database[._]url",
    # For each Kafka partition of each micro-batch Spark writes the text of a class that turns records into rows, and then finds
    # that it has it compiled: half of the CPU of small tasks. Without, it interprets these and all plans (docs/adr/0029).
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # Above the number of partitions, or Spark would open and close a consumer for each of them in each micro-batch.
    "spark.kafka.consumer.cache.capacity": "4096",
    # The first records are on their way while the rest is being read.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    "spark.sql.streaming.numRecentProgressUpdates": "20",
    # For its pages, shown or not. Of ten micro-batches a second, a thousand live long enough to fill the old part of the heap,
    # and emptying that stops everything for 0.3 s each minute (docs/adr/0029).
    "spark.ui.retainedJobs": RETAINED,
    "spark.ui.retainedStages": RETAINED,
    "spark.sql.ui.retainedExecutions": RETAINED,
    "spark.ui.showConsoleProgress": "false",
    "spark.scheduler.mode": "FAIR",
    # Streams do without it, and say so in the log at each start.
    "spark.sql.adaptive.enabled": "false",
    # A sum over all bytes that are shuffled: a tenth of the JVM's samples in the batch lane. By it Spark would run the tasks
    # behind a shuffle once more where a task before it ran again and wrote other bytes; what they have sent would be repeated.
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "false",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "false",
    # The state of the lanes: on disk, and a micro-batch writes what it changed.
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
LOCAL_FILES = "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem"
"""Hadoop's own starts a process, `chmod`, for every file that it writes on a local disk, and one for its checksum: ten in each
micro-batch of two shards, 100 ms of it on two busy cores (docs/adr/0026)."""
LOOKED_UP_ONCE = (
    "functions",
    "PythonUtils",
    "PythonSQLUtils",
    "SimplePythonFunction",
    "org.apache.spark.sql.classic.SparkSession",
    "org.apache.spark.sql.classic.SparkSession$",
    "org.apache.spark.sql.execution.python.UserDefinedPythonFunction",
)
"""What PySpark asks the JVM for by these names each time that it makes a plan. For the short ones the JVM looks through all of
its jars first, each time: a tenth of its CPU in small micro-batches (docs/adr/0029)."""

GONE = (Py4JNetworkError, ConnectionError)
"""What a call raises whose JVM has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Libraries:
    """What the JVM is given beside Spark's own jars."""

    jars: Sequence[Path] = ()
    """The Kafka connector's, and LOCAL_FILES. A cluster's image may hold them itself."""
    class_archive: Path | None = None
    """For a quicker start; the JVM goes on without one that does not fit it, and need not say so."""


def start(config: settings.Spark, libraries: Libraries, besides: Mapping[str, str] | None = None) -> SparkSession:
    """Return a session by the settings; what `spark.conf` says comes before `besides`."""
    archive = libraries.class_archive
    conf = {
        **ALWAYS,
        # Log4j prefers `log4j2.configurationFile`. With the older name, an operator's file in `extraJavaOptions` wins.
        "spark.driver.defaultJavaOptions": java_options(
            f"-Dlog4j.configurationFile={LOG_CONFIGURATION}", *([] if archive is None else sharing(archive))
        ),
        **object_store.session_settings(config.checkpoint),
        "spark.app.name": config.app_name,
        "spark.master": config.master,
        "spark.driver.memory": config.driver_memory,
        "spark.ui.enabled": str(config.ui).lower(),
        **(besides or {}),
        **{name: value.get_secret_value() for name, value in config.conf.items()},
    }
    paths = ",".join(str(jar) for jar in libraries.jars)
    if paths:
        conf["spark.jars"] = paths
    # PySpark takes the workers' interpreter from here and from nowhere else; without it, it would be the first on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    _name_an_address(config.master)
    builder = SparkSession.builder
    for name, value in conf.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel(LOG_LEVEL)
    _look_up_once(spark)
    _write_local_files_by_itself(spark)
    return spark


@contextlib.contextmanager
def running(config: settings.Spark, libraries: Libraries, besides: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Have a session inside; raise LaneFailed where its JVM ends before it is asked to."""
    spark = start(config, libraries, besides)
    try:
        yield spark
    except GONE as exc:
        raise errors.LaneFailed(
            "Spark's JVM has ended: it was killed, or had no memory left. What was committed is kept: start again"
        ) from exc
    finally:
        _end(spark)


def _end(spark: SparkSession) -> None:
    """End the session, if there is one still.

    Spark's own log is off meanwhile. Threads of its state that are still at work find no SparkEnv, and log a traceback as
    of a crash.
    """
    try:
        spark.sparkContext.setLogLevel("OFF")
        spark.stop()
    except (Py4JError, OSError) as gone:
        log.warning("Spark's JVM is gone already: %s", gone)


def _name_an_address(master: str) -> None:
    """Spark takes its address from the environment only: its JVM has failed by the time that it reads other settings."""
    name = local_address.host_name()
    if added := local_address.missing(os.environ, master, name=name):
        log.warning("the host name %s does not resolve: Spark uses %s", name, added[local_address.ADDRESS])
        os.environ.update(added)


def sharing(archive: Path) -> list[str]:
    """Return the options of a JVM that may map this archive of classes."""
    return [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off"]


def java_options(*besides: str) -> str:
    """Return the driver's JVM options with more of them; each may contain spaces."""
    return " ".join([*JVM_OPTIONS, *(f'"{option}"' for option in besides)])


def _write_local_files_by_itself(spark: SparkSession) -> None:
    """Let what is opened from now on write local files by LOCAL_FILES, if it is there and `spark.conf` names no other.

    Not among the settings that Spark starts with: it opens local files to load the jars, and has no class of them yet.
    """
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001  # no public way
    if hadoop.get("fs.file.impl") is None and hadoop.getClassByNameOrNull(LOCAL_FILES) is not None:
        hadoop.set("fs.file.impl", LOCAL_FILES)
        hadoop.setBoolean("fs.file.impl.disable.cache", True)  # Spark's start has left Hadoop's there


def _look_up_once(spark: SparkSession) -> None:
    """Keep what py4j finds under these names: what its view of the JVM has as an attribute, it does not ask for."""
    jvm = spark.sparkContext._jvm  # noqa: SLF001  # no public way
    for name in LOOKED_UP_ONCE:
        setattr(jvm, name, getattr(jvm, name))
