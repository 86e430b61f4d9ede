"""Warn when the clocks of workers and driver differ.

Runs on the driver, shared by the lanes of one application.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

WARNED_EVERY_S = 600.0
"""Seconds between two warnings."""


class Clocks:
    """What workers tell of their clocks. Safe between threads. `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._warn_at = float("-inf")

    def told(self, ahead_s: float) -> None:
        """Take by how much the clock of a worker is ahead of the driver's; 0: there is no difference to speak of."""
        with self._lock:
            if not ahead_s or self._clock() < self._warn_at:
                return
            self._warn_at = self._clock() + WARNED_EVERY_S
        log.warning(
            "the clock of a worker is %.0f s %s the driver's: the worker goes by the driver's. Synchronise the clocks of all "
            "hosts by NTP: receivers refuse signatures whose timestamp is minutes off",
            abs(ahead_s), "ahead of" if ahead_s > 0 else "behind",
        )  # fmt: skip
