"""How Spark's JVM is started."""

import shlex
import subprocess
from pathlib import Path

from delivery.stages import session
from fanout.local import classes, java


def test_the_jvm_maps_the_archive_of_the_classes_that_it_starts_with(spark):
    archive = classes.find()
    assert archive is not None, "run `fanout prepare` first, as `make test` does"
    pid = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    assert str(archive) in Path(f"/proc/{pid}/maps").read_text()


def test_a_jvm_goes_on_without_an_archive_that_does_not_fit_and_says_nothing_of_it(tmp_path):
    archive = tmp_path / "of another java.jsa"
    archive.write_bytes(b"no archive" * 1000)
    options = session.java_options(*session.sharing(archive))
    command = [str(java.find()), *shlex.split(options), "-version"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "")
    assert ended.stderr.startswith("openjdk version")
