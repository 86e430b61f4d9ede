"""Decide what an attempt means and whether it is tried again within the lane.

Runs in the executors. Must not import pyspark or psycopg. Pure: values in, decisions out. The policy's arithmetic is
tenacity's; who waits is the dispatcher, because a coroutine that sleeps between attempts would keep a slot from others.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Protocol

import tenacity

from delivery import errors

REDIRECT = "redirect"
REFUSED = "refused"
GONE = "gone"
THROTTLED = "throttled"
UNAVAILABLE = "unavailable"
SERVER_ERROR = "server_error"
LANE_DEADLINE = "lane_deadline"
"""The reason of a dead letter whose endpoint accepted nothing for a whole lane deadline."""
CONFIGURATION = "configuration"
"""The endpoint's own settings make no request (a refused URL or header)."""

_RETRIED_QUICKLY = frozenset(
    {
        SERVER_ERROR,
        UNAVAILABLE,
        errors.ConnectFailed.error_class,
        errors.ConnectionLost.error_class,
        errors.DnsFailed.error_class,
        errors.LocalFailure.error_class,
    }
)
"""What often passes within a second. Not in it: a timeout, which has used the lane's time already; TLS and blocked addresses,
which do not change in a second; and the statuses by which an endpoint says no."""


def error_class_of(status: int) -> str | None:
    """Return what a response's status means, None for success. Standard Webhooks 1.0: success is 2xx and nothing else.

    1. 2xx: delivered.                     4. 429: throttled.
    2. 3xx: failed, and never followed.    5. other 4xx: refused.
    3. 410: gone.                          6. 502, 503, 504: unavailable; other 5xx: server_error.
    7. anything else is not a final HTTP status.
    """
    if 200 <= status < 300:
        return None
    if 300 <= status < 400:
        return REDIRECT
    if status == 410:
        return GONE
    if status == 429:
        return THROTTLED
    if 400 <= status < 500:
        return REFUSED
    if status in {502, 503, 504}:
        return UNAVAILABLE
    return SERVER_ERROR if 500 <= status < 600 else errors.ResponseInvalid.error_class


class _Rng(Protocol):
    def uniform(self, a: float, b: float, /) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class QuickRetry:
    """The policy of the retries within a lane."""

    max_attempts: int = 3
    first_wait_s: float = 0.2
    """Wait before the second attempt; doubles with each further one."""
    jitter: float = 0.2
    """Fraction by which each wait is spread, so that what failed together does not return together."""

    def wait_s(self, attempt_number: int, error_class: str, rng: _Rng = random) -> float | None:
        """Return the wait after the failed attempt `attempt_number` (1-based), or None when it was the last one."""
        if error_class not in _RETRIED_QUICKLY:
            return None
        state = tenacity.RetryCallState(retry_object=None, fn=None, args=(), kwargs={})  # type: ignore[arg-type]  # the strategies read the number only
        state.attempt_number = attempt_number
        if tenacity.stop_after_attempt(self.max_attempts)(state):
            return None
        wait_s: float = tenacity.wait_exponential(multiplier=self.first_wait_s)(state)
        return wait_s * rng.uniform(1 - self.jitter, 1 + self.jitter)
