"""Archive the classes that Spark loads at its start. A JVM maps the archive into memory, and then need not parse 100 jars.

Runs in `fanout` commands and on the driver, before Spark. The archive is one of class data sharing (JEP 350). `fanout prepare`
builds it in a Spark session, once for a Java, a PySpark and the jars of the Kafka connector. A JVM ignores an archive that does
not fit. Measured on two busy cores: a session with its first micro-batch took 8.7 s instead of 13.4, and the JVM 16.6 CPU
seconds instead of 23.7. The connector's classes save a direct lane with one micro-batch another 1.5 CPU seconds of 11.5.
"""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

from delivery import errors
from fanout.jvm import jars, java
from fanout.terminal import commands

TRAINING_TIMEOUT_S = 300
"""Seconds for the session that builds the archive."""


def find(folder: Path = jars.IVY_FILE.parent / "lib") -> Path | None:
    """Return the archive for this Java, this PySpark and these jars; None: it was not built.

    Raise LocalStackError if there is no supported Java.
    """
    archive = _archive(folder)
    return archive if archive.is_file() else None


def ensure(folder: Path = jars.IVY_FILE.parent / "lib") -> Path:
    """Return the archive; build it first if it is missing, which takes about a minute. Then archives of other jars are deleted.

    The jars must be there already. Raise LocalStackError if the archive cannot be built.
    """
    archive = _archive(folder)
    with (folder / "classes.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.is_file():  # else another process has built it meanwhile
            commands.say("archiving the classes that Spark loads at its start (about a minute, once) …")
            for outdated in folder.glob("*.jsa"):
                outdated.unlink()
            _make(archive)
    return archive


def _archive(folder: Path) -> Path:
    """Return the path of the archive, named by a digest of everything that a JVM compares: Java and jars.

    A JVM silently ignores an archive of other jars. Jars that were installed again are other jars, because their times differ.
    """
    binary = java.find().resolve()
    folder = folder.resolve()
    class_path = (*(Path(pyspark.__file__).parent / "jars").iterdir(), *folder.glob("connector/*.jar"))
    stats = sorted((str(jar), jar.stat().st_size, jar.stat().st_mtime_ns) for jar in class_path)
    compared = (binary, binary.stat().st_mtime_ns, stats)
    return folder / f"spark-{hashlib.sha256(repr(compared).encode()).hexdigest()[:16]}.jsa"


def _make(archive: Path) -> None:
    """Build the archive in a scratch folder, and move it into place, so that an interrupted run leaves no partial archive."""
    with tempfile.TemporaryDirectory(dir=archive.parent) as scratch:
        made = Path(scratch) / archive.name
        try:
            done = subprocess.run(
                [sys.executable, "-m", "fanout.jvm.class_training", str(made)],
                cwd=scratch,
                capture_output=True,
                text=True,
                timeout=TRAINING_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise errors.LocalStackError(
                f"Spark's classes are not archived: Spark did not start and stop within {TRAINING_TIMEOUT_S} s. "
                "Try again when the machine is less busy"
            ) from None
        if done.returncode or not made.is_file():
            [*_, problem] = done.stderr.strip().splitlines() or ["Java printed no reason"]
            raise errors.LocalStackError(
                f"Spark's classes are not archived: {problem}. Correct the cause, and run `fanout prepare` again"
            )
        made.rename(archive)
