"""Keep the set of suppressed endpoints for all workers of the direct, batch and real-time lanes.

Runs on the driver, shared by the lanes of one application. If the retry lane runs as an application of its own, its failing
endpoints are unknown here. Then each worker process detects them by itself (delivery.webhooks.scheduling.circuit_breaker,
delivery.webhooks.scheduling.background_attempts). It waits for such an endpoint once, and all events of that micro-batch wait
with it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from delivery.model import EndpointId
from delivery.webhooks.policy import retry_reasons
from delivery.webhooks.scheduling import deferral


class SuppressedEndpoints:
    """The endpoints whose events are deferred to the retry lane at once, each with a reason. Thread-safe.

    An endpoint that is unresponsive to one worker is suppressed for all workers for twice `attempt_s`, the longest duration of
    an attempt. By then the attempts in flight have ended and the retry lane has their results. From then on the retry lane
    suppresses the endpoint if it is failing. `clock` is monotonic, in seconds.
    """

    def __init__(self, attempt_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._unresponsive_s = 2 * attempt_s
        self._clock = clock
        self._lock = threading.Lock()
        self._failing: frozenset[EndpointId] = frozenset()
        self._unresponsive_until: dict[EndpointId, float] = {}

    def set_failing(self, endpoints: frozenset[EndpointId]) -> None:
        """Replace the endpoints that the retry lane suppresses. Called after each of its micro-batches."""
        self._failing = endpoints

    def add_unresponsive(self, endpoints: frozenset[EndpointId]) -> None:
        """Suppress endpoints that were unresponsive in a micro-batch of any lane."""
        with self._lock:
            self._unresponsive_until |= dict.fromkeys(endpoints, self._clock() + self._unresponsive_s)

    def current(self) -> deferral.SuppressedEndpoints:
        """Return the endpoints that are suppressed now, with their reasons."""
        now = self._clock()
        with self._lock:
            self._unresponsive_until = {one: until for one, until in self._unresponsive_until.items() if until > now}
            unresponsive = dict.fromkeys(self._unresponsive_until, retry_reasons.SLOW)
        return unresponsive | dict.fromkeys(self._failing, retry_reasons.CIRCUIT_OPEN)
