"""Pause all lanes while our own network is broken, as delivery.webhooks.scheduling.outage_detection decides.

Runs on the driver. The lanes of one application share one Network, and each lane calls it from its own thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from delivery.observability import metrics
from delivery.registry_model import EndpointId
from delivery.webhooks.scheduling import outage_detection
from delivery.webhooks.scheduling.outage_history import Outages
from delivery.webhooks.state.backlog import Failing

log = logging.getLogger(__name__)

STOP_POLL_S = 0.5
"""Seconds between two checks of the stop event by a paused lane."""
BROKEN = (
    "hardly any endpoint can be reached: our own network is broken. Events wait in Kafka, and all lanes continue by "
    "themselves. Check this network's routes, firewall, DNS and proxy"
)
"""The reason of a pause, for the operator."""
Registry = TypeVar("Registry")


class Network:
    """Detect an outage of our own network, and make the lanes wait for its end.

    `clock` is monotonic, in seconds; `now_s` gives seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, now_s: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._now_s = now_s
        self._health = outage_detection.NetworkHealth()
        self._outages = Outages()
        self._changing = threading.Condition()

    @property
    def is_broken(self) -> bool:
        """True if our own network is broken."""
        return self._health.is_broken

    def record(self, seen: outage_detection.Reachability) -> None:
        """Record which destinations responded, by a report of any lane, and start, prolong or end the pause of all lanes.

        If most destinations responded, the pause of every lane ends at once.
        """
        with self._changing:
            before, self._health = self._health, self._health.after(seen, self._clock())
            self._outages = self._outages.after(
                is_broken=self._health.is_broken, is_healthy=seen.is_healthy, now_ms=round(self._now_s() * 1000)
            )
            self._changing.notify_all()
        if self._health.is_broken and self._health is not before:
            log.error(
                "%d of %d destinations of several customers did not respond, so our own network is probably broken. All lanes "
                "pause for %.0f s and then try again. No endpoint is disabled. Check this network's routes, firewall, DNS and "
                "proxy, and the workers' limit of open files (ulimit -n)",
                seen.unreachable, seen.asked, self._health.pause_s,
            )  # fmt: skip
        elif before.is_broken and not self._health.is_broken:
            log.info("destinations can be reached again: all lanes resume")
        metrics.EGRESS_BROKEN.set(self._health.is_broken)

    def failing(self, found: Iterable[Failing], disable_after_s: float) -> list[EndpointId]:
        """Return those of the failing endpoints in `found` that have failed for at least `disable_after_s`.

        Local outages do not count: the time in which our own network was broken is subtracted. While an outage lasts, return
        nothing. Leave out an endpoint whose last failure was during an outage or within 10 s after it.
        """
        with self._changing:
            outages = self._outages
        return [
            endpoint.endpoint_id
            for endpoint in found
            if outages.failing_s(endpoint.since_ms, endpoint.failed_ms) >= disable_after_s
        ]

    def pause_reason(self) -> str | None:
        """Return a text for the operator while our own network is broken, also during a try between two pauses; else None."""
        return BROKEN if self.is_broken else None

    @property
    def is_paused(self) -> bool:
        """True if the lanes must send nothing now. An outage may have several pauses, with one try after each."""
        return self._health.paused_until > self._clock()

    def pausing(self, take: Callable[[], Registry | None], stop: threading.Event) -> Callable[[], Registry | None]:
        """Return a function that waits while the lanes are paused, and then returns the result of `take`.

        The function returns None, without calling `take`, if `stop` is set during a pause.
        """

        def acquire() -> Registry | None:
            with self._changing:
                while (wait_s := self._health.paused_until - self._clock()) > 0:
                    if stop.is_set():
                        return None
                    self._changing.wait(min(wait_s, STOP_POLL_S))
            return take()

        return acquire
