"""Decide the next step of a delivery after an attempt in a fast lane: the direct, the batch or the real-time lane.

A quick retry is a retry within seconds, usually in the same lane. Pure, except for the jitter of a quick retry's wait.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from delivery.model import Attempt
from delivery.webhooks.policy import backoff


class NextStep(enum.Enum):
    """The step that the dispatcher takes with a delivery after an attempt."""

    DELIVERED = enum.auto()
    """The delivery ends: the endpoint accepted it."""
    QUICK_RETRY = enum.auto()
    """The task attempts the delivery again after `Settlement.wait_s`."""
    DEFERRED_QUICK_RETRY = enum.auto()
    """The delivery ends in the fast lane, and the retry lane attempts it again after `Settlement.wait_s`."""
    FAILED = enum.auto()
    """The delivery ends in the fast lane: deferred or dead-lettered, as `Deferrals.failed` decides."""


class Settlement(NamedTuple):
    """The next step of a delivery after an attempt, and whether the endpoint's waiting deliveries are deferred."""

    step: NextStep
    wait_s: float = 0.0
    """Seconds before the quick retry. 0 for other steps."""
    defers_waiting: bool = False
    """True: all waiting deliveries of the endpoint are deferred, because its circuit breaker is open."""


_DELIVERED = Settlement(NextStep.DELIVERED)


def settle(attempt: Attempt, quick_retry: backoff.QuickRetry, *, is_breaker_open: bool, is_in_background: bool) -> Settlement:
    """Return the next step of a delivery after `attempt`.

    1. Accepted: delivered.
    2. Failed, `quick_retry.wait_s` returns a wait, and the endpoint's circuit breaker is not open: quick retry. After a
       background attempt, the retry lane makes the quick retry, because the delivery's task may have ended.
    3. Otherwise the delivery has failed in this lane. If the breaker is open, the endpoint's waiting deliveries are deferred.
    """
    error_class = attempt.error_class
    if error_class is None:
        return _DELIVERED
    if is_breaker_open:
        return Settlement(NextStep.FAILED, defers_waiting=True)
    wait_s = quick_retry.wait_s(attempt.number, error_class, attempt.retry_after_s)
    if wait_s is None:
        return Settlement(NextStep.FAILED)
    return Settlement(NextStep.DEFERRED_QUICK_RETRY if is_in_background else NextStep.QUICK_RETRY, wait_s)
