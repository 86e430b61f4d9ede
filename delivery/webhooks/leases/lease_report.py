"""Collect the results of one lease, and build its report. Pure.

A lease is a set of retry entries that a shard, one key of the lane's state in Spark, gives to a worker. The report tells the
shard which entries have ended and which wait again. Accepted deliveries may be written before the report. If the micro-batch
then runs again, it finds the accepted deliveries in the result topics, and does not repeat them. All other results are written
together with the report.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from delivery.model import Attempt, NextAttempt, Outcome, OutcomeKind, Record, SkipReason
from delivery.webhooks.leases import lease_delivery
from delivery.webhooks.leases.lease_triage import Disposition
from delivery.webhooks.policy import error_classes
from delivery.webhooks.results.task_results import Results
from delivery.webhooks.retries import retry_messages
from delivery.webhooks.routing import intake, registries, revalidation
from delivery.webhooks.sending import batch_payload
from delivery.webhooks.sending.batch_payload import BatchDelivery

NO_TOPIC = "(retry lane)"
"""Topic in the rejected record of an unreadable event, whose own topic is unknown. Kafka allows no topic of this name."""


class LeaseReport:
    """Collect the results of one lease's entries, and build the report that the lease's shard reads."""

    __slots__ = (
        "_accepted",
        "_delivered",
        "_destination",
        "_failed",
        "_is_throttled",
        "_lease",
        "_poison",
        "_refused",
        "_requeued",
        "_retry_after_s",
        "pause_reason",
        "results",
    )

    def __init__(self, lease: retry_messages.Lease, destination: registries.Destination) -> None:
        self._lease = lease
        self._destination = destination
        self.results = Results()
        """Results that are written with the report."""
        self.pause_reason: str | None = None
        """The reason why all entries are requeued without an attempt, such as `endpoint_paused`. None: each entry has its own
        decision."""
        self._accepted = Results()
        self._requeued: list[retry_messages.Requeue] = []
        self._delivered = self._failed = self._poison = self._refused = 0  # numbers of entries; `_failed` includes `_poison`
        self._retry_after_s: float | None = None
        self._is_throttled = False

    @property
    def has_accepted(self) -> bool:
        """Return True if `move_accepted` has something to move."""
        return bool(self._accepted.outcomes or self._accepted.batches)

    def move_accepted(self, into: Results) -> None:
        """Move to `into` the accepted deliveries and batches that no earlier call has moved.

        An accepted batch is not moved if the response rejected some of its events. This batch leaves with the report, in
        `results`.
        """
        into.outcomes += self._accepted.outcomes
        into.batches += self._accepted.batches
        self._accepted.outcomes.clear()
        self._accepted.batches.clear()

    def requeue(
        self, place: int, next_attempt: NextAttempt, reason: str | None = None, attempts: tuple[Attempt, ...] = ()
    ) -> None:
        """Add the lease's entry at index `place` to the requeued entries.

        Without a `reason`, the entry keeps its earlier reason. `attempts` are the entry's attempts in this lease. The report
        keeps them with shortened responses.
        """
        kept = tuple(map(retry_messages.shortened, attempts))
        self._requeued.append(retry_messages.Requeue(place, next_attempt, reason or self._lease.entries[place].reason, kept))

    def count_failure(self, disposition: Disposition, attempt: Attempt) -> None:
        """Count a failed attempt as unhealthy, poison or refused, as `disposition` says.

        Keep the longest `Retry-After` of the lease's responses, and whether one of them was a 429.
        """
        self._failed += disposition.is_unhealthy
        self._poison += disposition.is_poison
        self._refused += disposition.is_refusal
        self._is_throttled |= attempt.error_class == error_classes.THROTTLED
        if attempt.retry_after_s is not None:
            self._retry_after_s = max(attempt.retry_after_s, self._retry_after_s or 0.0)

    def count_accepted(self) -> None:
        """Count an entry that the endpoint accepted."""
        self._delivered += 1

    def unattempted(self, entry: retry_messages.RetryEntry, places: Sequence[int], reason: SkipReason | None) -> Outcome[Any]:
        """Return the outcome of the events at indexes `places` of an entry, which end without an attempt. Record nothing.

        1. `reason` is a SkipReason: the events are skipped for it.
        2. `reason` is None: the events are dead letters, for the reason for which the lease is given up.

        Raise msgspec.MsgspecError or UnicodeDecodeError if an event is unreadable.
        """
        delivery = lease_delivery.without_body(self._lease, entry, places, self._destination)
        if reason is not None:
            return Outcome(delivery, OutcomeKind.SKIPPED, reason=reason)
        return Outcome(delivery, OutcomeKind.DEAD_LETTERED, reason=self._lease.given_up, earlier=entry.history)

    def quarantine(self, entry: retry_messages.RetryEntry, places: Sequence[int], fault: Exception) -> None:
        """Record the events at `places` of an unreadable entry for the rejected topic. These events have no dead letter."""
        for place in places:
            detail = (
                f"the retry entry cannot be read ({type(fault).__name__}): it waited for endpoint {self._lease.endpoint_id} of "
                f"customer {self._lease.customer_id}, by subscription {revalidation.subscription_ids(entry, [place])[0]}, and "
                f"was given up ({self._lease.given_up}). This record has the only copy of the event. Send the traceback in the "
                "worker's log to the maintainers of the platform"
            )
            record = Record(NO_TOPIC, -1, -1, entry.since_ms, entry.packed[place])
            self.results.rejections.append(
                intake.Rejection(record=record, reason=intake.UNREADABLE, detail=detail, is_only_copy=True)
            )

    def record_all(self, entry: retry_messages.RetryEntry, outcomes: Iterable[Outcome[Any]]) -> None:
        """Record outcomes of an entry in this lease."""
        for outcome in outcomes:
            self.record(entry, outcome)

    def record(self, entry: retry_messages.RetryEntry, outcome: Outcome[Any]) -> None:
        """Record the outcome of an entry in this lease, without the request body.

        The outcome gets the id of the replay that asked for the entry, or None if no replay asked for the entry.
        """
        outcome = outcome._replace(replay=entry.replay)
        is_accepted = outcome.kind is OutcomeKind.DELIVERED
        if isinstance(outcome.delivery, BatchDelivery):
            batch = batch_payload.batch_outcome(outcome)
            into = self._accepted if is_accepted and not batch.rejected else self.results
            into.batches.append(batch)
        else:
            into = self._accepted if is_accepted else self.results
            into.outcomes.append(outcome._replace(delivery=outcome.delivery._replace(body=b"")))

    def build(self, now_ms: int) -> retry_messages.Report:
        """Return the report of the lease."""
        lease = self._lease
        return retry_messages.Report(
            endpoint_id=lease.endpoint_id,
            customer_id=lease.customer_id,
            order_key=lease.order_key,
            lease=lease.number,
            delivered=self._delivered,
            failed=self._failed,
            refused=self._refused,
            blocked=self.pause_reason,
            retry_after_s=self._retry_after_s,
            requeued=sorted(self._requeued, key=lambda requeue: requeue.place),
            entries=len(lease.entries),
            at_ms=now_ms,
            is_throttled=self._is_throttled,
            poison=self._poison,
        )
