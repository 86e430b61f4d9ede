"""Decide what an attempt means and whether it is tried again within the lane.

Runs in the executors. Must not import pyspark or psycopg. Pure: values in, decisions out. The policy's arithmetic is
tenacity's; who waits is the dispatcher, because a coroutine that sleeps between attempts would keep a slot from others.
"""

from __future__ import annotations

import calendar
import email.utils
import random
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import tenacity

from delivery import errors
from delivery.model import NextAttempt, Retrying

REDIRECT = "redirect"
REFUSED = "refused"
GONE = "gone"
THROTTLED = "throttled"
UNAVAILABLE = "unavailable"
SERVER_ERROR = "server_error"
LANE_DEADLINE = "lane_deadline"
"""Its endpoint accepted nothing, or not enough, for a whole lane deadline."""
UNDER_WAY = "under_way"
"""Its endpoint has not answered yet, and nothing else was left to wait for: the attempt goes on, and this waits for its end."""
SLOW = "slow"
"""Its endpoint does not answer others that are under way, or did not a moment ago: nobody waits for it in this lane."""
RATE_LIMITED = "rate_limited"
"""Its endpoint's own rate kept it waiting for too long."""
CIRCUIT_OPEN = "circuit_open"
"""Its endpoint was failing, and is asked by the retry lane only until it answers again."""
ENDPOINT_PAUSED = "endpoint_paused"
ENDPOINT_DISABLED = "endpoint_disabled"
ENDPOINT_QUARANTINED = "endpoint_quarantined"
"""The endpoint's row is unusable, for example without a secret. The delivery waits until an operator mends the row."""
ORDERED = "ordered"
"""Its endpoint takes events in order: all of them go through the retry lane's state."""
REDRIVEN = "redriven"
"""It was a dead letter, and somebody asked for it again."""
REPLAYED = "replayed"
"""Somebody asked for it again, whatever had become of it."""
REGISTRY_BEHIND = "registry_behind"
"""The registry here is older than the one by which it came, and does not know yet whom it is for."""
MAX_BEHIND_S = 300.0
"""The longest wait for that at a time."""
NO_ROOM = "no_room"
"""The reason of a dead letter: as many deliveries wait for its endpoint as may."""
EXPIRED = "expired"
"""The reason of a dead letter that waited for as long as its endpoint's `max_age_s` allows."""
CONFIGURATION = "configuration"
"""The endpoint's own settings make no request (a refused URL or header)."""

_RETRIED_QUICKLY = frozenset(
    {
        SERVER_ERROR,
        UNAVAILABLE,
        errors.ConnectFailed.error_class,
        errors.ConnectionLost.error_class,
        errors.DnsFailed.error_class,
        errors.AddressBlocked.error_class,
        errors.LocalFailure.error_class,
    }
)
"""What often passes within a second. Not in it: a timeout, which has used the lane's time already; TLS, which does not change
in a second; and the statuses by which an endpoint says no. A blocked address does not change either, but is treated as a
name that does not resolve: the number of attempts would tell customers which names there are inside."""

_MENDED_BY_PEOPLE = frozenset({REFUSED, REDIRECT, CONFIGURATION, errors.TlsFailed.error_class})
"""What does not pass by itself in seconds: the first wait of a schedule is left out."""
JITTER = 0.2
"""Fraction by which each wait is spread, so that what failed together does not return together."""

MAX_RETRY_AFTER_S = 86_400.0
"""A longer `Retry-After` counts as this: an endpoint must not be able to put its deliveries off for years."""
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?(e[+-]?[0-9]+)?", re.IGNORECASE)
"""RFC 9110 knows whole seconds only. Some servers write 1.5, and to ignore that would be to come back too early."""


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


def retry_after_s(value: str, now: float, cap_s: float = MAX_RETRY_AFTER_S) -> float | None:
    """Return how long after `now` a `Retry-After` asks to wait, from 0 to `cap_s`; None when it cannot be read.

    RFC 9110, section 10.2.3: seconds, or a date in any of the three forms of section 5.6.7. What is past is no wait.
    """
    value = value.strip()
    if _NUMBER.fullmatch(value):
        wait_s = float(value)
    else:
        try:
            moment = email.utils.parsedate_tz(value)
            if moment is None:
                return None
            wait_s = calendar.timegm(moment[:6]) - (moment[9] or 0) - now
        except (ValueError, OverflowError):  # a year beyond 9999
            return None
    return min(max(wait_s, 0.0), cap_s)


def longest_retry_after_s(headers: Iterable[tuple[bytes, bytes]], now: float, cap_s: float = MAX_RETRY_AFTER_S) -> float | None:
    """Return the wait that a response asks for. There should be one such header; of several none is broken by the longest."""
    waits = [retry_after_s(value.decode("latin-1"), now, cap_s) for name, value in headers if name.lower() == b"retry-after"]
    return max((wait_s for wait_s in waits if wait_s is not None), default=None)


class _Rng(Protocol):
    def uniform(self, a: float, b: float, /) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class QuickRetry:
    """The policy of the retries within a lane."""

    max_attempts: int = 3
    first_wait_s: float = 0.2
    """Wait before the second attempt; doubles with each further one."""
    jitter: float = JITTER
    max_wait_s: float = 3.0
    """The longest wait there is time for within the lane: its deadline."""

    def wait_s(
        self, attempt_number: int, error_class: str, retry_after_s: float | None = None, rng: _Rng = random
    ) -> float | None:
        """Return the wait after the failed attempt `attempt_number` (1-based), or None when it was the last one.

        1. What seldom passes within a second is not tried again; what is throttled is, once the endpoint says when.
        2. A `retry_after_s` that the lane has no time for is not cut short: the delivery is not tried again here.
        3. The wait doubles with each attempt, spread to both sides, and never ends before `retry_after_s`.
        """
        is_retried = error_class in _RETRIED_QUICKLY or (error_class == THROTTLED and retry_after_s is not None)
        asked_s = retry_after_s or 0.0
        if not is_retried or asked_s > self.max_wait_s:
            return None
        state = tenacity.RetryCallState(retry_object=None, fn=None, args=(), kwargs={})  # type: ignore[arg-type]  # the strategies read the number only
        state.attempt_number = attempt_number
        if tenacity.stop_after_attempt(self.max_attempts)(state):
            return None
        wait_s: float = tenacity.wait_exponential(multiplier=self.first_wait_s)(state)
        return max(wait_s * rng.uniform(1 - self.jitter, 1 + self.jitter), asked_s * rng.uniform(1, 1 + self.jitter))


LOCAL_WAIT_S = 5.0
"""How long to wait after a fault of our own, or for an endpoint that has just said that it is gone."""


def again(
    retrying: Retrying,
    error_class: str,
    retries: int,
    *,
    now_ms: int,
    expires_ms: int,
    retry_after_s: float | None = None,
    rng: _Rng = random,
) -> NextAttempt | None:
    """Return when a delivery is attempted again in the retry lane, after an attempt that failed; None: it is given up.

    `retries` waits of the schedule are used up.

    1. A fault of ours, and an endpoint that is gone and will be disabled, use up nothing.
    2. What people have to mend begins with the second wait of the schedule.
    3. Otherwise the next wait, spread to both sides. When there is none left, it is given up.
    4. Never before `retry_after_s`, and never after `expires_ms`: then it is given up now.
    """
    if not retrying.schedule_s:
        return None
    if error_class in {errors.LocalFailure.error_class, GONE}:
        wait_s, used = LOCAL_WAIT_S, retries
    else:
        skipped = 1 if error_class in _MENDED_BY_PEOPLE and retries == 0 and len(retrying.schedule_s) > 1 else 0
        used = retries + skipped + 1
        if used > len(retrying.schedule_s):
            return None
        wait_s = retrying.schedule_s[used - 1]
    asked_s = retry_after_s or 0.0
    wait_s = max(wait_s * rng.uniform(1 - JITTER, 1 + JITTER), asked_s * rng.uniform(1, 1 + JITTER))
    at_ms = now_ms + round(wait_s * 1000)
    return NextAttempt(at_ms, used) if at_ms <= expires_ms else None
