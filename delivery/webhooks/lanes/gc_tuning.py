"""Exclude a worker's long-lived objects from Python's garbage collection.

PySpark's daemon calls `gc.collect()` between two tasks, which traverses all live objects. A worker of 10,000 endpoints keeps
ten objects and more for each endpoint: request head, response time, subscriptions. So live objects are frozen when a task
begins (`gc.freeze`), and the collector skips them. A frozen object is still freed when its last reference goes. Only frozen
cycles stay, until the next full collection.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

COLLECTION_THRESHOLD = 20_000
"""Number of objects allocated and not yet freed at which Python collects the youngest generation. At the default of 700, the
collector traversed the deliveries in flight again and again: 5 µs per delivery. Deliveries hold no cycles; the few objects that
do, such as exceptions, may wait."""
FULL_COLLECTION_EVERY_S = 600.0
"""Least seconds between two collections that include frozen objects. These full collections are rare, because each one
traverses all objects that the worker keeps."""


class GarbageCollector:
    """Set up Python's garbage collector for a worker process. `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._full_collection_at = clock() + FULL_COLLECTION_EVERY_S
        gc.set_threshold(COLLECTION_THRESHOLD)

    def freeze(self) -> None:
        """Freeze all live objects. If the last full collection is FULL_COLLECTION_EVERY_S old, run one first.

        Called when a task begins, after PySpark has collected the garbage of the previous task.
        """
        if self._clock() >= self._full_collection_at:
            gc.unfreeze()
            gc.collect()
            self._full_collection_at = self._clock() + FULL_COLLECTION_EVERY_S
        gc.freeze()
