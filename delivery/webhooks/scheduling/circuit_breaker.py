"""Decide whether an endpoint is worth asking in a fast lane: its circuit.

Runs in the executors. Must not import pyspark or psycopg. Pure: `now` comes in, seconds of a monotonic clock.

    closed ── OPENS_AFTER failures in a row ─► open ── OPEN_S ─► on trial ── CLOSES_AFTER answers in a row ─► closed
                                                ▲─────────── one failure ───────┘

An endpoint that has failed since it last answered is asked by one request at a time. Else, of many under way to one that
hangs, each that times out would be followed by the next, and the micro-batch would wait for that one as well.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from delivery import errors
from delivery.model import EndpointId
from delivery.webhooks.policy import retry_decision

OPENS_AFTER = 5
TIMEOUT_COUNTS = 3
"""A timeout counts as so many failures: each keeps the micro-batch waiting for the whole time of an attempt."""
CLOSES_AFTER = 3
OPEN_S = 30.0
"""Long enough for the retry lane to have found out, and to have told all workers that it holds the endpoint back."""

FAILED = frozenset(
    {
        retry_decision.SERVER_ERROR,
        retry_decision.UNAVAILABLE,
        retry_decision.THROTTLED,
        retry_decision.GONE,
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
"""What says that the endpoint itself is ill."""
REFUSED = frozenset({retry_decision.REFUSED, retry_decision.REDIRECT})
"""A 3xx or another 4xx is about one event, or one setting."""
_NOT_ASKED = frozenset({errors.LocalFailure.error_class, retry_decision.CONFIGURATION})
"""The endpoint had no part in it. What is in neither set, a 2xx, 3xx or 4xx, is the answer of one that is alive."""


class Circuit:
    """The circuit of one endpoint in one worker. Made when it fails for the first time."""

    __slots__ = ("_answers", "_failures", "_is_on_trial", "_open_until")

    def __init__(self) -> None:
        self._failures = 0
        self._answers = 0
        self._is_on_trial = False
        self._open_until = float("-inf")

    def is_open(self, now: float) -> bool:
        """Return whether it is not to be asked."""
        return now < self._open_until

    @property
    def is_suspect(self) -> bool:
        """Whether one request at a time is enough."""
        return self._failures > 0 or self._is_on_trial

    def told(self, error_class: str | None, began_at: float, now: float) -> None:
        """Take what came of a request that began at `began_at`.

        1. It began before the circuit opened, or did not ask the endpoint: that says nothing new.
        2. It was answered: there are no failures in a row, and after enough of it in a row there is no trial any more.
        3. It failed: the circuit opens after enough of that in a row, on trial at once.
        """
        if began_at < self._open_until or error_class in _NOT_ASKED:
            return
        if error_class not in FAILED:
            self._failures = 0
            self._answers += 1
            self._is_on_trial = self._is_on_trial and self._answers < CLOSES_AFTER
            return
        self._answers = 0
        self._failures += TIMEOUT_COUNTS if error_class == errors.AttemptTimedOut.error_class else 1
        if self._is_on_trial or self._failures >= OPENS_AFTER:
            self._failures, self._is_on_trial = 0, True
            self._open_until = now + OPEN_S


Circuits = MutableMapping[EndpointId, Circuit]
"""Those of the endpoints that have failed of late. Kept over micro-batches."""


def is_open(circuits: Circuits, endpoint_id: EndpointId, now: float) -> bool:
    """Return whether the endpoint is not to be asked. It is asked for every delivery, and hardly any has a circuit."""
    return endpoint_id in circuits and circuits[endpoint_id].is_open(now)
