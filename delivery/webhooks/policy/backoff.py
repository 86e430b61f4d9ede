"""Decide whether a failed attempt is repeated, and when. Pure, except for the random part of waits.

A fast lane (direct, batch, real-time) repeats an attempt within seconds: a quick retry. The retry lane repeats attempts by the
endpoint's schedule. Nothing waits in this module. A dispatcher (delivery.webhooks.dispatching.dispatch) waits for quick
retries, because a coroutine that sleeps between attempts would occupy a slot for a request. The retry lane keeps waiting
entries in its state.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from delivery import errors
from delivery.model import Attempt, NextAttempt
from delivery.registry_model import Retrying
from delivery.webhooks.policy import error_classes, retry_reasons

_RETRIED_QUICKLY = frozenset(
    {
        error_classes.SERVER_ERROR,
        error_classes.UNAVAILABLE,
        errors.ConnectFailed.error_class,
        errors.ConnectionLost.error_class,
        errors.DnsFailed.error_class,
        errors.AddressBlocked.error_class,
        errors.LocalFailure.error_class,
    }
)
"""Error classes that get a quick retry, because the failure often passes within a second. A throttled request is not in this
set: `QuickRetry.wait_s` decides about it, by its `Retry-After`. A timeout is left out, because it has used the lane's time. TLS
errors and refusals are left out, because they do not change in a second. A blocked address does not change either, but gets as
many attempts as a name that does not resolve. So the number of attempts does not tell customers which internal names exist."""

_MENDED_BY_PEOPLE = frozenset(
    {error_classes.REFUSED, error_classes.REDIRECT, retry_reasons.CONFIGURATION, errors.TlsFailed.error_class}
)
"""Error classes and reasons of failures that people have to repair. If no wait of the schedule is used up yet, such a failure
skips the first wait, unless the schedule has only one."""
JITTER = 0.2
"""Largest share by which a wait is shortened or lengthened at random. So deliveries that failed together do not return
together."""
LOCAL_WAIT_S = 5.0
"""Seconds of three waits in the retry lane:
1. The wait before the next attempt after a LocalFailure (a fault of the platform) or a 410 of the endpoint. After n
   LocalFailures in a row, the wait is n times as long, up to MAX_LOCAL_WAITS times.
2. The wait of an entry for which a worker has no memory.
3. The shortest wait for a newer registry. The longest is MAX_BEHIND_S."""
MAX_LOCAL_WAITS = 10
"""Most LocalFailures in a row that lengthen a wait."""
MAX_BEHIND_S = 300.0
"""Longest wait, in seconds, of a retry entry that needs a newer registry than the worker has, before the entry's next lease."""


class Rng(Protocol):
    def uniform(self, a: float, b: float, /) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class QuickRetry:
    """The policy of quick retries: retries within seconds of a failed attempt in the direct, batch or real-time lane."""

    max_attempts: int = 3
    """Maximum of attempts of a delivery in the lane, the first one included."""
    first_wait_s: float = 0.2
    """Seconds before the second attempt. The wait doubles with each further attempt."""
    jitter: float = JITTER
    """Share by which the wait is at most shortened or lengthened, at random."""
    max_retry_after_s: float = 3.0
    """Longest `Retry-After`, in seconds, for which the lane waits. The lane's own waits, which double, have no such limit."""

    def wait_s(
        self, attempt_number: int, error_class: str, retry_after_s: float | None = None, rng: Rng = random
    ) -> float | None:
        """Return the wait in seconds after the failed attempt `attempt_number` (from 1). None: no further attempt in this lane.

        1. The error class is not in _RETRIED_QUICKLY: None. A throttled request with a `retry_after_s` is the exception.
        2. `retry_after_s` is longer than `max_retry_after_s`: None.
        3. The attempt was the last of `max_attempts`: None.
        4. Otherwise the wait doubles with each attempt. It is lengthened or shortened at random, but never ends before
           `retry_after_s`.
        """
        is_retried = error_class in _RETRIED_QUICKLY or (error_class == error_classes.THROTTLED and retry_after_s is not None)
        asked_s = retry_after_s or 0.0
        if not is_retried or asked_s > self.max_retry_after_s or attempt_number >= self.max_attempts:
            return None
        wait_s = self.first_wait_s * 2.0 ** (attempt_number - 1)
        return max(wait_s * rng.uniform(1 - self.jitter, 1 + self.jitter), asked_s * rng.uniform(1, 1 + self.jitter))


def local_failures(attempts: Sequence[Attempt]) -> int:
    """Return how many of the last attempts in a row have the error class of LocalFailure.

    The result is at least 1, also if there is none, and at most MAX_LOCAL_WAITS.
    """
    local = errors.LocalFailure.error_class
    count = len([*itertools.takewhile(lambda attempt: attempt.error_class == local, reversed(attempts))])
    return min(max(count, 1), MAX_LOCAL_WAITS)


def next_attempt(
    retrying: Retrying,
    error_class: str,
    retries: int,
    *,
    now_ms: int,
    expires_ms: int,
    retry_after_s: float | None = None,
    repeated: int = 1,
    rng: Rng = random,
) -> NextAttempt | None:
    """Return the next attempt in the retry lane after a failed attempt. None: the delivery is given up.

    `retries` is the number of waits of the endpoint's schedule that the delivery has used up. `repeated` matters only after a
    LocalFailure: it is the number of LocalFailures in a row (`local_failures`).

    1. Without a schedule, the delivery is given up.
    2. After a LocalFailure the wait is `repeated` times LOCAL_WAIT_S. After a 410 the wait is LOCAL_WAIT_S. In this time the
       platform disables the endpoint, and the endpoint's deliveries wait until it is enabled. Neither uses up a wait of the
       schedule.
    3. People have to repair some failures (_MENDED_BY_PEOPLE). If no wait is used up yet, the second wait of the schedule
       holds, if there is one.
    4. Otherwise the next wait of the schedule holds. After the last wait the delivery is given up.
    5. Each wait is lengthened or shortened at random (JITTER), but never ends before `retry_after_s`. If the wait would end
       after `expires_ms`, the delivery is given up now.
    """
    if not retrying.schedule_s:
        return None
    if error_class == errors.LocalFailure.error_class:
        wait_s, used = LOCAL_WAIT_S * repeated, retries
    elif error_class == error_classes.GONE:
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
