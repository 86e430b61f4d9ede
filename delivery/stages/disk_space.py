"""Report the free disk space of each folder that the lanes write, after a lane has ended because a disk is full.

Runs on the driver. The operating system does not say which disk is full: the disk of the checkpoint, or the disk of Spark's
local folders. The local folders hold the shuffled rows, and the open state of the batch and retry lanes.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession

from delivery.stages.checkpoint import object_store

NO_SPACE = os.strerror(errno.ENOSPC)
"""The operating system's text for a full disk. The JVM reports the same text."""


class Folder(NamedTuple):
    """A folder that the lanes write, and the setting that names the folder."""

    setting: str
    path: str


def is_disk_full(failure: str) -> bool:
    """Return True if the error text of a lane says that a disk is full."""
    return NO_SPACE in failure


def free_space(folders: Iterable[Folder]) -> str:
    """Return the free space of each folder, as text to append to the error message of a lane. Never raises."""
    try:
        free = [f"{shutil.disk_usage(folder.path).free // 2**20} MiB in {folder.path} ({folder.setting})" for folder in folders]
    except Exception as exc:  # noqa: BLE001  # a missing folder or JVM must not hide why the lane ended
        return f"; the free space is unknown ({exc})"
    return f"; free now: {', '.join(free)}; the disks of executors on other hosts are unknown here"


def folders(spark: SparkSession, checkpoint: str) -> Iterator[Folder]:
    """Yield the folders that the lanes write on this machine: the checkpoint, if it is a folder, and Spark's local folders."""
    folder = object_store.folder_of(checkpoint)
    if folder is not None:
        yield Folder("spark.checkpoint", str(folder))
    blocks = spark.sparkContext._jvm.org.apache.spark.SparkEnv.get().blockManager()  # type: ignore[union-attr]  # noqa: SLF001  # no public way
    for path in blocks.diskBlockManager().localDirsString():
        yield Folder("spark.local.dir", str(Path(path).parent))
