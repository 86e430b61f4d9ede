"""Write the log lines `delivery.attempted` and `batch.attempted` for a sample of the attempts.

Runs in the executors. The attempts topic has every attempt; the log lines are for a person who examines one worker. Failures
outside the sample get lines too, at a bounded rate, so that a dead endpoint does not fill the disk. No line has a payload,
response, secret or URL.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

from delivery.model import Attempt, Delivery, Outcome
from delivery.webhooks.results.task_results import Results
from delivery.webhooks.sending.batch_payload import BatchOutcome

log = logging.getLogger(__name__)

EVENT = "delivery.attempted"
BATCH_EVENT = "batch.attempted"
FAILURES_PER_S = 10.0
"""Most log lines a second on average, and most at once, in one worker process, for failed attempts outside the sample."""


class AttemptLog:
    """Log a sample of one worker's attempts. Log other failed attempts too, on average at most FAILURES_PER_S a second.

    `sample` is the share of the attempts that are logged, 0 to 1. `clock` is monotonic, in seconds.
    """

    def __init__(self, sample: float, *, clock: Callable[[], float], rng: random.Random) -> None:
        self._sample = sample
        self._clock = clock
        self._rng = rng
        self._failures_left = FAILURES_PER_S
        self._refilled_at = clock()

    def write(self, results: Results) -> None:
        """Write one log line for each attempt in `results` that is in the sample, or is a failure within FAILURES_PER_S.

        The lines have level INFO. Nothing is written if the log level is above INFO.
        """
        if not log.isEnabledFor(logging.INFO):
            return
        for outcome in results.outcomes:
            for attempt in outcome.attempts:
                if self._is_written(attempt):
                    log.info(EVENT, extra=fields(outcome, attempt))
        for batch in results.batches:
            for attempt in batch.outcome.attempts:
                if self._is_written(attempt):
                    log.info(BATCH_EVENT, extra=batch_fields(batch, attempt))

    def _is_written(self, attempt: Attempt) -> bool:
        return self._is_sampled() or (attempt.error_class is not None and self._may_log_failure())

    def _is_sampled(self) -> bool:
        return self._sample > 0 and self._rng.random() < self._sample

    def _may_log_failure(self) -> bool:
        now = self._clock()
        self._failures_left = min(FAILURES_PER_S, self._failures_left + (now - self._refilled_at) * FAILURES_PER_S)
        self._refilled_at = now
        if self._failures_left < 1:
            return False
        self._failures_left -= 1
        return True


def fields(outcome: Outcome[Delivery], attempt: Attempt) -> dict[str, str | int | float | None]:
    """Return the fields of the log line for one attempt of a delivery. docs/operations.md lists the keys."""
    delivery = outcome.delivery
    record = delivery.event.record
    return {
        "webhook_id": delivery.webhook_id,
        "event_id": delivery.event.event_id,
        "event_type": delivery.event.event_type,
        "tenant_id": delivery.event.tenant_id,
        "customer_id": delivery.endpoint.customer_id,
        "endpoint_id": delivery.endpoint.endpoint_id,
        "subscription_id": delivery.subscription.subscription_id,
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "attempt": attempt.number,
        "status": attempt.status,
        "error_class": attempt.error_class,
        "detail": attempt.detail,
        "duration_ms": round(attempt.duration_ms, 1),
        "latency_ms": round(attempt.started_at_ms + attempt.duration_ms - record.appended_at_ms, 1),
        "outcome": outcome.kind.value,
    }


def batch_fields(batch: BatchOutcome, attempt: Attempt) -> dict[str, str | int | float | None]:
    """Return the fields of the log line for one attempt of a batch. docs/operations.md lists the keys."""
    outcome = batch.outcome
    delivery = outcome.delivery
    return {
        "webhook_id": delivery.webhook_id,
        "customer_id": delivery.endpoint.customer_id,
        "endpoint_id": delivery.endpoint.endpoint_id,
        "events": len(delivery.events),
        "left_by": delivery.left_by.value,
        "attempt": attempt.number,
        "status": attempt.status,
        "error_class": attempt.error_class,
        "detail": attempt.detail,
        "duration_ms": round(attempt.duration_ms, 1),
        "outcome": outcome.kind.value,
        "rejected": len(batch.rejected),
    }
