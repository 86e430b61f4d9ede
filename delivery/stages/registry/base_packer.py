"""Pack the base snapshot of the registry once for all tasks of the real-time lane.

Runs on the driver, on the threads of the lane's TaskServer. All tasks ask for the same snapshot at the same moment: at the
start of a query, and when the registry has a new base. Pickling holds the GIL. One pickle for each task kept workers waiting
for longer than `channel.CONNECT_S`, and the lane failed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from delivery.webhooks.routing.published_registry import Published
from delivery.webhooks.state import pickling

KEEP_S = 60.0
"""Seconds without a request for a packed snapshot after which the driver deletes its bytes: 4.5 MB for 100,000 subscriptions.
Tasks ask within seconds of each other, also after a restart of the query. A worker that Spark replaces later asks alone, and
packing the snapshot again for it takes 0.9 s."""


class _Packed(NamedTuple):
    base_id: str
    base: bytes
    asked_at: float
    """When a task last asked for the snapshot; monotonic seconds."""


class BasePacker:
    """Pack the base snapshot of the registry once for all tasks. Thread-safe. `clock` is monotonic, in seconds."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._newest: _Packed | None = None

    def packed(self, published: Published) -> bytes:
        """Return the base of `published`, packed by `pickling.packed`.

        Wait while another thread packs a base. Only the base of the last call is kept.
        """
        with self._lock:
            kept = self._newest
            is_kept = kept is not None and kept.base_id == published.base_id
            base = kept.base if kept is not None and is_kept else pickling.packed(published.base)
            self._newest = _Packed(published.base_id, base, self._clock())
            return base

    def forget_unused(self) -> None:
        """Delete the packed base if no task has asked for it for KEEP_S seconds. Return at once while a thread packs a base."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._newest is not None and self._clock() - self._newest.asked_at > KEEP_S:
                self._newest = None
        finally:
            self._lock.release()
