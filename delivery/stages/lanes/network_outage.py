"""Pause all lanes while our own network is broken: the shell around delivery.webhooks.scheduling.outage.

Runs on the driver, shared by the lanes of one application, each of which calls from its own thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from delivery.model import EndpointId
from delivery.observability import metrics
from delivery.webhooks.scheduling import outage
from delivery.webhooks.scheduling.outage_history import Outages
from delivery.webhooks.state.backlog import Failing

log = logging.getLogger(__name__)

STOP_POLL_S = 0.5
"""How often a lane that is paused looks whether the job is to stop."""
Registry = TypeVar("Registry")


class Network:
    """What is thought of our own network, and who waits for it.

    `clock` is monotonic, in seconds; `now_s` gives seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, now_s: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._now_s = now_s
        self._health = outage.NetworkHealth()
        self._outages = Outages()
        self._changing = threading.Condition()

    @property
    def is_broken(self) -> bool:
        """Whether the fault is ours."""
        return self._health.is_broken

    def told(self, seen: outage.Reachability) -> None:
        """Take which destinations a micro-batch has asked. A sign that the network works ends all pauses at once."""
        with self._changing:
            before, self._health = self._health, self._health.after(seen, self._clock())
            self._outages = self._outages.after(
                is_broken=self._health.is_broken, is_healthy=seen.is_healthy, now_ms=round(self._now_s() * 1000)
            )
            self._changing.notify_all()
        if self._health.is_broken and self._health is not before:
            log.error(
                "%d of %d destinations of several customers cannot be reached: the fault is ours, and all lanes pause for "
                "%.0f s. Nobody is disabled for it. Look at this network's way out: routes, firewall, DNS, proxy",
                seen.unreachable, seen.asked, self._health.pause_s,
            )  # fmt: skip
        elif before.is_broken and not self._health.is_broken:
            log.info("destinations can be reached again: the lanes go on")
        metrics.EGRESS_BROKEN.set(self._health.is_broken)

    def failing(self, told: Iterable[Failing], disable_after_s: float) -> list[EndpointId]:
        """Return the endpoints that have failed for so long by themselves. What failed by a fault of ours does not count."""
        with self._changing:
            outages = self._outages
        return [one.endpoint_id for one in told if outages.failing_s(one.since_ms, one.failed_ms) >= disable_after_s]

    def hold_reason(self) -> str | None:
        """Return why the lanes pause, None when they do not."""
        return "hardly any endpoint can be reached: our own network is broken" if self.is_broken else None

    @property
    def is_paused(self) -> bool:
        """Whether nothing is to be sent now."""
        return self._health.paused_until > self._clock()

    def holding(self, take: Callable[[], Registry | None], stop: threading.Event) -> Callable[[], Registry | None]:
        """Return `take`, which gives what a micro-batch is handled with, to wait while the lanes pause; None: the job stops."""

        def held() -> Registry | None:
            with self._changing:
                while (wait_s := self._health.paused_until - self._clock()) > 0:
                    if stop.is_set():
                        return None
                    self._changing.wait(min(wait_s, STOP_POLL_S))
            return take()

        return held
