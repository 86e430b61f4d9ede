"""Estimate how long an endpoint takes to answer, so that nobody waits for it much longer.

Runs in the executors. Must not import pyspark or psycopg. Pure: measured times in, a time out.
Source: RFC 6298, section 2, which estimates in the same way after how long an acknowledgement is overdue.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from delivery.model import EndpointId

MIN_PATIENCE_S = 0.2
"""Anybody may take so long: a busy machine, a lost packet, a collection of garbage."""


class AnswerTime:
    """The mean of an endpoint's times, the later ones counting more, and how far they lie from it."""

    __slots__ = ("_mean_s", "_spread_s")

    def __init__(self) -> None:
        self._mean_s = self._spread_s = 0.0

    def took(self, seconds: float) -> None:
        """Take the time of an answer."""
        if not self._mean_s:
            self._mean_s, self._spread_s = seconds, seconds / 2
            return
        self._spread_s += (abs(self._mean_s - seconds) - self._spread_s) / 4
        self._mean_s += (seconds - self._mean_s) / 8

    def is_beyond(self, most_s: float) -> bool:
        """Tell whether they are known to take longer than that."""
        return self._mean_s > most_s

    def patience_s(self, most_s: float) -> float:
        """Return how long an answer is worth waiting for.

        1. There was none yet: `most_s`.
        2. They take longer than that: no longer than for anybody, since it would be for nothing.
        3. Otherwise four times the spread above the mean.
        """
        if not self._mean_s:
            return most_s
        usual_s = 0.0 if self.is_beyond(most_s) else self._mean_s + 4 * self._spread_s
        return min(max(usual_s, MIN_PATIENCE_S), most_s)


AnswerTimes = MutableMapping[EndpointId, AnswerTime]
"""Those of the endpoints that a worker has asked of late. Kept over micro-batches."""
