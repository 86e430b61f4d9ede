"""Start Spark with the settings of this application, and end it.

Runs on the driver, and in the commands that use Spark.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from delivery import errors
from delivery.config import settings
from delivery.stages import class_sharing, local_address
from delivery.stages.checkpoint import object_store

log = logging.getLogger(__name__)

LOG_LEVEL = "WARN"
"""Level of Spark's own log."""
LOG_CONFIGURATION = Path(__file__).with_name("log4j2.xml")
"""File with the configuration of the JVM's log."""
JVM_OPTIONS = (
    "-XX:+UseParallelGC",
    "-XX:-UseAdaptiveSizePolicyFootprintGoal",
    "-XX:MetaspaceSize=192m",
    "-XX:TieredStopAtLevel=1",
    "-XX:ReservedCodeCacheSize=240m",
)
"""JVM options that save CPU (docs/adr/0024) or pauses of all lanes (2 and 3, docs/adr/0052), explained in their order:

1. The parallel collector saves a sixth of the JVM's CPU in the load test: a small heap does not need shorter pauses.
2. The collector's footprint goal is off. With this goal it would shrink the young generation, down to a third, while the
   collections cost little CPU. Then there are three times as many young collections, and each promotes some 3 MB that are
   garbage a moment later. After 100 s a collection of the old generation stopped the JVM, and so every lane, for 0.2 s. The
   price is 340 MB of memory under light load.
3. When the JVM's classes fill the metaspace to this size, the JVM collects the whole heap. With the default, 21 MB, such a
   collection took 0.2 s before the first delivery.
4. Using only the quick compiler saves another third: the other compiler takes minutes for code that mostly waits.
5. By default the JVM's code cache has 48 MB with one compiler, and 240 MB with both. A lane with state fills 48 MB in 90 s. The
   JVM then discards most of the code and compiles it again, for ten seconds at twice the latency.
"""
JARS, CLASS_PATH = "spark.jars", "spark.driver.extraClassPath"
STOP_TIMEOUT = "30s"
"""Time for a query to end when it is stopped. Spark would wait for ever for a thread that no interrupt reaches."""
RETAINED = "20"
"""Number of finished jobs, stages and queries that Spark remembers for its web pages."""
ALWAYS = {
    # A speculative copy of a task would send its deliveries twice.
    "spark.speculation": "false",
    # If an executor ends with shuffled rows, Spark would start second copies of the tasks that read the rows. First copies that
    # still run would send as well. The lane restarts instead, with its completed-work log (docs/adr/0025).
    "spark.stage.maxConsecutiveAttempts": "1",
    "spark.executor.defaultJavaOptions": " ".join(JVM_OPTIONS),
    "spark.python.worker.reuse": "true",
    "spark.python.daemon.module": "delivery.stages.worker_daemon",
    # The JVM and its Python processes connect by Unix sockets (docs/adr/0046). The folder's path must be short, because the
    # path of a socket has at most 107 bytes. The path of a cluster manager's temporary folder may be longer.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.unix.domain.socket.dir": "/tmp",  # noqa: S108  # only the job's user may open the sockets
    # The broadcast snapshot holds customers' secrets; without this, its blocks would be on the local disks in the clear.
    "spark.io.encryption.enabled": "true",
    # The key of the encrypted blocks, and closures with the Kafka login, travel between driver and executors. With these two
    # settings Spark encrypts the connections, and only processes that know the application's secret can connect. Spark creates
    # the secret by itself on one machine, on Kubernetes and on YARN.
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    # Spark hides a setting, or an option of the Kafka source, if its name or its value matches.
    "spark.redaction.regex": r"(?i)secret|password|token|access[.]?key|keystore[.]key|credential|user[.]info|jaas"
    r"|keys?[._]ring|database[._]url",
    # If a busy machine handles an event of Spark's scheduler slowly, Spark logs the event with all settings, not redacted.
    "spark.scheduler.listenerbus.logSlowEvent": "false",
    # For each Kafka partition of each micro-batch Spark generates the source code of a class, only to find the compiled class
    # in its cache. That is half of the CPU of small tasks. Without code generation Spark interprets all plans (docs/adr/0029).
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # Must be more than the number of Kafka partitions. Otherwise Spark opens and closes consumers in each micro-batch.
    "spark.kafka.consumer.cache.capacity": "4096",
    # Bytes (64 MiB). PySpark turns each larger pickled function into a broadcast, and writes it into a file of the driver that
    # nothing deletes before the job ends. With Spark's 1 MiB, a large delta of the registry left a file for each micro-batch.
    "spark.broadcast.UDFCompressionThreshold": str(64 * 1024 * 1024),
    # A worker handles the first records of a task while Spark reads the rest.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    "spark.sql.streaming.numRecentProgressUpdates": "20",
    "spark.sql.streaming.stopTimeout": STOP_TIMEOUT,
    # Milliseconds between two checks for new records while there are none. Spark's 10 ms cost a quarter of a core while no
    # events come. An event that ends a silence waits for half of this time on average.
    "spark.sql.streaming.pollingDelay": "25",
    # Spark keeps finished jobs, stages and queries for its web pages, even if it serves none. At ten micro-batches a second,
    # Spark's default of a thousand each would fill the old generation of the heap. A collection of the old generation stops the
    # JVM for 0.3 s each minute (docs/adr/0029).
    "spark.ui.retainedJobs": RETAINED,
    "spark.ui.retainedStages": RETAINED,
    "spark.sql.ui.retainedExecutions": RETAINED,
    "spark.ui.showConsoleProgress": "false",
    "spark.scheduler.mode": "FAIR",
    # Streaming queries ignore adaptive execution, and would log a warning at each start.
    "spark.sql.adaptive.enabled": "false",
    # A checksum over all shuffled bytes took a tenth of the JVM's CPU samples in the batch lane. With the checksum, Spark
    # reruns the tasks after a shuffle if a task before the shuffle runs again and writes other bytes. Their deliveries would
    # repeat.
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "false",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "false",
    # The lanes' state is on disk, and a micro-batch writes only its changes.
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
LOCAL_FILES = "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem"
"""File system class for local checkpoints. Hadoop's own class starts a `chmod` process for every local file and for its
checksum file. A micro-batch of two shards started ten, which took 100 ms on two busy cores (docs/adr/0026)."""
LOOKED_UP_ONCE = (
    "functions",
    "PythonUtils",
    "PythonSQLUtils",
    "SimplePythonFunction",
    "org.apache.spark.sql.classic.SparkSession",
    "org.apache.spark.sql.classic.SparkSession$",
    "org.apache.spark.sql.execution.python.UserDefinedPythonFunction",
)
"""Names that PySpark asks the JVM for each time that it builds a plan. For the short names the JVM first searches all of its
jars: a tenth of its CPU in small micro-batches (docs/adr/0029)."""

GONE = (Py4JNetworkError, ConnectionError)
"""Exceptions of a py4j call to a JVM that has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Libraries:
    """Jars for the JVM, beside Spark's own, and class archives for the JVM and for Spark's launcher."""

    connector: Sequence[Path] = ()
    """Jars of the Kafka connector and of LOCAL_FILES. They are on the driver's class path, because the class archive contains
    their classes. A cluster's image may contain the jars instead."""
    store: Sequence[Path] = ()
    """Jars of the client for an S3-compatible store; empty for a checkpoint elsewhere."""
    class_archive: Path | None = None
    """Class archive for a faster start. A JVM ignores an archive that does not fit it, without a message."""
    launcher_archive: Path | None = None
    """Class archive of the launcher, which PySpark starts first."""

    def settings(self, master: str, conf: Mapping[str, str]) -> dict[str, str]:
        """Return Spark's settings for the jars. `conf` has the operator's settings, whose jars and class path come first.

        Spark copies the jars of `spark.jars` to the executors. A `master` of one process (`local`, `local[2]`) has no executors
        besides the driver, so `spark.jars` leaves `connector` out.
        """
        sent = [*self.store, *(() if master.split("[", maxsplit=1)[0] == "local" else self.connector)]
        joined = {
            name: separator.join([*([conf[name]] if conf.get(name) else []), *map(str, ours)])
            for name, separator, ours in ((JARS, ",", sent), (CLASS_PATH, os.pathsep, self.connector))
        }
        return {name: value for name, value in joined.items() if value}


def start(config: settings.SparkSettings, libraries: Libraries, besides: Mapping[str, str] | None = None) -> SparkSession:
    """Start Spark's JVM, and return a session by the settings.

    `besides` holds further settings of Spark. The operator's entries in `spark.conf` override `besides` and ALWAYS. The jars of
    `libraries` follow those of an entry `spark.jars`. Raise SettingsError if this machine has no address for Spark.

    Also set PYSPARK_PYTHON, SPARK_LAUNCHER_OPTS and, if needed, Spark's address in the environment of this process. Variables
    that are set already keep their values.
    """
    archive = libraries.class_archive
    conf = {
        **ALWAYS,
        # Log4j prefers `log4j2.configurationFile`. With the older name, an operator's file in `extraJavaOptions` wins.
        "spark.driver.defaultJavaOptions": java_options(
            f"-Dlog4j.configurationFile={LOG_CONFIGURATION}", *([] if archive is None else class_sharing.options(archive))
        ),
        **object_store.session_settings(config.checkpoint),
        "spark.app.name": config.app_name,
        "spark.master": config.master,
        "spark.driver.memory": config.driver_memory,
        "spark.ui.enabled": str(config.ui).lower(),
        **(besides or {}),
        **{name: value.get_secret_value() for name, value in config.conf.items()},
    }
    conf |= libraries.settings(config.master, conf)
    # PySpark reads the workers' interpreter only from this variable. Without it, it would use the first Python on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    launcher = [] if libraries.launcher_archive is None else class_sharing.options(libraries.launcher_archive)
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", class_sharing.launcher_options(*launcher))
    _name_an_address(config.master)
    builder = SparkSession.builder
    for name, value in conf.items():
        builder = builder.config(name, value)
    with _kept_interrupt_handler():
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel(LOG_LEVEL)
    _look_up_once(spark)
    _write_local_files_by_itself(spark)
    return spark


@contextlib.contextmanager
def _kept_interrupt_handler() -> Iterator[None]:
    """Keep the handler of SIGINT. PySpark's own would raise KeyboardInterrupt, also during a graceful stop."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)


@contextlib.contextmanager
def running(
    config: settings.SparkSettings, libraries: Libraries, besides: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Start Spark's JVM and a session by the settings, and end the session with the context.

    The JVM ends with this process. `besides` holds further settings of Spark. Raise SettingsError if this machine has no
    address for Spark. Raise LaneFailed if a call inside the context failed because the JVM had ended.
    """
    spark = start(config, libraries, besides)
    try:
        yield spark
    except GONE as exc:
        raise errors.LaneFailed(
            "Spark's JVM has ended unexpectedly, and everything that ran in it has stopped. Probably it was killed, or ran out "
            "of memory. Committed work is kept: check the memory (spark.driver_memory, the container's limit), and start again"
        ) from exc
    finally:
        _end(spark)


def _end(spark: SparkSession) -> None:
    """End the session. If that fails, because the JVM has ended, only log a warning.

    Spark's own log is off from then on: threads of its state store that still run find no SparkEnv, and would log a traceback.
    """
    try:
        spark.sparkContext.setLogLevel("OFF")
        spark.stop()
    except (Py4JError, OSError) as gone:
        log.warning(
            "Spark could not be stopped in order (%s), probably because its JVM had ended before. Committed work is kept, and "
            "the next start continues after it. If nobody killed the JVM, check its memory (spark.driver_memory, the "
            "container's limit)", gone,
        )  # fmt: skip


def _name_an_address(master: str) -> None:
    """Set Spark's address in the environment if the host name does not resolve, and the operator has set no address.

    Without an address the JVM would fail at its start. Raise SettingsError if this machine has no address for Spark.
    """
    name = local_address.host_name()
    if added := local_address.missing(os.environ, master, name=name):
        log.warning(
            "this machine's host name, %s, does not resolve, so Spark uses the address %s. If executors cannot reach that "
            "address, set %s in the environment to another one", name, added[local_address.ADDRESS], local_address.ADDRESS,
        )  # fmt: skip
        os.environ.update(added)


def java_options(*besides: str) -> str:
    """Return JVM_OPTIONS, followed by the options `besides`, as one text. Each of `besides` may contain spaces."""
    return " ".join([*JVM_OPTIONS, *(f'"{option}"' for option in besides)])


def _write_local_files_by_itself(spark: SparkSession) -> None:
    """Use LOCAL_FILES for local files from now on, if the class exists and `spark.conf` names no other.

    LOCAL_FILES cannot be a setting at the start: Spark opens local files to load the jars before it has any class from the
    jars.
    """
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001  # no public way
    if hadoop.get("fs.file.impl") is None and hadoop.getClassByNameOrNull(LOCAL_FILES) is not None:
        hadoop.set("fs.file.impl", LOCAL_FILES)
        hadoop.setBoolean("fs.file.impl.disable.cache", True)  # the cache holds Hadoop's class since Spark's start


def _look_up_once(spark: SparkSession) -> None:
    """Store the classes of LOOKED_UP_ONCE as attributes of py4j's view of the JVM, so that py4j asks for each only once."""
    jvm = spark.sparkContext._jvm  # noqa: SLF001  # no public way
    for name in LOOKED_UP_ONCE:
        setattr(jvm, name, getattr(jvm, name))
