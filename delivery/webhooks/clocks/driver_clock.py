"""Estimate the driver's time in a worker. All times that cross between processes are by the driver's clock.

The reasons are in docs/adr/0033. The driver writes its time into the stamps of tasks, and into each update to a task of the
real-time lane. A worker receives a stamp or update some time after. So the worker's clock minus the driver's time is the
difference of the clocks plus a wait that is never negative. The minimum over the last SAMPLES stamps and updates is the best
estimate. NTP's clock filter uses it too (RFC 5905, section 10). A worker that is behind by at most BEHIND_S, or ahead by at
most AHEAD_S, counts as neither.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable

SAMPLES = 20
"""Number of stamps and updates over which the minimum is taken. After a clock has jumped, the estimate is right again after
this many at the latest."""
BEHIND_S = 1.0
"""Seconds. A worker counts as behind if its clock was more than this before one of the last SAMPLES stamps and updates. A wait
cannot explain this, because a wait only makes the worker's clock look ahead."""
AHEAD_S = 30.0
"""Seconds. A worker counts as ahead if its clock was more than this ahead of each of the last SAMPLES stamps and updates. On a
busy cluster one task may wait this long, but hardly every task."""
ENOUGH_SAMPLES = 3
"""Number of stamps and updates that a new worker must have received before it may count as ahead. The first task waits for its
process to start."""


class DriverClock:
    """Estimate the driver's clock. A call of the object returns seconds since the epoch. `clock` is the worker's own clock.

    Thread-safe.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._samples: collections.deque[float] = collections.deque(maxlen=SAMPLES)
        self.ahead_s = 0.0
        """Seconds by which the worker's clock is ahead of the driver's; negative: behind. 0 unless the worker counts as ahead
        (AHEAD_S) or as behind (BEHIND_S)."""

    def __call__(self) -> float:
        return self._clock() - self.ahead_s

    def record_stamp(self, driver_s: float) -> None:
        """Record `driver_s`, the driver's time in a stamp or update that this worker receives now, in seconds since the epoch.

        Called with the stamp of each task that has one, and with each update to a task of the real-time lane.
        """
        self._samples.append(self._clock() - driver_s)
        least_s = min(self._samples)
        is_ahead = least_s > AHEAD_S and len(self._samples) >= ENOUGH_SAMPLES
        self.ahead_s = least_s if is_ahead or least_s < -BEHIND_S else 0.0
