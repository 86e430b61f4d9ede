"""Decide what happens to each entry of a lease, and build the lease's report.

Pure: the registry's destination, responses and `now_ms` are passed in. delivery.webhooks.lanes.retry_lane decides when the
waiting entries are attempted.

    begin ─┬─► skipped or given up: ended
           ├─► endpoint paused: requeued
           └─► waiting ─► prepare ─► record_attempt ─┬─► ended
                     │                               └─► requeued, by its schedule
                     └─► no time left: requeued
"""

from __future__ import annotations

import collections
import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from delivery import errors
from delivery.model import (
    Attempt,
    Delivery,
    DeliveryMode,
    Endpoint,
    EndpointStatus,
    NextAttempt,
    Outcome,
    OutcomeKind,
    Record,
    Revision,
    Scope,
    SkipReason,
    Subscription,
)
from delivery.webhooks.batching import segment
from delivery.webhooks.policy import backoff, retry_reasons
from delivery.webhooks.results import completed_work
from delivery.webhooks.results.results import Results
from delivery.webhooks.retries import retry_messages
from delivery.webhooks.routing import intake, registries, revalidation
from delivery.webhooks.scheduling import circuit_breaker
from delivery.webhooks.sending import batch_payload, payload
from delivery.webhooks.sending.batch_payload import BatchDelivery

log = logging.getLogger(__name__)

DEFER_FAULTY_S = 300.0
"""Seconds until an entry is retried that met a fault in our own code."""
NO_TOPIC = "(retry lane)"
"""Topic of quarantined records, which come from no topic. Kafka allows no topic of this name."""
_MISSING = frozenset({SkipReason.ENDPOINT_DELETED, SkipReason.SUBSCRIPTION_DELETED, SkipReason.TENANT_DELETED})
_PAUSE_REASONS = {
    EndpointStatus.PAUSED: retry_reasons.ENDPOINT_PAUSED,
    EndpointStatus.DISABLED: retry_reasons.ENDPOINT_DISABLED,
}


class Prepared(NamedTuple):
    """An entry, ready to be sent."""

    place: int
    delivery: Delivery | BatchDelivery
    number: int
    """Number of the attempt, over all lanes."""
    timeout_s: float | None
    skipped: dict[SkipReason | None, Sequence[int]]
    """Events of a batch that are left out. They are recorded only when the batch ends, because it may be requeued whole."""


@dataclass(slots=True, eq=False)
class LeaseInFlight:
    """A lease, and its results so far."""

    lease: retry_messages.Lease
    destination: registries.Destination
    until: float
    """When the last attempt may begin, in seconds of the caller's clock."""
    revision: Revision
    """The destination includes every change of the registry up to this revision."""
    registry_max_age_s: float
    """Seconds. A change of the registry that is older than this is included in any case."""
    ended: completed_work.CompletedKeys = frozenset()
    """Deliveries that an earlier run of the micro-batch has completed."""
    waiting: collections.deque[int] = field(default_factory=collections.deque)
    """Places of the entries that are still to be attempted."""
    accepted: Results = field(default_factory=Results)
    """Accepted deliveries. They may leave before the report: a further run of the micro-batch leaves them out."""
    results: Results = field(default_factory=Results)
    """Results that leave with the report."""
    _requeued: list[retry_messages.Requeue] = field(default_factory=list)
    _delivered: int = 0
    _failed: int = 0
    _refused: int = 0
    _pause_reason: str | None = None
    _retry_after_s: float | None = None

    @property
    def endpoint(self) -> Endpoint:
        """Return the endpoint of the waiting entries."""
        assert self.destination.endpoint is not None, "what goes to no endpoint is skipped"  # noqa: S101
        return self.destination.endpoint

    def begin(self, now_ms: int) -> None:
        """Decide what happens to the lease, and to each of its entries.

        1. The endpoint is quarantined, paused or disabled, and the lease is not given up: all entries are requeued.
        2. The entry's endpoint, subscriptions or tenants are missing in this worker's registry, which may be older than the
           entry: requeued.
        3. Missing otherwise means deleted. The entry is skipped, as it is for a paused or quarantined subscription.
        4. The lease is given up: dead letters. An unreadable entry cannot become one, and this is its only copy: its
           events go to the rejected topic.
        5. The entry was accepted in an earlier run of the micro-batch: delivered.
        6. Otherwise it is attempted.
        """
        lease, endpoint = self.lease, self.destination.endpoint
        pause_reason = None if endpoint is None else _pause_reason(endpoint)
        if endpoint is not None and pause_reason is not None:
            if lease.number and endpoint.customer_id == lease.customer_id:
                self._pause_reason = pause_reason
                for place, entry in enumerate(lease.entries):
                    self._requeue(place, NextAttempt(entry.again_at_ms, entry.retries), self._pause_reason)
                return
            # An entry that is given up is not sent, so the endpoint's status does not matter.
            self.destination = self.destination._replace(endpoint=replace(endpoint, status=EndpointStatus.ACTIVE, fault=None))
        for place, entry in enumerate(lease.entries):
            parts = self._parts(entry)
            if lease.number and not _MISSING.isdisjoint(parts) and self._may_be_newer(entry, now_ms):
                self._wait_for_registry(place, now_ms)
            elif None in parts and lease.given_up is None:
                self._attempt_unless_accepted(place, parts)
            else:
                self._end_unsent(place, parts, now_ms)

    def refuse(self, now_ms: int) -> None:
        """Requeue all entries unattempted: this worker has no memory for them."""
        at_ms = now_ms + round(backoff.LOCAL_WAIT_S * 1000)
        for place, entry in enumerate(self.lease.entries):
            self._requeue(place, NextAttempt(at_ms, entry.retries))

    def defer_faulty(self, place: int, fault: Exception, now_ms: int) -> None:
        """Requeue an entry that met a fault of ours, such as unreadable events, much later. The other entries go on."""
        log.error(
            "an unforeseen error in one retry entry; it is retried in %.0f s",
            DEFER_FAULTY_S,
            exc_info=fault,
            extra={"endpoint_id": self.lease.endpoint_id},
        )
        # Counts as an attempt that failed by our own fault. Without an attempt, the entry would stay first in line.
        entry = self.lease.entries[place]
        attempt = Attempt(
            entry.attempts + 1, now_ms, 0.0, None, errors.LocalFailure.error_class, "unforeseen; see the worker's log"
        )
        again = NextAttempt(now_ms + round(DEFER_FAULTY_S * 1000), entry.retries)
        self._requeue(place, again, intake.UNFORESEEN, (attempt,))
        self._stop_if_ordered()

    def _may_be_newer(self, entry: retry_messages.RetryEntry, now_ms: int) -> bool:
        """Return True if the entry may be due by a newer registry than this one.

        This holds for `registry_max_age_s` only, even if the registry was restored from a backup.
        """
        return entry.revision > self.revision and now_ms - entry.since_ms < self.registry_max_age_s * 1000

    def _wait_for_registry(self, place: int, now_ms: int) -> None:
        """Requeue an entry. Its wait is the time since it entered the lane, within bounds."""
        entry = self.lease.entries[place]
        wait_s = min(max((now_ms - entry.since_ms) / 1000, backoff.LOCAL_WAIT_S), backoff.MAX_BEHIND_S)
        self._requeue(place, NextAttempt(now_ms + round(wait_s * 1000), entry.retries), retry_reasons.REGISTRY_BEHIND)
        self._stop_if_ordered()

    def stop(self) -> None:
        """Begin no more attempts."""
        self.until = float("-inf")

    def prepare(self, place: int) -> Prepared | None:
        """Return an entry ready to be sent. Return None if its content cannot be built, and record its dead letter."""
        entry = self.lease.entries[place]
        skipped = self._parts(entry)
        delivery = self._unsent(entry, skipped.pop(None))
        try:
            delivery = _with_content(delivery)
        except Exception:  # as in the batch lane
            log.exception(
                "an unforeseen error in the content of one retry entry; it becomes a dead letter",
                extra={"endpoint_id": self.lease.endpoint_id},
            )
            self._record(entry, Outcome(delivery, OutcomeKind.DEAD_LETTERED, reason=intake.UNFORESEEN, earlier=entry.history))
            self._skip_all(entry, skipped)
            return None
        return Prepared(place, delivery, entry.attempts + 1, self.endpoint.retrying.timeout_s, skipped)

    def record_attempt(self, prepared: Prepared, attempt: Attempt, *, now_ms: int, rng: random.Random) -> None:
        """Record the result of an attempt.

        1. Accepted: delivered.
        2. Failed: requeued by the endpoint's schedule. If the entries are ordered, no further one is attempted.
        3. Failed, and nothing is left of the schedule or of the entry's time: a dead letter.
        """
        entry, error_class = self.lease.entries[prepared.place], attempt.error_class
        kind, again = OutcomeKind.DELIVERED, None
        if error_class is not None:
            again = backoff.next_attempt(
                self.endpoint.retrying,
                error_class,
                entry.retries,
                now_ms=now_ms,
                expires_ms=entry.expires_ms,
                retry_after_s=attempt.retry_after_s,
                rng=rng,
            )
            kind = OutcomeKind.DEAD_LETTERED if again is None else OutcomeKind.POSTPONED
            self._failed += error_class in circuit_breaker.UNHEALTHY
            self._refused += error_class in circuit_breaker.REFUSED
            if attempt.retry_after_s is not None:
                self._retry_after_s = max(attempt.retry_after_s, self._retry_after_s or 0.0)
            self._stop_if_ordered()
        if error_class is None:
            self._accept(entry, prepared.skipped)
        elif again is not None:
            self._requeue(prepared.place, again, error_class, (attempt,))
        else:
            self._skip_all(entry, prepared.skipped)
        self._record(entry, Outcome(prepared.delivery, kind, (attempt,), error_class, again, entry.history))

    def finish(self, now_ms: int) -> None:
        """Requeue every entry that was not attempted.

        Time ran out, the worker stops, or an earlier entry of its order key was requeued.
        """
        for place in self.waiting:
            self._requeue(place, NextAttempt(now_ms, self.lease.entries[place].retries))

    def report(self, now_ms: int) -> retry_messages.Report:
        """Return the report of the lease."""
        lease = self.lease
        return retry_messages.Report(
            endpoint_id=lease.endpoint_id,
            customer_id=lease.customer_id,
            order_key=lease.order_key,
            lease=lease.number,
            delivered=self._delivered,
            failed=self._failed,
            refused=self._refused,
            blocked=self._pause_reason,
            retry_after_s=self._retry_after_s,
            requeued=sorted(self._requeued, key=lambda back: back.place),
            entries=len(lease.entries),
            at_ms=now_ms,
        )

    def _requeue(self, place: int, again: NextAttempt, reason: str | None = None, attempts: tuple[Attempt, ...] = ()) -> None:
        kept = tuple(map(retry_messages.shortened, attempts))
        self._requeued.append(retry_messages.Requeue(place, again, reason or self.lease.entries[place].reason, kept))

    def _stop_if_ordered(self) -> None:
        if self.lease.order_key is not None:
            self.stop()

    def _end_unsent(self, place: int, parts: dict[SkipReason | None, Sequence[int]], now_ms: int) -> None:
        entry, lease = self.lease.entries[place], self.lease
        for reason, places in parts.items():
            try:
                if reason is None:
                    unsent = self._unsent(entry, places)
                    self._record(
                        entry, Outcome(unsent, OutcomeKind.DEAD_LETTERED, reason=lease.given_up, earlier=entry.history)
                    )
                else:
                    self._skip(entry, places, reason)
            except Exception as fault:  # noqa: BLE001  # an unforeseen error in one entry must not affect other entries
                if lease.number:
                    self.defer_faulty(place, fault, now_ms)
                    break
                self._quarantine(entry, places, fault)

    def _attempt_unless_accepted(self, place: int, parts: dict[SkipReason | None, Sequence[int]]) -> None:
        entry = self.lease.entries[place]
        if self._was_accepted(entry, parts.pop(None)):
            self._accept(entry, parts)
        else:
            self.waiting.append(place)

    def _was_accepted(self, entry: retry_messages.RetryEntry, places: Sequence[int]) -> bool:
        """Return True if all events that would be sent were accepted. If only some were, the whole batch is sent again."""
        if not self.ended or entry.replay is not None:
            return False
        keys = (
            completed_work.key_of_packed(segment.unpacked(entry.packed[place]), name)
            for place, name in zip(places, revalidation.subscription_ids(entry, places), strict=True)
        )
        return all(key in self.ended for key in keys)

    def _accept(self, entry: retry_messages.RetryEntry, skipped: Mapping[SkipReason | None, Sequence[int]]) -> None:
        self._delivered += 1
        self._skip_all(entry, skipped)

    def _skip_all(self, entry: retry_messages.RetryEntry, skipped: Mapping[SkipReason | None, Sequence[int]]) -> None:
        for reason, places in skipped.items():
            self._skip(entry, places, reason)

    def _skip(self, entry: retry_messages.RetryEntry, places: Sequence[int], reason: SkipReason | None) -> None:
        self._record(entry, Outcome(self._unsent(entry, places), OutcomeKind.SKIPPED, reason=reason))

    def _record(self, entry: retry_messages.RetryEntry, outcome: Outcome[Any]) -> None:
        """Record the outcome of an entry in this lease, without its body."""
        outcome = outcome._replace(replay=entry.replay)
        is_accepted = outcome.kind is OutcomeKind.DELIVERED
        if isinstance(outcome.delivery, BatchDelivery):
            batch = batch_payload.batch_outcome(outcome)
            into = self.accepted if is_accepted and not batch.rejected else self.results
            into.batches.append(batch)
        else:
            into = self.accepted if is_accepted else self.results
            into.outcomes.append(outcome._replace(delivery=outcome.delivery._replace(body=b"")))

    def _quarantine(self, entry: retry_messages.RetryEntry, places: Sequence[int], fault: Exception) -> None:
        """Pass the stored events of an entry to the operator.

        The entry cannot wait any longer, and cannot have a dead letter.
        """
        log.error(
            "a retry entry that was given up cannot be read; its events go to the rejected topic",
            exc_info=fault,
            extra={"endpoint_id": self.lease.endpoint_id},
        )
        for place in places:
            detail = (
                f"waited for endpoint {self.lease.endpoint_id} of customer {self.lease.customer_id}, by subscription "
                f"{revalidation.subscription_ids(entry, [place])[0]}; {self.lease.given_up}; {type(fault).__name__}, see the "
                "worker's log"
            )
            record = Record(NO_TOPIC, -1, -1, entry.since_ms, entry.packed[place])
            self.results.rejections.append(
                intake.Rejection(record=record, reason=intake.UNREADABLE, detail=detail, is_only_copy=True)
            )

    def _parts(self, entry: retry_messages.RetryEntry) -> dict[SkipReason | None, Sequence[int]]:
        return revalidation.split_by_eligibility(
            entry, self.lease.endpoint_id, self.lease.customer_id, _mode(entry), self.destination
        )

    def _unsent(self, entry: retry_messages.RetryEntry, places: Sequence[int]) -> Delivery | BatchDelivery:
        """Return the events of an entry at these places as a delivery or batch, without a body."""
        lease, endpoint = self.lease, self.destination.endpoint
        if endpoint is None or endpoint.customer_id != lease.customer_id:  # the ids that the log needs
            endpoint = Endpoint(endpoint_id=lease.endpoint_id, customer_id=lease.customer_id, url="", mode=_mode(entry))
        events = [segment.unpacked(entry.packed[place]) for place in places]
        through = revalidation.subscription_ids(entry, places)
        if entry.left_by is not None:
            webhook_id = batch_payload.webhook_id(lease.endpoint_id, events, through)
            return BatchDelivery(endpoint, webhook_id, b"", b"", b"", events, through, entry.left_by)
        [name] = through
        subscription = self.destination.subscriptions.get(name)
        if subscription is None:
            subscription = Subscription(subscription_id=name, endpoint_id=lease.endpoint_id, event_type="", scope=Scope())
        return Delivery(events[0].event(), subscription, endpoint, payload.webhook_id(events[0], name), b"")


def _mode(entry: retry_messages.RetryEntry) -> DeliveryMode:
    return DeliveryMode.DIRECT if entry.left_by is None else DeliveryMode.BATCH


def _with_content(unsent: Delivery | BatchDelivery) -> Delivery | BatchDelivery:
    if isinstance(unsent, BatchDelivery):
        return batch_payload.with_content(unsent)
    content = payload.content(unsent.event, unsent.endpoint.content_mode)
    return unsent._replace(body=content.body, content_headers=content.headers)


def _pause_reason(endpoint: Endpoint) -> str | None:
    """Return the reason for which nothing is attempted to this endpoint, or None."""
    return retry_reasons.ENDPOINT_QUARANTINED if endpoint.fault else _PAUSE_REASONS.get(endpoint.status)
