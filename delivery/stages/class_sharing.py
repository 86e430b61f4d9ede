"""JVM options for the archives of classes (class data sharing, JEP 350), and for Spark's launcher.

Runs on the driver and in `fanout` commands, before a JVM starts. Must not import pyspark.
"""

from __future__ import annotations

from pathlib import Path

LAUNCHER_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xlog:disable")
"""Options of the launcher, a JVM that builds the command line of Spark's JVM and ends. With one collector thread and the quick
compiler the launcher takes 0.39 CPU seconds instead of 0.55. The last option turns off the launcher's messages, because
`spark-class` reads the command line from the launcher's output."""


def options(archive: Path) -> list[str]:
    """Return the JVM options by which the JVM uses this class archive; a JVM that the archive does not fit ignores it."""
    return [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off"]


def launcher_options(*besides: str) -> str:
    """Return LAUNCHER_OPTIONS, followed by `besides`, for the environment variable SPARK_LAUNCHER_OPTS.

    `spark-class` splits the variable at white space. An option that contains white space is left out.
    """
    return " ".join([*LAUNCHER_OPTIONS, *(option for option in besides if not set(option) & set(" \t\n"))])
