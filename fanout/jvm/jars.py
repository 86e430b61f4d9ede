"""Fetch the jars that deploy/jars/ivy.xml declares, once, and hold them against jars.lock beside it each time.

Runs in the command and on the driver, before Spark. Ivy comes inside pyspark, so nothing else is needed but Java.
`python -m fanout.jvm.jars` writes the lock anew, as `make lock` does.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyspark

from delivery import errors
from delivery.stages.checkpoint import object_store
from fanout.jvm import jar_lock, java
from fanout.terminal import commands

IVY_FILE = Path(__file__).parents[2] / "deploy" / "jars" / "ivy.xml"
MARKER = "ivy.sha256"
"""Holds the digest of the ivy.xml that the jars beside it were fetched by."""
FETCH_TIMEOUT_S = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class Jars:
    """Where the jars are."""

    connector: tuple[Path, ...]
    store: tuple[Path, ...]
    broker: tuple[Path, ...]

    def for_spark(self, checkpoint: str) -> tuple[Path, ...]:
        """Return what Spark is given. The jars for an S3-compatible store only where the checkpoint is there."""
        return (*self.connector, *(self.store if object_store.is_s3a(checkpoint) else ()))


def _say(text: str) -> None:
    commands.say(text)


def ensure(ivy_file: Path = IVY_FILE, say: Callable[[str], None] = _say) -> Jars:
    """Return the jars, fetching them when they are not there or `ivy_file` has changed since.

    Raise LocalStackError when they are not those of the lock, also when they were changed where they lie: to read them takes a
    twentieth of a second of CPU, and what was fetched before there was a lock is held against it too.
    """
    library = ivy_file.parent / "lib"
    wanted = hashlib.sha256(ivy_file.read_bytes()).hexdigest()
    if not _holds(library, wanted):
        with ivy_file.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _holds(library, wanted):  # else another process has fetched them meanwhile
                say("fetching the Kafka connector, the client of S3 and an embedded broker (about 65 MB, once) …")
                _replace(library, ivy_file, wanted)
    jar_lock.check(library, _lock_of(ivy_file))
    return Jars(
        connector=tuple(sorted((library / "connector").glob("*.jar"))),
        store=tuple(sorted((library / "store").glob("*.jar"))),
        broker=tuple(sorted((library / "broker").glob("*.jar"))),
    )


def write_lock(ivy_file: Path = IVY_FILE) -> None:
    """Write the lock anew, by a fetch past Ivy's copies. What comes is believed: the difference is there to be looked at."""
    with tempfile.TemporaryDirectory() as scratch:
        fetched = Path(scratch) / "lib"
        _fetch(ivy_file, fetched, "-cache", f"{scratch}/cache")
        _lock_of(ivy_file).write_text(jar_lock.written(fetched))


def _lock_of(ivy_file: Path) -> Path:
    return ivy_file.parent / "jars.lock"


def _holds(library: Path, wanted: str) -> bool:
    marker = library / MARKER
    return marker.is_file() and marker.read_text() == wanted


def _replace(library: Path, ivy_file: Path, digest: str) -> None:
    """Fetch into a folder aside and move it into place: what breaks off, or brings another jar, leaves all as it was."""
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        fetched = Path(scratch) / "lib"
        _fetch(ivy_file, fetched)
        jar_lock.check(fetched, _lock_of(ivy_file))
        (fetched / MARKER).write_text(digest)
        shutil.rmtree(library, ignore_errors=True)
        fetched.rename(library)


def _fetch(ivy_file: Path, into: Path, *options: str) -> None:
    [ivy] = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
    pattern = f"{into}/[conf]/[artifact]-[revision].[ext]"
    command = [
        java.find(),
        "-jar",
        ivy,
        "-ivy",
        ivy_file,
        "-confs",
        "connector",
        "store",
        "broker",
        "-retrieve",
        pattern,
        *options,
    ]
    try:
        done = subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise errors.LocalStackError("fetching the jars from Maven Central takes too long: check the network") from None
    if done.returncode or not list((into / "broker").glob("kafka_*.jar")):
        problem = next((line.strip() for line in done.stdout.splitlines() if "not found" in line or "ERROR" in line), "")
        raise errors.LocalStackError(f"the jars could not be fetched from Maven Central: check the network. {problem}".strip())


if __name__ == "__main__":
    write_lock()
