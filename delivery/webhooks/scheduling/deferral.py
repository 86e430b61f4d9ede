"""Decide which deliveries a fast lane (direct, batch or real-time) defers to the retry lane.

No I/O. Clocks and random numbers are passed in.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from delivery.model import Attempt, NextAttempt, Outcome, OutcomeKind, Sent
from delivery.registry_model import Endpoint, EndpointId, EndpointStatus
from delivery.webhooks.policy import backoff, retry_reasons
from delivery.webhooks.scheduling import background_attempts, circuit_breaker


class Deferrals:
    """Decide which deliveries of one task are deferred to the retry lane, and make the outcomes of these deliveries.

    `suppressed` has the endpoints that the driver suppresses (`unhealthy.Unhealthy`). `breakers` and `background` belong to
    this worker. `clock` is monotonic, in seconds. `now_s` returns seconds since the epoch.
    """

    def __init__(
        self,
        suppressed: Mapping[EndpointId, str],
        breakers: circuit_breaker.CircuitBreakers,
        background: background_attempts.BackgroundAttempts,
        *,
        clock: Callable[[], float],
        now_s: Callable[[], float],
        rng: backoff.Rng = random,
    ) -> None:
        self._suppressed = suppressed
        self._breakers = breakers
        self._background = background
        self._clock = clock
        self._now_s = now_s
        self._rng = rng

    def reason_for(self, endpoint: Endpoint) -> str | None:
        """Return why this lane sends nothing to `endpoint` now; None if it may send. Called before a request body is built.

        1. The endpoint is quarantined, paused or disabled: its deliveries wait until the endpoint is repaired or active again.
        2. The endpoint takes events in order, and only the retry lane's state can keep this order.
        3. The endpoint fails in this worker: its circuit breaker is open.
        4. The driver suppresses the endpoint, because it fails, or was unresponsive, in any lane or worker.
        5. A background attempt to the endpoint is in flight, and the endpoint sent no response at all between the attempt's
           start and its move to the background.
        """
        if endpoint.fault:
            return retry_reasons.ENDPOINT_QUARANTINED
        if endpoint.status is EndpointStatus.PAUSED:
            return retry_reasons.ENDPOINT_PAUSED
        if endpoint.status is EndpointStatus.DISABLED:
            return retry_reasons.ENDPOINT_DISABLED
        if endpoint.order_by is not None:
            return retry_reasons.ORDERED
        if circuit_breaker.is_open(self._breakers, endpoint.endpoint_id, self._clock()):
            return retry_reasons.CIRCUIT_OPEN
        if endpoint.endpoint_id in self._suppressed:
            return self._suppressed[endpoint.endpoint_id]
        return retry_reasons.SLOW if self._background.is_unresponsive(endpoint.endpoint_id) else None

    def deferred_now(self, delivery: Sent, reason: str, attempts: tuple[Attempt, ...] = ()) -> Outcome[Sent]:
        """Return the outcome of a delivery that this lane passes to the retry lane without a further attempt of its own.

        The retry lane may attempt the delivery at once. No wait of the endpoint's retry schedule is used up.
        """
        return Outcome(delivery, OutcomeKind.POSTPONED, attempts, reason, NextAttempt(self._now_ms(), 0))

    def in_background(self, delivery: Sent, attempts: tuple[Attempt, ...], name: bytes) -> Outcome[Sent]:
        """Return the outcome of a delivery whose attempt moves to the background.

        `name` is the attempt's name, by which its result finds the retry entry. The retry lane attempts the delivery again if
        no result is reported within `BackgroundAttempts.wait_s`.
        """
        again = NextAttempt(self._now_ms() + round(self._background.wait_s * 1000), 0)
        return Outcome(delivery, OutcomeKind.POSTPONED, attempts, retry_reasons.UNDER_WAY, again, background_attempt=name)

    def quick_retry(self, delivery: Sent, attempts: tuple[Attempt, ...], wait_s: float) -> Outcome[Sent]:
        """Return the outcome of a failed delivery that has a quick retry left, which the retry lane makes after `wait_s`.

        No wait of the endpoint's retry schedule is used up.
        """
        again = NextAttempt(self._now_ms() + round(wait_s * 1000), 0)
        return Outcome(delivery, OutcomeKind.POSTPONED, attempts, attempts[-1].error_class, again)

    def failed(self, delivery: Sent, attempts: tuple[Attempt, ...]) -> Outcome[Sent]:
        """Return the outcome of a failed delivery: deferred until the time of `backoff.next_attempt`, or dead-lettered.

        The delivery is dead-lettered if the endpoint has no schedule, or if that time is later than `max_age_s` from now. The
        last of `attempts` must have failed.
        """
        last, retrying, now_ms = attempts[-1], delivery.endpoint.retrying, self._now_ms()
        assert last.error_class is not None, "it has failed"  # noqa: S101
        expires_ms = now_ms + round(retrying.max_age_s * 1000)
        again = backoff.next_attempt(
            retrying,
            last.error_class,
            0,
            now_ms=now_ms,
            expires_ms=expires_ms,
            retry_after_s=last.retry_after_s,
            repeated=backoff.local_failures(attempts),
            rng=self._rng,
        )
        kind = OutcomeKind.DEAD_LETTERED if again is None else OutcomeKind.POSTPONED
        return Outcome(delivery, kind, attempts, last.error_class, again)

    def _now_ms(self) -> int:
        return int(self._now_s() * 1000)
