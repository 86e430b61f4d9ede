"""Yield the settings of a job with executors in JVMs of their own, on this machine: Spark's master `local-cluster`."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyspark

MEMORY_MB = 1024
"""Memory of one Spark worker. It has room for one executor, whose heap is 1 GiB by default (`spark.executor.memory`)."""


@contextlib.contextmanager
def settings(executors: int) -> Iterator[Mapping[str, str]]:
    """Yield the settings of a job with this number of executors, each with one core.

    Within the context, SPARK_HOME is a temporary folder with links to Spark, because Spark's workers write below SPARK_HOME.
    """
    before = os.environ.get("SPARK_HOME")
    with tempfile.TemporaryDirectory(prefix="fanout-spark-") as home:
        for part in Path(pyspark.__file__).parent.iterdir():
            (Path(home) / part.name).symlink_to(part)
        os.environ["SPARK_HOME"] = home
        try:
            yield {
                "spark.master": f"local-cluster[{executors},1,{MEMORY_MB}]",
                "spark.parallelism": str(executors),
                "spark.conf": f"spark.authenticate.secret={secrets.token_hex(16)}",
            }
        finally:
            os.environ.pop("SPARK_HOME")
            if before is not None:
                os.environ["SPARK_HOME"] = before
