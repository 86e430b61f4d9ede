"""Spark's JVM starts with the options of the session."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pyspark
import pytest
from py4j.java_gateway import JavaClass

from delivery.stages import class_sharing, worker_daemon
from delivery.stages.lanes import session
from fanout.jvm import class_archive, java


def test_the_jvm_maps_the_archive_of_the_classes_that_it_starts_with(spark):
    archive = class_archive.find(class_archive.SPARK)
    assert archive is not None, "run `fanout prepare` first, as `make test` does"
    pid = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    assert str(archive) in Path(f"/proc/{pid}/maps").read_text()


def test_sparks_launcher_takes_its_classes_from_their_archive(tmp_path):
    archive = class_archive.find(class_archive.LAUNCHER)
    assert archive is not None, "run `fanout prepare` first, as `make test` does"
    log = tmp_path / "classes.log"
    options = class_sharing.launcher_options(*class_sharing.options(archive), f"-Xlog:class+load:file={log}")
    home = Path(pyspark.__file__).parent
    environ = {**os.environ, "SPARK_HOME": str(home), "SPARK_LAUNCHER_OPTS": options}
    command = [home / "bin" / "spark-class", "org.apache.spark.launcher.Main"]  # as a program of no use, but a quick one
    subprocess.run(command, env=environ, capture_output=True, check=False)
    assert "org.apache.spark.launcher.Main source: shared objects file (top)" in log.read_text()


@pytest.mark.usefixtures("spark")
def test_a_session_gives_the_launcher_its_archive():
    archive = class_archive.find(class_archive.LAUNCHER)
    assert f"-XX:SharedArchiveFile={archive}" in os.environ["SPARK_LAUNCHER_OPTS"].split()


def tcp_connections(_):
    return [psutil.Process(pid).net_connections("tcp") for pid in (os.getpid(), os.getppid())]


# PySpark leaves it to the garbage collector to close the socket that brings the result.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_workers_are_connected_by_no_port_that_others_can_reach(spark):
    """Regression: a process that connected to a port of Spark's first left the worker waiting for ever (docs/adr/0046)."""
    assert spark.sparkContext.parallelize([0], 1).map(tcp_connections).collect() == [[[], []]]


def test_a_large_function_leaves_no_file_on_the_driver(spark):
    """Regression: PySpark wrote each function above 1 MiB into a file, for each micro-batch, and nothing deleted it."""
    large = os.urandom(2 * 1024 * 1024)
    folder = Path(spark.sparkContext._temp_dir)
    before = set(folder.rglob("*"))
    frame = spark.range(1).mapInArrow(lambda batches: (batch for batch in batches if large), "id long")
    frame.write.format("noop").mode("overwrite").save()
    assert set(folder.rglob("*")) == before


def unloaded(_):
    """Return which modules of the daemon's list the worker has not loaded, and where its PySpark comes from."""
    return [name for name in worker_daemon.LOADED if name not in sys.modules], pyspark.__file__


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_worker_begins_with_its_modules_loaded_from_compiled_files(spark):
    assert spark.sparkContext.parallelize([0], 1).map(unloaded).collect() == [([], pyspark.__file__)]


def test_one_process_has_the_connector_on_its_class_path_and_copies_no_jar(spark, jars):
    class_path = spark._jvm.java.lang.System.getProperty("java.class.path").split(os.pathsep)
    assert class_path[: len(jars.connector)] == [str(jar) for jar in jars.connector]
    assert spark.sparkContext.getConf().get("spark.jars", "") == ""


@pytest.mark.parametrize("master", ["local-cluster[2,1,1024]", "k8s://https://127.0.0.1:6443", "spark://127.0.0.1:7077"])
def test_executors_get_the_connector_beside_an_operators_jars(master):
    """Regression: an operator's `spark.jars` was replaced without a word wherever jars are sent to executors."""
    libraries = session.Libraries(connector=[Path("kafka.jar"), Path("pool.jar")], store=[Path("s3.jar")])
    theirs = {"spark.jars": "https://host/metrics.jar,log.jar", "spark.driver.extraClassPath": "theirs.jar"}
    assert libraries.settings(master, theirs) == {
        "spark.jars": "https://host/metrics.jar,log.jar,s3.jar,kafka.jar,pool.jar",
        "spark.driver.extraClassPath": "theirs.jar:kafka.jar:pool.jar",
    }


def test_an_image_that_contains_the_jars_needs_no_setting():
    assert session.Libraries().settings("k8s://https://127.0.0.1:6443", {}) == {}


def test_a_jvm_starts_silently_without_a_class_archive_that_does_not_fit(tmp_path):
    archive = tmp_path / "of another java.jsa"
    archive.write_bytes(b"no archive" * 1000)
    options = session.java_options(*class_sharing.options(archive))
    command = [str(java.find()), *shlex.split(options), "-version"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "")
    assert ended.stderr.startswith("openjdk version")


def test_the_jvm_compiles_quickly_only(spark):
    """The JVM's slow compiler took a third of its CPU for the first quarter of an hour (docs/adr/0024)."""
    pid = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    threads = {comm.read_text().strip() for comm in Path(f"/proc/{pid}/task").glob("*/comm")}
    compilers = {name for name in threads if "CompilerThre" in name}
    assert {name.split()[0] for name in compilers} == {"C1"}


def jvm_option(spark, name):
    management, bean = spark._jvm.java.lang.management.ManagementFactory, spark._jvm.com.sun.management.HotSpotDiagnosticMXBean
    return management.getPlatformMXBean(bean._java_lang_class).getVMOption(name).getValue()


def test_the_jvm_keeps_as_much_code_as_with_both_compilers(spark):
    """With one it would keep a fifth, throw it away when that is full, and compile anew while events wait (docs/adr/0024)."""
    assert int(jvm_option(spark, "ReservedCodeCacheSize")) == 240 * 1024 * 1024


def test_the_jvm_keeps_a_large_young_generation(spark):
    """A small one filled the old generation in 100 s, and its collection stopped all lanes for 0.2 s (docs/adr/0052)."""
    assert jvm_option(spark, "UseAdaptiveSizePolicyFootprintGoal") == "false"


def test_the_jvm_loads_its_classes_without_a_collection_of_the_whole_heap(spark):
    assert int(jvm_option(spark, "MetaspaceSize")) == 192 * 1024 * 1024


def test_what_pyspark_asks_for_in_each_plan_is_kept(spark):
    """A name that this version does not know would be kept as a package, and be no class (docs/adr/0029)."""
    kept = vars(spark.sparkContext._jvm)
    assert {type(kept[name]) for name in session.LOOKED_UP_ONCE} == {JavaClass}


def test_sparks_processes_ask_each_other_for_the_secret_and_encrypt(spark):
    """As Spark itself sees it, and not only as it was asked: a secret of this application's own is there."""
    security = spark.sparkContext._jvm.org.apache.spark.SparkEnv.get().securityManager()
    assert security.isAuthenticationEnabled()
    assert len(security.getSecretKey()) >= 32
    assert spark.conf.get("spark.network.crypto.enabled") == "true"


def test_spark_shows_no_pages_unless_asked_to(spark):
    assert spark.conf.get("spark.ui.enabled") == "false"
    assert spark.sparkContext.uiWebUrl is None


def test_what_is_written_on_a_local_disk_is_written_by_the_jvm_itself(spark, tmp_path):
    """Hadoop's own starts `chmod` for each file (docs/adr/0026). As a lane's session sees it."""
    jvm, lane = spark._jvm, spark.newSession()
    path = jvm.org.apache.hadoop.fs.Path(f"file://{tmp_path}/offsets/0")
    files = path.getFileSystem(lane._jsparkSession.sessionState().newHadoopConf())
    assert files.getClass().getName() == session.LOCAL_FILES
    out = files.create(path, False)
    out.write(b"v1")
    out.close()
    written = tmp_path / "offsets" / "0"
    assert written.read_bytes() == b"v1"
    assert oct(written.stat().st_mode & 0o777) == "0o644"
    assert (written.parent / ".0.crc").is_file()  # still with its checksum


def test_spark_starts_where_the_host_name_does_not_resolve(tmp_path):
    """Regression: the job ended with 60 lines of Java traceback, in a container whose /etc/hosts does not have its name."""
    alone = ["unshare", "--map-root-user", "--uts"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*alone, "hostname", "nosuchname"], capture_output=True, check=False).returncode
    ):
        pytest.skip("this machine lets nobody have a host name of its own")
    program = (
        "from delivery.config import settings; from delivery.stages.lanes import session; from fanout.jvm import libraries;"
        "config = settings.SparkSettings(master='local[1]'); spark = session.start(config, libraries.of(config));"
        "print(spark.range(3).count(), spark.sparkContext.getConf().get('spark.driver.host')); spark.stop()"
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_LOCAL")}
    command = [*alone, "sh", "-c", 'hostname nosuchname; exec "$0" -c "$1"', sys.executable, program]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environ, cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "3 localhost\n"), ended.stderr
    assert "Exception" not in ended.stderr
