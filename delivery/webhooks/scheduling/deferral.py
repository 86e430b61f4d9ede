"""Decide what a fast lane, direct or batch, hands over to the retry lane instead of delivering it or giving it up.

Runs in the executors, inside the worker's event loop. Must not import pyspark or psycopg. Pure but for the clocks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Protocol

from delivery.model import Attempt, Endpoint, EndpointId, EndpointStatus, NextAttempt, Outcome, OutcomeKind, Sent
from delivery.webhooks.policy import retry_decision
from delivery.webhooks.scheduling import background_attempts, circuit_breaker

Held = Mapping[EndpointId, str]
"""Endpoints that the driver holds back now, each with the reason (`policy.retry_decision`)."""
NOBODY_HELD: Held = {}  # never changed


class _Rng(Protocol):
    def uniform(self, a: float, b: float, /) -> float: ...


class Handover:
    """What holds for one micro-batch. `now_s` gives seconds since the epoch, `clock` is monotonic.

    `held` is what all lanes and workers have told the driver.
    """

    def __init__(
        self,
        held: Held,
        circuits: circuit_breaker.Circuits,
        under_way: background_attempts.Late,
        *,
        clock: Callable[[], float],
        now_s: Callable[[], float],
        rng: _Rng = random,
    ) -> None:
        self._held = held
        self._circuits = circuits
        self._late = under_way
        self._clock = clock
        self._now_s = now_s
        self._rng = rng

    def reason(self, endpoint: Endpoint) -> str | None:
        """Return why nothing for `endpoint` is attempted in this lane, or None when it is. Asked before a body is made.

        1. It is quarantined, paused or disabled: everything waits until it is not.
        2. It takes events in order, which only the retry lane's state can keep.
        3. It is failing, for all that this worker knows.
        4. So the driver has heard, or that it did not answer some worker.
        5. It has not answered what was sent to it in an earlier task, which is still under way.
        """
        if endpoint.fault:
            return retry_decision.ENDPOINT_QUARANTINED
        if endpoint.status is EndpointStatus.PAUSED:
            return retry_decision.ENDPOINT_PAUSED
        if endpoint.status is EndpointStatus.DISABLED:
            return retry_decision.ENDPOINT_DISABLED
        if endpoint.order_by is not None:
            return retry_decision.ORDERED
        if circuit_breaker.is_open(self._circuits, endpoint.endpoint_id, self._clock()):
            return retry_decision.CIRCUIT_OPEN
        if endpoint.endpoint_id in self._held:
            return self._held[endpoint.endpoint_id]
        return retry_decision.SLOW if self._late.is_silent(endpoint.endpoint_id) else None

    def unattempted(self, delivery: Sent, reason: str, attempts: tuple[Attempt, ...] = ()) -> Outcome[Sent]:
        """Return the outcome of what is not attempted, or not again. It uses up no wait, and needs none: see retry.again."""
        return Outcome(delivery, OutcomeKind.POSTPONED, attempts, reason, NextAttempt(self._now_ms(), 0))

    def under_way(self, delivery: Sent, attempts: tuple[Attempt, ...], name: bytes) -> Outcome[Sent]:
        """Return the outcome of what goes on alone. It is attempted again when nothing has been told of it by then."""
        again = NextAttempt(self._now_ms() + round(self._late.wait_s * 1000), 0)
        return Outcome(delivery, OutcomeKind.POSTPONED, attempts, retry_decision.UNDER_WAY, again, background_attempt=name)

    def soon(self, delivery: Sent, attempts: tuple[Attempt, ...], wait_s: float) -> Outcome[Sent]:
        """Return the outcome of what has failed, and has a quick retry left for which this lane has no time any more."""
        again = NextAttempt(self._now_ms() + round(wait_s * 1000), 0)
        return Outcome(delivery, OutcomeKind.POSTPONED, attempts, attempts[-1].error_class, again)

    def failed(self, delivery: Sent, attempts: tuple[Attempt, ...]) -> Outcome[Sent]:
        """Return the outcome of what has failed in this lane: postponed by its endpoint's schedule, or given up."""
        last, retrying, now_ms = attempts[-1], delivery.endpoint.retrying, self._now_ms()
        assert last.error_class is not None, "it has failed"  # noqa: S101
        expires_ms = now_ms + round(retrying.max_age_s * 1000)
        again = retry_decision.again(
            retrying,
            last.error_class,
            0,
            now_ms=now_ms,
            expires_ms=expires_ms,
            retry_after_s=last.retry_after_s,
            rng=self._rng,
        )
        kind = OutcomeKind.DEAD_LETTERED if again is None else OutcomeKind.POSTPONED
        return Outcome(delivery, kind, attempts, last.error_class, again)

    def _now_ms(self) -> int:
        return int(self._now_s() * 1000)
