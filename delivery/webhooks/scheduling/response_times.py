"""Estimate how long an endpoint takes to respond, so that a task can stop waiting soon after.

Pure. Source: RFC 6298, section 2, which estimates the retransmission timeout of TCP in the same way.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from delivery.model import EndpointId

MIN_RESPONSE_DEADLINE_S = 0.2
"""Shortest response deadline in seconds. A busy machine, a lost packet or a garbage collection delays any endpoint."""


class ResponseTime:
    """The mean of an endpoint's response times, weighted towards the latest, and their mean deviation from it."""

    __slots__ = ("_mean_s", "_spread_s")

    def __init__(self) -> None:
        self._mean_s = self._spread_s = 0.0

    def record(self, seconds: float) -> None:
        """Add a response time to the estimate."""
        if not self._mean_s:
            self._mean_s, self._spread_s = seconds, seconds / 2
            return
        self._spread_s += (abs(self._mean_s - seconds) - self._spread_s) / 4
        self._mean_s += (seconds - self._mean_s) / 8

    def exceeds(self, max_s: float) -> bool:
        """Return True if the mean is longer than `max_s`."""
        return self._mean_s > max_s

    def deadline_s(self, max_s: float) -> float:
        """Return the response deadline: seconds to wait for a response, from MIN_RESPONSE_DEADLINE_S to `max_s`.

        1. The endpoint has never responded: `max_s`.
        2. The mean exceeds `max_s`: the minimum, because a longer wait would be in vain.
        3. Otherwise: the mean plus four times the spread.
        """
        if not self._mean_s:
            return max_s
        usual_s = 0.0 if self.exceeds(max_s) else self._mean_s + 4 * self._spread_s
        return min(max(usual_s, MIN_RESPONSE_DEADLINE_S), max_s)


ResponseTimes = MutableMapping[EndpointId, ResponseTime]
"""The response times of the endpoints that a worker used recently. Kept across micro-batches."""
