"""Estimate the time in which an endpoint responds, so that a task does not wait much longer for its response.

Pure. Source: RFC 6298, section 2, which estimates the retransmission timeout of TCP in the same way.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from delivery.registry_model import EndpointId

MIN_RESPONSE_DEADLINE_S = 0.2
"""Shortest response deadline in seconds. A busy machine, a lost packet or a garbage collection delays any endpoint."""
MIN_FIRST_RESPONSE_DEADLINE_S = 0.1
"""Shortest response deadline of an endpoint that has never responded, in seconds. Shorter than MIN_RESPONSE_DEADLINE_S: with
thousands of endpoints, nearly each micro-batch has an endpoint that is new to the worker, and a few new endpoints are slow."""
MAX_FIRST_RESPONSE_DEADLINE_S = 0.5
"""Longest first response time, in seconds, that counts in FirstResponses. A longer one counts as this time."""


class _Estimate:
    """The mean of response times, weighted towards the latest, and the mean deviation from this mean."""

    __slots__ = ("_mean_s", "_spread_s")
    MEAN_WEIGHT = 1 / 8
    """Weight of the latest response time in the mean."""
    SPREAD_WEIGHT = 1 / 4
    """Weight of the latest response time's deviation in the mean deviation."""
    MIN_DEADLINE_S = MIN_RESPONSE_DEADLINE_S

    def __init__(self) -> None:
        self._mean_s = self._spread_s = 0.0

    def record(self, seconds: float) -> None:
        """Add a response time to the estimate."""
        if not self._mean_s:
            self._mean_s, self._spread_s = seconds, seconds / 2
            return
        self._spread_s += (abs(self._mean_s - seconds) - self._spread_s) * self.SPREAD_WEIGHT
        self._mean_s += (seconds - self._mean_s) * self.MEAN_WEIGHT

    def deadline_s(self, max_s: float) -> float:
        """Return the mean plus four times the spread, from MIN_DEADLINE_S to `max_s`. Without a response: `max_s`."""
        if not self._mean_s:
            return max_s
        return min(max(self._mean_s + 4 * self._spread_s, self.MIN_DEADLINE_S), max_s)


class FirstResponses(_Estimate):
    """The first response times of all endpoints of a worker: how long to wait for an endpoint that has never responded.

    A first response includes the look-up of the name and the opening of the connection. A first response after the deadline
    counts as a response at the deadline: a few slow endpoints hardly change the estimate, and many raise it step by step.
    """

    __slots__ = ()
    MEAN_WEIGHT = 1 / 64
    SPREAD_WEIGHT = 1 / 32
    MIN_DEADLINE_S = MIN_FIRST_RESPONSE_DEADLINE_S

    def record(self, seconds: float) -> None:
        """Add the first response time of an endpoint."""
        super().record(min(seconds, self.deadline_s(MAX_FIRST_RESPONSE_DEADLINE_S)))


class ResponseTime(_Estimate):
    """The response time of one endpoint."""

    __slots__ = ("_first_responses",)

    def __init__(self, first_responses: FirstResponses) -> None:
        super().__init__()
        self._first_responses = first_responses

    def record(self, seconds: float) -> None:
        """Add a response time of the endpoint. Its first response time is also added to the worker's FirstResponses."""
        if not self._mean_s:
            self._first_responses.record(seconds)
        super().record(seconds)

    def exceeds(self, max_s: float) -> bool:
        """Return True if the mean is longer than `max_s`."""
        return self._mean_s > max_s

    def deadline_s(self, max_s: float) -> float:
        """Return the response deadline: seconds to wait for a response, at most `max_s`.

        1. The endpoint has never responded: the deadline of the worker's FirstResponses.
        2. The mean exceeds `max_s`: 0, because any wait would be in vain.
        3. Otherwise: the mean plus four times the spread, at least MIN_RESPONSE_DEADLINE_S.
        """
        if not self._mean_s:
            return self._first_responses.deadline_s(max_s)
        return 0.0 if self.exceeds(max_s) else super().deadline_s(max_s)


ResponseTimes = MutableMapping[EndpointId, ResponseTime]
"""The response times of the endpoints that a worker used recently. Kept across micro-batches."""
