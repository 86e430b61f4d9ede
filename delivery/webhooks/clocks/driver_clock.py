"""Know, in a worker, what time it is on the driver: all times that one process sets and another judges are the driver's.

Runs in the executors. Must not import pyspark or psycopg. docs/adr/0033 has the reasons.

The driver stamps the tasks of each micro-batch. A task begins some time after its stamp, so its worker's clock less the stamp
is the difference of the clocks and a wait that is never negative. The least of the last SAMPLES is the best estimate, as in
the clock filter of NTP (RFC 5905, section 10).
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable

SAMPLES = 20
"""Tasks. After a clock has jumped the estimate is right again when so many have begun."""
BEHIND_S = 1.0
"""Seconds. A worker that begins a task so long before its stamp is behind for certain."""
AHEAD_S = 30.0
"""Seconds. A task may wait for so long on a busy cluster; all of the last tasks hardly do."""
ENOUGH_SAMPLES = 3
"""Tasks, before a worker is thought to be ahead: the first waits for its process to start."""


class DriverClock:
    """Seconds since the epoch by the driver's clock. `clock` is the worker's own. Safe between threads."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._samples: collections.deque[float] = collections.deque(maxlen=SAMPLES)
        self.ahead_s = 0.0
        """By how much the worker's clock is ahead; less than 0: behind. 0 while that is no more than waits explain."""

    def __call__(self) -> float:
        return self._clock() - self.ahead_s

    def stamped(self, driver_s: float) -> None:
        """Take the stamp of a task that begins now."""
        self._samples.append(self._clock() - driver_s)
        least_s = min(self._samples)
        is_ahead = least_s > AHEAD_S and len(self._samples) >= ENOUGH_SAMPLES
        self.ahead_s = least_s if is_ahead or least_s < -BEHIND_S else 0.0
