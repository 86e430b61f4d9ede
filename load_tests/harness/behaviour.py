"""Decide how an endpoint of the load tests' receiver answers: at once, after some seconds, or with an error. Pure.

A scenario disturbs the receiver for some time. Meanwhile some endpoints are slow or fail, and all others answer at once. The
functions run in the receiver's process and in the scenario's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

_STEP, _FIRST = 7, 50
"""Factor and offset of the rank of an endpoint (`_rank`).

The values spread slow and failing endpoints over direct and batch mode. They keep endpoint 0, the busiest, healthy.
"""


class Answer(NamedTuple):
    """One response of a receiver."""

    after_s: float
    """Seconds from the request to the response."""
    is_accepted: bool
    """True: the status is 200. False: 503."""


AT_ONCE = Answer(0.0, is_accepted=True)
"""The answer of a healthy endpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """The slow and the failing endpoints, while the receiver is disturbed."""

    slow_of_100: int = 0
    """Number of slow endpoints among 100 with consecutive numbers."""
    failing_of_100: int = 0
    """Number of endpoints that answer 503 among 100 with consecutive numbers."""
    slow_s: tuple[float, float] = (1.0, 10.0)
    """Shortest and longest response time of slow endpoints, seconds. A slow endpoint always has the same response time."""

    def is_healthy(self, endpoint: int) -> bool:
        """Return True if the endpoint answers at once and accepts, also while the receiver is disturbed."""
        return _rank(endpoint) >= self.slow_of_100 + self.failing_of_100

    def answer(self, endpoint: int) -> Answer:
        """Return the answer of the endpoint while the receiver is disturbed."""
        rank = _rank(endpoint)
        if rank < self.slow_of_100:
            shortest, longest = self.slow_s
            return Answer(shortest + (longest - shortest) * (endpoint * 37 % 101) / 100, is_accepted=True)
        if rank < self.slow_of_100 + self.failing_of_100:
            return Answer(0.0, is_accepted=False)
        return AT_ONCE


HEALTHY = Behaviour()
"""No endpoint is slow or fails, also while the receiver is disturbed."""


def _rank(endpoint: int) -> int:
    """Return the rank of an endpoint, 0 to 99. 100 consecutive endpoints have different ranks.

    The lowest ranks are slow, and the next ranks fail.
    """
    return (_STEP * endpoint + _FIRST) % 100
