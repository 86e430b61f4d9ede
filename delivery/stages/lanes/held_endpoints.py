"""Remember which endpoints are not to be asked now, for all workers of the fast lanes.

Runs on the driver, shared by the lanes of one application. What is not known here, as what a retry lane knows that runs as an
application of its own, each worker process finds out by itself (delivery.webhooks.scheduling.circuit_breaker,
delivery.webhooks.scheduling.background_attempts): it waits for the endpoint, and so does whoever has an event in the same
micro-batch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from delivery.model import EndpointId
from delivery.webhooks.policy import retry_reasons
from delivery.webhooks.scheduling import deferral


class Held:
    """The endpoints whose events go to the retry lane at once, each with the reason. Safe between threads.

    One that does not answer a worker is left alone by all for twice `attempt_s`, the longest that an attempt takes. By then
    what was under way has ended, the circuit of that worker knows, and has told the retry lane, which holds the endpoint back
    from then on if it is ill. `clock` is monotonic, in seconds.
    """

    def __init__(self, attempt_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._silent_s = 2 * attempt_s
        self._clock = clock
        self._lock = threading.Lock()
        self._held: frozenset[EndpointId] = frozenset()
        self._silent_until: dict[EndpointId, float] = {}

    def told(self, endpoints: frozenset[EndpointId]) -> None:
        """Take what the retry lane tells after a micro-batch, which is all that it holds back."""
        self._held = endpoints

    def silent(self, endpoints: frozenset[EndpointId]) -> None:
        """Take which endpoints have not answered in a micro-batch of any lane."""
        with self._lock:
            self._silent_until |= dict.fromkeys(endpoints, self._clock() + self._silent_s)

    def now(self) -> deferral.SuppressedEndpoints:
        """Return what is held at this moment."""
        now = self._clock()
        with self._lock:
            self._silent_until = {one: until for one, until in self._silent_until.items() if until > now}
            silent = dict.fromkeys(self._silent_until, retry_reasons.SLOW)
        return silent | dict.fromkeys(self._held, retry_reasons.CIRCUIT_OPEN)
