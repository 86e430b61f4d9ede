"""Estimate the driver's time in a worker. All times that cross between processes are by the driver's clock.

The reasons are in docs/adr/0033. The driver stamps the tasks of each micro-batch with its time. A task begins some time after
its stamp. So the worker's clock minus the stamp is the difference of the clocks plus a wait that is never negative. The minimum
over the last SAMPLES tasks is the best estimate, as in the clock filter of NTP (RFC 5905, section 10).
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable

SAMPLES = 20
"""Number of tasks over which the minimum is taken. After a clock has jumped, the estimate is right again after this many."""
BEHIND_S = 1.0
"""Seconds. A worker whose clock is this much before the stamp of a task that begins is certainly behind."""
AHEAD_S = 30.0
"""Seconds. A worker counts as ahead if its clock was more than this after the stamp of each of the last SAMPLES tasks, or of
fewer tasks in a new worker. On a busy cluster one task may wait this long, but hardly every task."""
ENOUGH_SAMPLES = 3
"""Number of tasks from which on a worker may count as ahead. The first task waits for its process to start."""


class DriverClock:
    """Return, when called, the seconds since the epoch by the driver's clock. `clock` is the worker's own. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._samples: collections.deque[float] = collections.deque(maxlen=SAMPLES)
        self.ahead_s = 0.0
        """Seconds by which the worker's clock is ahead of the driver's; negative: behind. 0 while waits may explain the
        difference."""

    def __call__(self) -> float:
        return self._clock() - self.ahead_s

    def record_stamp(self, driver_s: float) -> None:
        """Record `driver_s`, the driver's time in the stamp of a task that begins now."""
        self._samples.append(self._clock() - driver_s)
        least_s = min(self._samples)
        is_ahead = least_s > AHEAD_S and len(self._samples) >= ENOUGH_SAMPLES
        self.ahead_s = least_s if is_ahead or least_s < -BEHIND_S else 0.0
