"""Keep what a worker goes on knowing out of the way of Python's garbage collector.

Runs in the executors. Must not import pyspark or psycopg. Between two tasks PySpark has the collector walk through everything
that is alive (`gc.collect()` in its daemon), and a worker of 10,000 endpoints knows ten objects and more of each: the head of
its requests, how long it takes to answer, what it subscribed to. So what is alive when a task begins is put aside, where the
collector does not look (`gc.freeze`). What is put aside is freed as ever when nobody refers to it any more; only cycles stay,
and for those everything is walked through at times.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

COLLECTED_EVERY = 20_000
"""Objects made and not yet freed, between two runs of the collector. Every 700, its default, it walks through what is under way
again and again: 5 µs of each delivery. Deliveries hold no cycles; what does, an exception at times, may wait."""
WHOLE_EVERY_S = 600.0
"""So often everything is walked through, which takes the longer the more a worker knows."""


class Garbage:
    """The collector of this process. `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._whole_at = clock() + WHOLE_EVERY_S
        gc.set_threshold(COLLECTED_EVERY)

    def put_aside(self) -> None:
        """Put aside what is alive. Called when a task begins: what an earlier one has left is collected by then."""
        if self._clock() >= self._whole_at:
            gc.unfreeze()
            gc.collect()
            self._whole_at = self._clock() + WHOLE_EVERY_S
        gc.freeze()
