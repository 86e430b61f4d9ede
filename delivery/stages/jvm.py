"""End Spark's JVM at once. Runs on the driver, and in commands that change the checkpoint."""

from __future__ import annotations

from pyspark import SparkContext


def kill() -> None:
    """Kill Spark's JVM, if it runs. The executors and the Python workers notice that the JVM is gone, and end by themselves."""
    gateway = SparkContext._gateway  # noqa: SLF001  # no public way
    if gateway is not None:
        gateway.proc.kill()
