"""Estimate the driver's time in a worker. All times that cross between processes are by the driver's clock.

The reasons are in docs/adr/0033. A stamp is the driver's time that the driver writes into a task, or into an update to a task
of the real-time lane. A worker receives a stamp some time after the driver wrote it. So the worker's clock minus the stamp is
the difference of the clocks plus a wait that is never negative. The minimum of this value over the last SAMPLES stamps is the
best estimate of the difference of the clocks. NTP's clock filter uses a minimum too (RFC 5905, section 10). A worker that is
behind by at most BEHIND_S, or ahead by at most AHEAD_S, counts as neither behind nor ahead. The worker's own time is then the
estimate of the driver's time.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable

SAMPLES = 20
"""Number of the latest stamps over which the minimum is taken. After a clock has jumped, the estimate is right again after this
many stamps at the latest."""
BEHIND_S = 1.0
"""Seconds. A worker counts as behind if its clock was more than BEHIND_S earlier than one of the last SAMPLES stamps. No wait
explains this, because a wait only makes the worker's clock look ahead."""
AHEAD_S = 30.0
"""Seconds. A worker counts as ahead if its clock was more than AHEAD_S later than each of the last SAMPLES stamps. On a busy
cluster one task may wait this long before it reads its stamp, but hardly every task."""
ENOUGH_SAMPLES = 3
"""Fewest stamps after which a new worker may count as ahead. The first task of a worker waits for the process to start. So the
task reads its stamp late, and the worker's clock looks ahead."""


class DriverClock:
    """Estimate the driver's time. A call of the object returns the estimate, in seconds since the epoch.

    `clock` is the worker's clock. Thread-safe.
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
        """Record `driver_s`, a stamp that this worker receives now, in seconds since the epoch.

        Called for each task that has a stamp, and for each update to a task of the real-time lane.
        """
        self._samples.append(self._clock() - driver_s)
        least_s = min(self._samples)
        is_ahead = least_s > AHEAD_S and len(self._samples) >= ENOUGH_SAMPLES
        self.ahead_s = least_s if is_ahead or least_s < -BEHIND_S else 0.0
