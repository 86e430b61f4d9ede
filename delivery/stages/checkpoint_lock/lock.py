"""Lock a checkpoint against a second driver: by file locks in a folder, and by a Lease of Kubernetes if one is set.

Runs on the driver, and in commands that change the checkpoint. The setting `spark.checkpoint_lease` names the Lease.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import uuid
from collections.abc import Iterable, Iterator

from delivery.config import settings
from delivery.stages import jvm
from delivery.stages.checkpoint_lock import cluster, file_lock, kubernetes_lease


class Lock:
    """The lock of this process on some lanes of a checkpoint.

    The constructor takes the file locks. The constructor raises three errors:

    1. CheckpointInUse, at once, if another process has one of these locks.
    2. SettingsError if the checkpoint cannot be written.
    3. LeaseRefused if a Lease is set and this process runs in no pod.
    """

    def __init__(self, config: settings.SparkSettings, lanes: Iterable[str]) -> None:
        file_lock.acquire(config.checkpoint, lanes)
        self._holder: kubernetes_lease.Holder | None = None
        if name := config.checkpoint_lease:
            # A restarted container keeps the host name of the previous one; only the process is unique.
            identity = f"{socket.gethostname()}_{uuid.uuid4()}"
            self._holder = kubernetes_lease.Holder(cluster.of_this_pod(name, os.environ), identity, jvm.kill)

    def pause_reason(self) -> str | None:
        """Return why this driver waits for the Lease and does not deliver yet. None: this driver may use the checkpoint."""
        return None if self._holder is None else self._holder.pause_reason

    @contextlib.contextmanager
    def acquired(self, stop: threading.Event, *, is_patient: bool = True) -> Iterator[bool]:
        """Wait for the Lease, hold it inside the context, and yield True. If no Lease is configured, yield True at once.

        Yield False if `stop` was set before this driver held the Lease. `is_patient` False: raise CheckpointInUse as soon as
        another driver renews the Lease. Without a renewal, wait until the Lease expires. Raise LeaseRefused if the API server
        does not let this driver use the Lease. The Lease is released only after a graceful end. After a failure the workers may
        still be running, so the next driver waits for the expiry.
        """
        if self._holder is None:
            yield True
            return
        is_held = self._holder.acquire(stop, is_patient=is_patient)
        try:
            yield is_held
        except BaseException:
            self._holder.abandon()
            raise
        self._holder.release()
