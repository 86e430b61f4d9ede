"""Say of a lane that ended for want of space how much of it is where.

Runs on the driver. The system says that a disk is full, not which: that of the checkpoint, or of Spark's local folders, where
the lanes with state shuffle, and have their state open.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

NO_SPACE = os.strerror(errno.ENOSPC)
"""The JVM has these words from the system, too."""


class Folder(NamedTuple):
    """Where something is written."""

    setting: str
    path: str


def is_meant(failure: str) -> bool:
    """Tell whether a failure is that of a full disk."""
    return NO_SPACE in failure


def told(folders: Iterable[Folder]) -> str:
    """Return how much is free in each folder, to be added to the failure."""
    try:
        free = [f"{shutil.disk_usage(one.path).free // 2**20} MiB of {one.path} ({one.setting})" for one in folders]
    except Exception as exc:  # noqa: BLE001  # a folder that is gone, or a JVM: what the lane ended for must be told
        return f"; how much is free is not known ({exc})"
    return f"; free now are {', '.join(free)}; of executors elsewhere nothing is known here"


def folders(spark: SparkSession, checkpoint: str) -> Iterator[Folder]:
    """Return the folders that the lanes write on this machine."""
    url = urlsplit(checkpoint)
    if url.scheme in {"", "file"}:
        yield Folder("spark.checkpoint", url.path)
    blocks = spark.sparkContext._jvm.org.apache.spark.SparkEnv.get().blockManager()  # type: ignore[union-attr]  # noqa: SLF001  # no public way
    for path in blocks.diskBlockManager().localDirsString():
        yield Folder("spark.local.dir", str(Path(path).parent))
