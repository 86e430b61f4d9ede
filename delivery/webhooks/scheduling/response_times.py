"""Estimate the time in which an endpoint responds, so that a task does not wait much longer for its response.

Pure. Source: RFC 6298, section 2, which estimates the retransmission timeout of TCP in the same way.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from delivery.registry_model import EndpointId
from delivery.webhooks.scheduling import endpoint_clock

MIN_MARGIN_S = endpoint_clock.BEAT_S + 2 * endpoint_clock.STALL_S
"""Least seconds from the mean response time to the response deadline, unless the maximum of the deadline comes earlier. A
smaller value would be wrong: the endpoint clock is no more exact than this when the worker lacks CPU (the granularity G of RFC
6298). The event loop may stall when a request is sent, and again when the response is read. A larger value would cost time:
with thousands of endpoints, at least one becomes slow in nearly each micro-batch, and the micro-batch then waits about this
long for its response."""
LATE_MARGIN_S = 0.02
"""Seconds from the mean response time to the response deadline of an endpoint that some worker has reported as late. A healthy
endpoint responds within this time, so that its other events do not go to the retry lane because it was late once."""
MAX_FIRST_RESPONSE_DEADLINE_S = 0.5
"""Longest first response time, in seconds, that FirstResponses adds to its estimate. A longer time counts as this time, or as
the present estimate of the deadline if that is shorter."""


class _Estimate:
    """The mean of response times, weighted towards the latest, and their spread: the mean deviation from this mean."""

    __slots__ = ("_mean_s", "_spread_s")
    MEAN_WEIGHT = 1 / 8
    """Weight of the latest response time in the mean."""
    SPREAD_WEIGHT = 1 / 4
    """Weight of the latest response time's deviation in the spread."""

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
        """Return the mean plus four times the spread, or plus MIN_MARGIN_S if that is longer; at most `max_s`.

        Before the first response time is recorded, return `max_s`.
        """
        if not self._mean_s:
            return max_s
        return min(self._mean_s + max(4 * self._spread_s, MIN_MARGIN_S), max_s)


class FirstResponses(_Estimate):
    """Estimate the response deadline of endpoints that have never responded, from the first responses of a worker's endpoints.

    A first response includes the DNS look-up and the opening of the connection. A first response time above the present
    deadline counts as that deadline, at most MAX_FIRST_RESPONSE_DEADLINE_S. So a few slow endpoints hardly change the estimate,
    and many raise it step by step.
    """

    __slots__ = ()
    MEAN_WEIGHT = 1 / 64
    SPREAD_WEIGHT = 1 / 32

    def record(self, seconds: float) -> None:
        """Add the time of an endpoint's first response ever. A time above the present deadline counts as that deadline."""
        super().record(min(seconds, self.deadline_s(MAX_FIRST_RESPONSE_DEADLINE_S)))


class ResponseTime(_Estimate):
    """Estimate the response time of one endpoint, and the endpoint's response deadline."""

    __slots__ = ("_first_responses", "_last_s", "is_late", "no_response_since")

    def __init__(self, first_responses: FirstResponses) -> None:
        super().__init__()
        self._first_responses = first_responses
        self._last_s = 0.0
        self.no_response_since: float | None = None
        """When the endpoint's present silence began: the start of an attempt that got no response within the deadline. None:
        there is no such attempt, or the silence was reported already. A response ends the silence. A failure other than a
        timeout ends it too."""
        self.is_late = False
        """True if the endpoint was late to respond to some worker, and has not responded to this one in its usual time since.
        The usual time is the mean plus MIN_MARGIN_S."""

    def record(self, seconds: float) -> None:
        """Add a response time of the endpoint, and set `no_response_since` to None.

        The endpoint's first response time is also added to the worker's FirstResponses.
        """
        if seconds <= self._mean_s + MIN_MARGIN_S:
            self.is_late = False
        if not self._mean_s:
            self._first_responses.record(seconds)
        super().record(seconds)
        self._last_s = seconds
        self.no_response_since = None

    def exceeds(self, max_s: float) -> bool:
        """Return True if the mean or the last response time is longer than `max_s`."""
        return self._mean_s > max_s or self._last_s > max_s

    def deadline_s(self, max_s: float) -> float:
        """Return the response deadline: seconds to wait for a response, at most `max_s`.

        1. The mean exceeds `max_s`: 0, because any wait would be in vain.
        2. `is_late`: the mean plus LATE_MARGIN_S, because another task has waited already. If the last response time exceeds
           `max_s`, or there is none: LATE_MARGIN_S.
        3. The endpoint has never responded: the deadline of the worker's FirstResponses.
        4. Only the last response time exceeds `max_s`: MIN_MARGIN_S. By case 5 the task would wait all of `max_s`: one response
           of 2 s raises the spread of a fast endpoint by 0.5 s, and so the deadline by 2 s.
        5. Otherwise: the mean plus four times the spread, or plus MIN_MARGIN_S if that is longer.
        """
        if self._mean_s > max_s:
            return 0.0
        if self.is_late:
            usual_s = 0.0 if self._last_s > max_s else self._mean_s
            return min(usual_s + LATE_MARGIN_S, max_s)
        if not self._mean_s:
            return self._first_responses.deadline_s(max_s)
        return min(MIN_MARGIN_S, max_s) if self._last_s > max_s else super().deadline_s(max_s)


ResponseTimes = MutableMapping[EndpointId, ResponseTime]
"""The response times of the endpoints that a worker used recently. Kept across micro-batches."""
