"""Decide the answer of a receiver in a load test: at once, after some seconds, or with an error. Pure.

Runs in the receiver's process and in the scenario's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

_STEP, _FIRST = 7, 50
"""They spread the slow and the failing endpoints over direct and batch mode, and keep endpoint 0, the busiest, healthy."""


class Answer(NamedTuple):
    """One response of a receiver."""

    after_s: float
    is_accepted: bool
    """Whether the status is 200; otherwise it is 503."""


AT_ONCE = Answer(0.0, is_accepted=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """Which endpoints are slow and which fail, while the receiver is disturbed."""

    slow_of_100: int = 0
    failing_of_100: int = 0
    slow_s: tuple[float, float] = (1.0, 10.0)
    """Shortest and longest response time of slow endpoints, seconds. Each endpoint keeps its own."""

    def is_healthy(self, endpoint: int) -> bool:
        """Return True if the endpoint answers at once and accepts, also while the receiver is disturbed."""
        return _rank(endpoint) >= self.slow_of_100 + self.failing_of_100

    def answer(self, endpoint: int) -> Answer:
        """Return how the endpoint answers while the receiver is disturbed."""
        rank = _rank(endpoint)
        if rank < self.slow_of_100:
            shortest, longest = self.slow_s
            return Answer(shortest + (longest - shortest) * (endpoint * 37 % 101) / 100, is_accepted=True)
        if rank < self.slow_of_100 + self.failing_of_100:
            return Answer(0.0, is_accepted=False)
        return AT_ONCE


HEALTHY = Behaviour()


def _rank(endpoint: int) -> int:
    """Return a number below 100; of 100 endpoints in a row, each has another one."""
    return (_STEP * endpoint + _FIRST) % 100
