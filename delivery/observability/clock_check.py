"""Warn when the clock of a worker differs from the driver's clock.

Runs on the driver. The lanes of one application share one ClockCheck.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

WARNED_EVERY_S = 600.0
"""Shortest time between two warnings, in seconds."""


class ClockCheck:
    """Log a warning when a worker's clock is too far ahead of the driver's clock, or too far behind it.

    delivery.webhooks.clocks.driver_clock defines the limits. All workers together cause at most one warning in WARNED_EVERY_S
    seconds. Thread-safe. `clock` is monotonic, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._warn_at = float("-inf")

    def record(self, ahead_s: float) -> None:
        """Log a warning that a worker's clock is `ahead_s` seconds ahead of the driver's.

        Negative: the worker's clock is behind. Do nothing for 0 (the difference is too small), or within WARNED_EVERY_S seconds
        after the last warning.
        """
        with self._lock:
            if not ahead_s or self._clock() < self._warn_at:
                return
            self._warn_at = self._clock() + WARNED_EVERY_S
        log.warning(
            "the clock of a worker is %.0f s %s the driver's (fanout_clock_ahead_seconds names the lane; the worker's host is "
            "not known). Workers sign with the driver's time, so deliveries continue. Synchronise the clocks of all hosts by "
            "NTP: if the driver's clock is minutes off, receivers refuse the signatures",
            abs(ahead_s), "ahead of" if ahead_s > 0 else "behind",
        )  # fmt: skip
