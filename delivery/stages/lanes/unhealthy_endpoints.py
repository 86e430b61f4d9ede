"""Keep the unhealthy endpoints for all workers: the suppressed endpoints and the late endpoints.

Events of a suppressed endpoint go to the retry lane without an attempt, because the endpoint fails or does not answer. A late
endpoint gets attempts, but tasks of the direct and batch lanes hardly wait for its responses.

Runs on the driver, shared by the lanes of one application. If the retry lane runs as an application of its own, the other lanes
do not know which endpoints the retry lane suppresses. Then each worker process detects failing endpoints by itself
(delivery.webhooks.scheduling.circuit_breaker).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from delivery.registry_model import EndpointId
from delivery.webhooks.policy import retry_reasons
from delivery.webhooks.scheduling import unhealthy

LATE_S = 600.0
"""Seconds for which a late endpoint is kept. By then most workers have sent it requests, and estimate its response time."""
MAX_WATCHED = 5_000
"""Most endpoints whose next acceptance the workers are asked to report. The ids of all these endpoints are sent to each task.
If there are more, the workers report acceptances of every endpoint, but at longer intervals (`health_hints.SHARE`)."""
MAX_LATE = 1_000
"""Most late endpoints that are kept: the last ones that were reported. All are sent to each task, with some 40 bytes for
each."""


class UnhealthyEndpoints:
    """The unhealthy endpoints of one application. Thread-safe.

    `attempt_s` is the timeout of an attempt in the direct, batch and real-time lanes. An endpoint that is unresponsive to one
    worker is suppressed for all workers for twice `attempt_s`. By then the attempts in flight have usually ended, and the
    retry lane has their results. From then on the endpoint is suppressed only if the last call of `set_reported` names it.
    `clock` is monotonic, in seconds.
    """

    def __init__(self, attempt_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._unresponsive_s = 2 * attempt_s
        self._clock = clock
        self._lock = threading.Lock()
        self._suppressed: frozenset[EndpointId] = frozenset()
        self._watched: frozenset[EndpointId] | None = None
        self._unresponsive_until: dict[EndpointId, float] = {}
        self._late: dict[EndpointId, float] = {}
        """By endpoint, the time of its last report. The oldest report comes first."""

    def set_reported(self, suppressed: frozenset[EndpointId], watched: frozenset[EndpointId]) -> None:
        """Replace the endpoints that the retry lane suppresses, and the endpoints whose next acceptance workers must report.

        The retry lane calls this after each micro-batch that has input partitions: only then do the lane's shards report.
        """
        self._suppressed, self._watched = suppressed, watched if len(watched) <= MAX_WATCHED else None

    def add_unresponsive(self, endpoints: frozenset[EndpointId]) -> None:
        """Suppress endpoints that were unresponsive to a worker of the direct, batch or real-time lane."""
        with self._lock:
            self._unresponsive_until |= dict.fromkeys(endpoints, self._clock() + self._unresponsive_s)

    def add_late(self, endpoints: frozenset[EndpointId]) -> None:
        """Record that endpoints were late to respond to a worker of the direct or batch lane."""
        with self._lock:
            now = self._clock()  # within the lock: later reports have later times
            for endpoint_id in endpoints:
                self._late.pop(endpoint_id, None)
                self._late[endpoint_id] = now
            while len(self._late) > MAX_LATE:
                del self._late[next(iter(self._late))]

    def current(self) -> unhealthy.Unhealthy:
        """Return the endpoints that are unhealthy now. The result does not change later."""
        now = self._clock()
        with self._lock:
            self._unresponsive_until = {
                endpoint_id: until for endpoint_id, until in self._unresponsive_until.items() if until > now
            }
            unresponsive = dict.fromkeys(self._unresponsive_until, retry_reasons.SLOW)
            self._late = {endpoint_id: at for endpoint_id, at in self._late.items() if at + LATE_S > now}
            late = self._late.copy()
        suppressed = unresponsive | dict.fromkeys(self._suppressed, retry_reasons.CIRCUIT_OPEN)
        return unhealthy.Unhealthy(suppressed, late, self._watched)
