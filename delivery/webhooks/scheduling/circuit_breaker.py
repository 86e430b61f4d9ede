"""Decide if the direct, batch or real-time lane may send to an endpoint, by the endpoint's circuit breaker.

Pure: `now` is passed in, in seconds of a monotonic clock. A failure is a result in UNHEALTHY, such as a timeout, a 5xx, a 410
or a 429. A healthy response is an acceptance (2xx), or a refusal in REFUSED.

    closed ── OPENS_AFTER failures in a row ─► open ── OPEN_S ─► half-open ── CLOSES_AFTER healthy responses in a row ─► closed
                                                ▲─────────── one failure ───────┘

After a failure, an endpoint gets one request at a time until its next healthy response. In the half-open state, an endpoint
gets one request at a time until the breaker closes. With several requests at a time, another request would begin between the
first timeout and the opening of the breaker. The micro-batch would then wait for two timeouts, one after the other.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from delivery import errors
from delivery.registry_model import EndpointId
from delivery.webhooks.policy import error_classes, retry_reasons

OPENS_AFTER = 5
"""Failures in a row after which a breaker opens."""
TIMEOUT_WEIGHT = 3
"""Number of failures for which a timeout counts: a timeout holds up the micro-batch for the whole time of an attempt."""
CLOSES_AFTER = 3
"""Healthy responses in a row after which a half-open breaker closes."""
OPEN_S = 30.0
"""Seconds for which a breaker is open. Long enough for the retry lane to detect the failure and suppress the endpoint in all
workers."""

UNHEALTHY = frozenset(
    {
        error_classes.SERVER_ERROR,
        error_classes.UNAVAILABLE,
        error_classes.THROTTLED,
        error_classes.GONE,
        errors.AttemptTimedOut.error_class,
        errors.ConnectFailed.error_class,
        errors.ConnectionLost.error_class,
        errors.DnsFailed.error_class,
        errors.AddressBlocked.error_class,
        errors.TlsFailed.error_class,
        errors.TokenRefused.error_class,
        errors.ResponseInvalid.error_class,
    }
)
"""Error classes that show an unhealthy endpoint."""
REFUSED = frozenset({error_classes.REFUSED, error_classes.REDIRECT})
"""Error classes of responses that refuse one event or show a wrong setting: a 3xx, or a 4xx that is not in UNHEALTHY."""
_NEUTRAL = frozenset({errors.LocalFailure.error_class, retry_reasons.CONFIGURATION})
"""Error classes in which the endpoint had no part. Such results change no breaker."""


class CircuitBreaker:
    """The circuit breaker of one endpoint in one worker. Created after the first attempt that was not accepted."""

    __slots__ = ("_failures", "_healthy_responses", "_is_half_open", "_open_until")

    def __init__(self) -> None:
        self._failures = 0
        self._healthy_responses = 0
        self._is_half_open = False
        self._open_until = float("-inf")

    def is_open(self, now: float) -> bool:
        """Return True if the lane may send nothing to the endpoint at `now`."""
        return now < self._open_until

    @property
    def is_suspect(self) -> bool:
        """Return True if the endpoint gets at most one request at a time.

        True from a failure until the next healthy response. Also True from the opening of the breaker until the breaker closes.
        """
        return self._failures > 0 or self._is_half_open

    def record(self, error_class: str | None, began_at: float, now: float) -> None:
        """Record the result of a request that began at `began_at`. `error_class` is None if the endpoint accepted the request.

        1. The request began before the breaker's last open time ended, or the endpoint had no part in the result: no change.
        2. A healthy response, which is accepted or a refusal in REFUSED: the count of failures in a row becomes 0. After
           CLOSES_AFTER healthy responses in a row a half-open breaker closes.
        3. A failure: after OPENS_AFTER in a row the breaker opens. A timeout counts TIMEOUT_WEIGHT times. A half-open breaker
           opens at once.
        """
        if began_at < self._open_until or error_class in _NEUTRAL:
            return
        if error_class not in UNHEALTHY:
            self._failures = 0
            self._healthy_responses += 1
            self._is_half_open = self._is_half_open and self._healthy_responses < CLOSES_AFTER
            return
        self._healthy_responses = 0
        self._failures += TIMEOUT_WEIGHT if error_class == errors.AttemptTimedOut.error_class else 1
        if self._is_half_open or self._failures >= OPENS_AFTER:
            self._failures, self._is_half_open = 0, True
            self._open_until = now + OPEN_S


CircuitBreakers = MutableMapping[EndpointId, CircuitBreaker]
"""The circuit breakers of a worker, for endpoints that did not accept an attempt. Kept across micro-batches."""


def is_open(breakers: CircuitBreakers, endpoint_id: EndpointId, now: float) -> bool:
    """Return True if the endpoint has a breaker that is open. Called for each delivery; hardly any endpoint has a breaker."""
    return endpoint_id in breakers and breakers[endpoint_id].is_open(now)
