"""Hold all lanes while our own network is broken: the shell around delivery.webhooks.egress.

Runs on the driver, shared by the lanes of one application, each of which calls from its own thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from delivery import metrics
from delivery.webhooks.egress import Egress

log = logging.getLogger(__name__)

Registry = TypeVar("Registry")


class Network:
    """What is thought of our own network, and who waits for it. `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._egress = Egress()
        self._changing = threading.Lock()

    @property
    def is_broken(self) -> bool:
        """Whether the fault is ours. Nobody is disabled for failures of such a time."""
        return self._egress.is_broken

    def told(self, asked: int, unreachable: int) -> None:
        """Take what a micro-batch tells: how many endpoints it asked, and to how many of them there was no way at all."""
        with self._changing:
            before, self._egress = self._egress, self._egress.told(asked, unreachable, self._clock())
        if self._egress.is_broken and self._egress is not before:
            log.error(
                "%d of %d endpoints cannot be reached: the fault is ours, and all lanes hold for %.0f s",
                unreachable, asked, self._egress.held_s,
            )  # fmt: skip
        elif before.is_broken and not self._egress.is_broken:
            log.info("endpoints can be reached again: the lanes go on")
        metrics.EGRESS_BROKEN.set(self._egress.is_broken)

    def hold_reason(self) -> str | None:
        """Return why the lanes hold, None when they do not."""
        return "hardly any endpoint can be reached: our own network is broken" if self.is_broken else None

    def holding(self, take: Callable[[], Registry | None], stop: threading.Event) -> Callable[[], Registry | None]:
        """Return `take`, which gives what a micro-batch is handled with, to wait while the lanes hold; None: the job stops."""

        def held() -> Registry | None:
            while (wait_s := self._egress.until - self._clock()) > 0:
                if stop.wait(wait_s):
                    return None
            return take()

        return held
