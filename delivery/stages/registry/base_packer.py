"""Pack the base snapshot of the registry, and all changes since this snapshot, once for all tasks of the real-time lane.

Runs on the driver, on the threads of the lane's TaskServer. All tasks ask for the same values at the same moment: for the
snapshot at the start of a query, and when the registry has a new base; for the changes within a quarter of a second after each
change. Pickling holds the GIL, and takes 1 s for 100,000 changed subscriptions. One pickle for each task kept workers waiting
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
"""Seconds without a request for a packed value after which the driver deletes its bytes: 4.5 MB for 100,000 subscriptions.
Tasks ask within seconds of each other, also after a restart of the query. A worker that Spark replaces later asks alone, and
packing the snapshot again for it takes 0.9 s."""


class _Packed(NamedTuple):
    key: object
    written: bytes
    asked_at: float
    """When a task last asked for the value; monotonic seconds."""


class _PackedValue:
    """The last packed base snapshot, or the last packed changes. Thread-safe. `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._newest: _Packed | None = None

    def packed(self, key: object, value: object) -> bytes:
        """Return `value`, packed by `pickling.packed`. With the key of the last call, return the bytes of the last call.

        Wait while another thread packs a value. Only the bytes of the last call are kept.
        """
        with self._lock:
            kept = self._newest
            written = kept.written if kept is not None and kept.key == key else pickling.packed(value)
            self._newest = _Packed(key, written, self._clock())
            return written

    def forget_unused(self) -> None:
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._newest is not None and self._clock() - self._newest.asked_at > KEEP_S:
                self._newest = None
        finally:
            self._lock.release()


class BasePacker:
    """Pack the base snapshot of the registry, and all changes since this snapshot, once for all tasks. Thread-safe.

    `clock` is monotonic, in seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._base, self._changes = _PackedValue(clock), _PackedValue(clock)

    def packed(self, published: Published) -> bytes:
        """Return the base of `published`, packed by `pickling.packed`.

        Wait while another thread packs a base. Only the base of the last call is kept.
        """
        return self._base.packed(published.base_id, published.base)

    def packed_changes(self, published: Published) -> bytes | None:
        """Return the changes of `published`, packed by `pickling.packed`; None if there are none.

        Wait while another thread packs changes. Only the changes of the last call are kept.
        """
        if published.changes is None:
            return None
        return self._changes.packed((published.base_id, published.changes.revision), published.changes)

    def forget_unused(self) -> None:
        """Delete packed values that no task has asked for in KEEP_S seconds. Do not wait for a thread that packs a value."""
        self._base.forget_unused()
        self._changes.forget_unused()
