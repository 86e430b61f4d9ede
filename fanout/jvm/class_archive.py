"""Archive the classes that a JVM loads at its start. A JVM maps the archive into memory, and then need not parse the jars.

Runs in `fanout` commands and on the driver, before a JVM. The archives are for class data sharing (JEP 350). `fanout prepare`
builds the archives, once for each combination of a Java and a program's jars. A JVM ignores an archive of another combination.
Measured on busy machines:

1. Spark, on two cores: a session with its first micro-batch took 8.7 s instead of 13.4, and the JVM 16.6 CPU seconds instead of
   23.7. The connector's classes save a direct lane with one micro-batch another 1.5 CPU seconds of 11.5.
2. Spark's launcher: 0.16 CPU seconds instead of 0.39.
3. The embedded broker: 2.7 CPU seconds instead of 4.5, and 289 MB of memory instead of 356. Formatting its folder takes 1.2 CPU
   seconds instead of 1.9.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyspark

from delivery import errors
from fanout.jvm import jars, java
from fanout.terminal import commands

TRAINING_TIMEOUT_S = 300
"""Seconds after which the process that builds an archive fails."""
LIBRARY = jars.IVY_FILE.parent / "lib"


def _sparks_jars() -> list[Path]:
    return list((Path(pyspark.__file__).parent / "jars").iterdir())


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program whose classes are archived."""

    name: str
    """Beginning of the name of the archive's file."""
    title: str
    """Name of the program in messages, in the form for the beginning of a sentence."""
    training: str
    """Module that runs the program, so that the JVM writes an archive. The module's argument is the path of the archive."""
    jars: Callable[[Path], list[Path]]
    """Function from the folder of the downloaded jars to the jars of the program."""


SPARK = Program(
    name="spark",
    title="Spark",
    training="fanout.jvm.class_training",
    jars=lambda folder: [*_sparks_jars(), *folder.glob("connector/*.jar")],
)
LAUNCHER = Program(
    name="launcher", title="Spark's launcher", training="fanout.jvm.launcher_training", jars=lambda _: _sparks_jars()
)
BROKER = Program(
    name="broker",
    title="The embedded Kafka broker",
    training="fanout.local.broker_training",
    jars=lambda folder: list(folder.glob("broker/*.jar")),
)
PROGRAMS = (SPARK, LAUNCHER, BROKER)


def find(program: Program, folder: Path = LIBRARY) -> Path | None:
    """Return the program's archive for this Java and these jars; None: no such archive was built.

    Raise LocalStackError if there is no supported Java.
    """
    archive = _archive(program, folder)
    return archive if archive.is_file() else None


def ensure(program: Program, folder: Path = LIBRARY) -> Path | None:
    """Return the program's archive, and build it first if it is missing.

    Before the build, delete the program's archives for other jars or another Java. Return None if `folder` has no jar of the
    program, as with the broker in the image. If the archive exists, the process needs no right to write to the folder. No jars
    are downloaded. Raise LocalStackError if the archive cannot be built or written, or if there is no supported Java.
    """
    if not program.jars(folder):
        return None
    archive = _archive(program, folder)
    if archive.is_file():
        return archive
    try:
        with (folder / "classes.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not archive.is_file():  # else another process has built it meanwhile
                commands.say(f"archiving Java classes for a faster start: {program.title} (up to a minute, once) …")
                for outdated in folder.glob(f"{program.name}-*.jsa"):
                    outdated.unlink()
                _make(program, archive)
    except OSError as exc:
        raise errors.LocalStackError(
            f"{program.title} has no archive of its classes: {exc.filename or folder} cannot be written ({exc.strerror}). Run "
            "`fanout prepare` with the right to write this folder, and with room on its disk"
        ) from exc
    return archive


def _archive(program: Program, folder: Path) -> Path:
    """Return the path of the archive, named by a digest of the module that builds it, of Java and of the jars.

    A JVM silently ignores an archive of other jars. Jars that were installed again are other jars, because their times differ.
    Raise LocalStackError if there is no supported Java.
    """
    binary = java.find().resolve()
    folder = folder.resolve()
    stats = sorted((str(jar), jar.stat().st_size, jar.stat().st_mtime_ns) for jar in program.jars(folder))
    training = Path(str(importlib.util.find_spec(program.training).origin)).read_bytes()  # type: ignore[union-attr]  # it exists
    compared = (training, binary, binary.stat().st_mtime_ns, stats)
    return folder / f"{program.name}-{hashlib.sha256(repr(compared).encode()).hexdigest()[:16]}.jsa"


def _make(program: Program, archive: Path) -> None:
    """Build the archive in a scratch folder, and move it into place, so that an interrupted run leaves no partial archive."""
    with tempfile.TemporaryDirectory(dir=archive.parent) as scratch:
        made = Path(scratch) / archive.name
        try:
            done = subprocess.run(
                [sys.executable, "-m", program.training, str(made)],
                cwd=scratch,
                capture_output=True,
                text=True,
                timeout=TRAINING_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise errors.LocalStackError(
                f"{program.title} has no archive of its classes: it did not start and stop within {TRAINING_TIMEOUT_S} s. "
                "Try again when the machine is less busy"
            ) from None
        if done.returncode or not made.is_file():
            [*_, problem] = done.stderr.strip().splitlines() or ["Java printed no reason"]
            raise errors.LocalStackError(
                f"{program.title} has no archive of its classes: {problem}. Correct the cause, and run `fanout prepare` again"
            )
        made.rename(archive)
