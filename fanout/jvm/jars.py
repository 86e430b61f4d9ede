"""Download the jars that deploy/jars/ivy.xml declares, once, and compare them with jars.lock at each start.

Runs in `fanout` commands and on the driver, before Spark. Ivy is part of pyspark, so only Java is needed.
`python -m fanout.jvm.jars` writes the lock, as `make lock` does.
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
from fanout.jvm import jar_lock, java
from fanout.terminal import commands

IVY_FILE = Path(__file__).parents[2] / "deploy" / "jars" / "ivy.xml"
MARKER = "ivy.sha256"
"""File with the digest of the ivy.xml from which the jars beside it were downloaded."""
FETCH_TIMEOUT_S = 900
"""Seconds after which a download of all jars fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Jars:
    """Paths of the jars, by use."""

    connector: tuple[Path, ...]
    """Spark's connector for Kafka."""
    store: tuple[Path, ...]
    """Spark's client for an S3-compatible store."""
    broker: tuple[Path, ...]
    """The Kafka broker of the local stack."""


def _say(text: str) -> None:
    commands.say(text)


def ensure(ivy_file: Path = IVY_FILE, say: Callable[[str], None] = _say) -> Jars:
    """Return the jars. Download them first if no download of this `ivy_file` has been completed.

    `say` prints a line before the download. Raise LocalStackError if the download fails or finds no Java, or if a jar is
    missing, extra or different, compared with the lock. The comparison, at each call, takes a twentieth of a second of CPU.
    """
    # Without symbolic links, because a JVM compares the paths of jars with the paths in its class archive.
    library = (ivy_file.parent / "lib").resolve()
    wanted = hashlib.sha256(ivy_file.read_bytes()).hexdigest()
    if not _holds(library, wanted):
        with ivy_file.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _holds(library, wanted):  # else another process has downloaded them meanwhile
                say("downloading the Kafka connector, the S3 client and an embedded broker (about 65 MB, once) …")
                _replace(library, ivy_file, wanted)
    jar_lock.check(library, _lock_of(ivy_file))
    return Jars(
        connector=tuple(sorted((library / "connector").glob("*.jar"))),
        store=tuple(sorted((library / "store").glob("*.jar"))),
        broker=tuple(sorted((library / "broker").glob("*.jar"))),
    )


def write_lock(ivy_file: Path = IVY_FILE) -> None:
    """Download the jars without Ivy's cache, and write their lock.

    Nothing checks this download, so a person must review the changes of the lock.
    """
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
    """Download the jars to a scratch folder, and replace `library` by it. An interrupted or wrong download changes nothing."""
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
        raise errors.LocalStackError(
            f"downloading the jars from Maven Central took more than {FETCH_TIMEOUT_S} s, so nothing was started: check the "
            "network, and try again"
        ) from None
    if done.returncode or not list((into / "broker").glob("kafka_*.jar")):
        problem = next((line.strip() for line in done.stdout.splitlines() if "not found" in line or "ERROR" in line), "")
        raise errors.LocalStackError(
            f"the jars could not be downloaded from Maven Central{f' ({problem})' if problem else ''}, so nothing was started: "
            "check the network, and try again"
        )


if __name__ == "__main__":
    write_lock()
