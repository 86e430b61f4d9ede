"""Lock each lane's checkpoint folder, so that a second driver cannot run the same lane.

Runs on the driver, and in commands that change the checkpoint. Without the lock, two drivers would deliver the current
micro-batch before Spark noticed two writers of one log. The lock is an operating-system lock on a file beside the lane's
folder. The lock ends with the process, however the process ends, and needs neither Kafka nor Postgres. The lock also keeps out
drivers on other machines if the file system shares locks, as NFS 4 does. A checkpoint on a store, such as `s3a://`, has no file
locks. There the Lease of Kubernetes keeps a second driver out (delivery.stages.checkpoint_lock.kubernetes_lease).
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
from collections.abc import Iterable
from pathlib import Path

from delivery import errors
from delivery.stages.checkpoint import object_store

log = logging.getLogger(__name__)


def acquire(checkpoint: str, lanes: Iterable[str]) -> None:
    """Lock the folder of each of `lanes` in the checkpoint for the lifetime of this process.

    Do nothing if the checkpoint is neither a path nor a `file` URL. If the file system has no locks, log a warning and take no
    lock. Raise CheckpointInUse if another process has locked one of the folders, and SettingsError if the checkpoint cannot be
    written.
    """
    folder = object_store.folder_of(checkpoint)
    if folder is None:
        return
    for lane in lanes:
        _lock(folder, lane)


def _lock(folder: Path, lane: str) -> None:
    path = folder / f"{lane}.lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)  # stays open: closing would release the lock. No child inherits it
    except OSError as exc:
        raise _unwritable(path, exc) from exc
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        owner = os.pread(file, 1000, 0).decode(errors="replace") or "a process that is starting"
        os.close(file)
        raise errors.CheckpointInUse(
            f"lane {lane} of the checkpoint {folder} is in use by another job or `fanout accept-loss` ({owner}). Nothing was "
            "started or changed. Stop that job, or wait until that command has ended"
        ) from exc
    except OSError as exc:
        os.close(file)
        log.warning(
            "%s cannot be locked (%s). This process continues without protection. Make sure that no other job and no `fanout "
            "accept-loss` uses this checkpoint", path, exc.strerror,
        )  # fmt: skip
        return
    try:
        os.ftruncate(file, 0)
        os.pwrite(file, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
    except OSError as exc:
        os.close(file)
        raise _unwritable(path, exc) from exc


def _unwritable(path: Path, exc: OSError) -> errors.SettingsError:
    return errors.SettingsError(
        f"{path} cannot be written ({exc.strerror}), so nothing was started or changed: set spark.checkpoint to another "
        "folder, or make this one writable"
    )
