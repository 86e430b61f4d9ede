"""Fetch the jars that deploy/jars/ivy.xml declares, once.

Runs in the command and on the driver, before Spark. Ivy comes inside pyspark, so nothing else is needed but Java.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyspark

from delivery import errors
from fanout.local import java

IVY_FILE = Path(__file__).parents[2] / "deploy" / "jars" / "ivy.xml"
FETCH_TIMEOUT_S = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class Jars:
    """Where the jars are."""

    connector: tuple[Path, ...]
    broker: tuple[Path, ...]


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


def ensure(ivy_file: Path = IVY_FILE, say: Callable[[str], None] = _say) -> Jars:
    """Return the jars, fetching them when they are not there or `ivy_file` has changed since."""
    library = ivy_file.parent / "lib"
    wanted = hashlib.sha256(ivy_file.read_bytes()).hexdigest()
    marker = library / "ivy.sha256"
    if not marker.is_file() or marker.read_text() != wanted:
        say("fetching the Kafka connector and an embedded broker (about 55 MB, once) …")
        with tempfile.TemporaryDirectory(dir=ivy_file.parent) as scratch:
            fetched = Path(scratch) / "lib"
            _fetch(ivy_file, fetched)
            (fetched / marker.name).write_text(wanted)
            shutil.rmtree(library, ignore_errors=True)
            fetched.rename(library)  # whole or not at all: a broken-off download leaves no half folder
    return Jars(
        connector=tuple(sorted((library / "connector").glob("*.jar"))),
        broker=tuple(sorted((library / "broker").glob("*.jar"))),
    )


def _fetch(ivy_file: Path, into: Path) -> None:
    [ivy] = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
    pattern = f"{into}/[conf]/[artifact]-[revision].[ext]"
    command = [java.find(), "-jar", ivy, "-ivy", ivy_file, "-confs", "connector", "broker", "-retrieve", pattern]
    try:
        done = subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise errors.LocalStackError("fetching the jars from Maven Central takes too long: check the network") from None
    if done.returncode or not list((into / "broker").glob("kafka_*.jar")):
        problem = next((line.strip() for line in done.stdout.splitlines() if "not found" in line or "ERROR" in line), "")
        raise errors.LocalStackError(f"the jars could not be fetched from Maven Central: check the network. {problem}".strip())
