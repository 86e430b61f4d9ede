"""Keep a second driver from a checkpoint: by file locks in a folder, and by a Lease of Kubernetes where one is named.

Runs on the driver, and in commands that change the checkpoint.
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
from delivery.stages.checkpoint import cluster, file_lock, lease


class Lock:
    """The right to use the checkpoint for some lanes. Raise CheckpointInUse at once where another process has the folder."""

    def __init__(self, config: settings.Spark, lanes: Iterable[str]) -> None:
        file_lock.take(config.checkpoint, lanes)
        self._holder: lease.Holder | None = None
        if name := config.checkpoint_lease:
            # A restarted container has the host name of the one before it; only the process is unique.
            identity = f"{socket.gethostname()}_{uuid.uuid4()}"
            self._holder = lease.Holder(cluster.of_this_pod(name, os.environ), identity, jvm.kill)

    def hold_reason(self) -> str | None:
        """Why nothing is delivered yet; None while the checkpoint may be used."""
        return None if self._holder is None else self._holder.hold_reason

    @contextlib.contextmanager
    def held(self, stop: threading.Event, *, is_patient: bool = True) -> Iterator[bool]:
        """Wait for the Lease and have it inside; give False when the job is to stop.

        It is released only when all inside came to an orderly end. After a failure the workers may still be ending, so the
        next driver waits until the Lease has run out.
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
