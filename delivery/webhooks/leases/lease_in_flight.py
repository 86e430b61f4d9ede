"""Carry a lease from its triage to its report.

No I/O except log lines: the registry's rows, the attempts and `now_ms` are passed in. `lease_triage` decides about the
entries, and `lease_runner` attempts the waiting entries.

    begin ─┬─► skipped, given up or accepted earlier: ended
           ├─► endpoint paused, disabled or quarantined, or registry behind: requeued
           └─► waiting ─┬─► prepare ─┬─► record_attempt ─┬─► ended
                        │            │                   └─► requeued, by the endpoint's schedule
                        │            └─► skipped since the triage, or no body can be built: ended
                        └─► no time left, stopped, or endpoint changed: requeued by finish
"""

from __future__ import annotations

import collections
import logging
import random
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from delivery import errors
from delivery.model import Attempt, Delivery, NextAttempt, Outcome, OutcomeKind
from delivery.registry_model import Endpoint, Revision, TenantId
from delivery.webhooks.leases import lease_delivery, lease_triage
from delivery.webhooks.leases.lease_report import LeaseReport
from delivery.webhooks.policy import backoff, error_classes
from delivery.webhooks.results import completed_work
from delivery.webhooks.retries import retry_messages
from delivery.webhooks.routing import intake, registries
from delivery.webhooks.sending.batch_payload import BatchDelivery

log = logging.getLogger(__name__)

DEFER_FAULTY_S = 300.0
"""Seconds until the retry of an entry that met an unforeseen error in our own code."""


class Prepared(NamedTuple):
    """A retry entry with its request body, ready to be sent."""

    place: int
    """Place of the entry in its lease, from 0."""
    delivery: Delivery | BatchDelivery
    number: int
    """Number of the attempt, from 1, over all lanes."""
    timeout_s: float | None
    """Seconds for the attempt. None: the default of the sender."""
    skipped: list[Outcome[Any]]
    """Outcomes of the events of a batch that are skipped. Recorded when the batch ends, because a requeued batch keeps these
    events."""


class LeaseInFlight:
    """A lease in one worker: the retry entries that wait for an attempt, and the report to the lease's shard.

    `until` is the latest time at which an attempt may begin.
    `ended` has the keys of deliveries that an earlier run of the micro-batch or task completed.
    """

    __slots__ = ("_ended", "_rest_at_ms", "_view", "message", "report", "tenants", "until", "waiting")

    def __init__(
        self,
        lease: retry_messages.Lease,
        view: lease_triage.RegistryView,
        *,
        until: float,
        ended: completed_work.CompletedKeys = frozenset(),
        tenants: Collection[TenantId] = (),
    ) -> None:
        self.message = lease
        """The lease as its shard wrote it."""
        self._view = view
        self.tenants = tenants
        """The tenants of all events of the lease."""
        self._ended = ended
        self.until = until
        """Latest time at which an attempt may begin, in seconds of the caller's clock."""
        self.waiting: collections.deque[int] = collections.deque()
        """Places of the entries that are still to be attempted."""
        self._rest_at_ms = 0
        self.report = LeaseReport(lease, view.destination)

    @property
    def endpoint(self) -> Endpoint:
        """Return the endpoint of the waiting entries. Called only for a lease whose triage found entries to attempt."""
        endpoint = self._view.destination.endpoint
        assert endpoint is not None, "what goes to no endpoint is skipped"  # noqa: S101
        return endpoint

    @property
    def deleted_tenants(self) -> Collection[TenantId]:
        """Return the tenants of the lease's events that are not registered any more, by the rows that the lease uses now."""
        return self._view.destination.deleted_tenants

    def begin(self, now_ms: int) -> None:
        """Decide about each entry (lease_triage.triage): queue it in `waiting`, requeue it, or record its end in the report.

        If an entry of an ordered lease is requeued, no entry of the lease is attempted.
        """
        self.report.pause_reason, decisions = lease_triage.triage(self.message, self._view, self._ended, now_ms)
        for place, decision in enumerate(decisions):
            match decision:
                case lease_triage.ToAttempt():
                    self.waiting.append(place)
                case lease_triage.ToRequeue(next_attempt, reason):
                    self.report.requeue(place, next_attempt, reason)
                    self._stop_if_ordered()
                case lease_triage.WasDelivered(skipped):
                    if self._end(place, skipped, now_ms):
                        self.report.count_accepted()
                case lease_triage.ToEnd(parts):
                    self._end(place, parts, now_ms)

    def refuse(self, now_ms: int) -> None:
        """Requeue all entries unattempted, with a wait of LOCAL_WAIT_S, because this worker has no memory for them."""
        at_ms = now_ms + round(backoff.LOCAL_WAIT_S * 1000)
        for place, entry in enumerate(self.message.entries):
            self.report.requeue(place, NextAttempt(at_ms, entry.retries))

    def defer_faulty(self, place: int, fault: Exception, now_ms: int) -> None:
        """Requeue an entry that met a fault of ours, such as unreadable events, with a wait of DEFER_FAULTY_S.

        The fault is logged, and recorded as an attempt of the entry. This attempt uses up no wait of the endpoint's retry
        schedule. In an ordered lease no further entry is attempted.
        """
        log.error(
            "an unforeseen error in one retry entry of this endpoint: the entry is kept, and a retry follows in %.0f s. Other "
            "entries are not affected, unless they have the same order key. Send this traceback to the maintainers of the "
            "platform",
            DEFER_FAULTY_S,
            exc_info=fault,
            extra={"endpoint_id": self.message.endpoint_id},
        )
        # Counts as an attempt that failed by our own fault. Without an attempt, the entry would stay first in line.
        entry = self.message.entries[place]
        attempt = Attempt(
            entry.attempts + 1, now_ms, 0.0, None, errors.LocalFailure.error_class, error_classes.UNFORESEEN_DETAIL
        )
        next_attempt = NextAttempt(now_ms + round(DEFER_FAULTY_S * 1000), entry.retries)
        self.report.requeue(place, next_attempt, intake.UNFORESEEN, (attempt,))
        self._stop_if_ordered()

    def stop(self) -> None:
        """Let no further attempt of the lease begin. Attempts in flight continue.

        `finish` requeues the entries that still wait, with their next attempt due at once.
        """
        self.until = float("-inf")
        self._rest_at_ms = 0

    def delay_rest(self, at_ms: int) -> None:
        """Let `finish` requeue the entries in `waiting`, with their next attempt at `at_ms`.

        Called because the endpoint's limits allow no earlier request. A later call of `stop` cancels the delay: the next lease
        may have other limits, or be in another process.
        """
        self._rest_at_ms = at_ms

    def follow(self, rows: registries.Destination | None, revision: Revision) -> None:
        """Let the lease use `rows`, which the worker's registry has now at `revision`, for its next attempts.

        1. `revision` is older than the revision at which the lease began, as in a task that Spark runs again: nothing changes.
        2. The endpoint was changed or deleted, or has to be looked up again (`rows` None): the lease stops. The next lease of
           its remaining entries gets the new row.
        3. Otherwise `prepare` uses the subscriptions and the deleted tenants of `rows`.
        """
        if revision < self._view.revision:
            return
        if rows is None or rows.endpoint != self._view.destination.endpoint:
            self.stop()
        else:
            self._view = self._view._replace(destination=rows)

    def prepare(self, place: int) -> Prepared | None:
        """Return the entry at `place`, ready to be sent; or record its end and return None, if no request is to be sent.

        No request is sent in two cases:
        1. No event of the entry is to be sent any more. For each event, the subscription is paused, quarantined or deleted now,
           or the tenant is deleted. All events are skipped.
        2. The body cannot be built: the events to send become dead letters, and the other events are skipped.

        Raise msgspec.MsgspecError or UnicodeDecodeError if an event of the entry is unreadable.
        """
        entry, destination = self.message.entries[place], self._view.destination
        # Split again instead of keeping the parts of all waiting entries: MemoryBudget would not count their memory.
        parts = lease_triage.parts(self.message, entry, destination)
        to_send = parts.pop(None, None)
        skipped = [self.report.unattempted(entry, places, reason) for reason, places in parts.items()]
        if to_send is None:
            self.report.record_all(entry, skipped)
            return None
        delivery = lease_delivery.without_body(self.message, entry, to_send, destination)
        try:
            delivery = lease_delivery.with_body(delivery)
        except Exception:  # an unforeseen error in one entry must not affect other entries
            log.exception(
                "an unforeseen error in the content of one retry entry: the entry becomes a dead letter with the reason "
                "unforeseen. Send this traceback to the maintainers of the platform. When the cause is mended, redrive the "
                "dead letter: `fanout dead-letters redrive --endpoint %s --reason %s`",
                self.message.endpoint_id,
                intake.UNFORESEEN,
                extra={"endpoint_id": self.message.endpoint_id},
            )
            self.report.record(
                entry, Outcome(delivery, OutcomeKind.DEAD_LETTERED, reason=intake.UNFORESEEN, earlier=entry.history)
            )
            self.report.record_all(entry, skipped)
            return None
        return Prepared(place, delivery, entry.attempts + 1, self.endpoint.retrying.timeout_s, skipped)

    def record_attempt(self, prepared: Prepared, attempt: Attempt, *, now_ms: int, rng: random.Random) -> None:
        """Record the result of an attempt, as lease_triage.settle decides: delivered, requeued or a dead letter.

        After a failed attempt no further entry of an ordered lease is attempted.
        """
        entry, error_class = self.message.entries[prepared.place], attempt.error_class
        settled = lease_triage.settle(
            entry, self.endpoint, attempt, accepted_ms=self.message.accepted_ms, now_ms=now_ms, rng=rng
        )
        if error_class is None:
            self.report.count_accepted()
            self.report.record_all(entry, prepared.skipped)
        else:
            self.report.count_failure(settled, attempt)
            self._stop_if_ordered()
            if settled.next_attempt is not None:
                self.report.requeue(prepared.place, settled.next_attempt, error_class, (attempt,))
            else:
                self.report.record_all(entry, prepared.skipped)
        outcome = Outcome(prepared.delivery, settled.kind, (attempt,), error_class, settled.next_attempt, entry.history)
        self.report.record(entry, outcome)

    def finish(self, now_ms: int) -> None:
        """Requeue every entry that is still in `waiting`: due at `now_ms`, or later after a call of `delay_rest`.

        An entry is still waiting for one of three reasons:
        1. The lease's time ran out.
        2. The endpoint's rate allowed no request in this time.
        3. The lease was stopped, for example after a change of its endpoint.
        """
        at_ms = max(now_ms, self._rest_at_ms)
        for place in self.waiting:
            self.report.requeue(place, NextAttempt(at_ms, self.message.entries[place].retries))

    def _stop_if_ordered(self) -> None:
        if self.message.order_key is not None:
            self.stop()

    def _end(self, place: int, parts: lease_triage.Parts, now_ms: int) -> bool:
        """End an entry without an attempt. Return False if the entry is unreadable and was requeued instead.

        `parts` says which events are skipped, and which become dead letters.
        1. The entry is readable: record all outcomes.
        2. The entry is unreadable, and the lease is not given up: record no outcome, and requeue the entry with a wait of
           DEFER_FAULTY_S.
        3. The entry is unreadable, and the lease is given up, so that its entries cannot wait. Write the events of each
           unreadable part to the rejected topic, and record the outcomes of the other parts.
        """
        entry, lease = self.message.entries[place], self.message
        outcomes: list[Outcome[Any]] = []
        for reason, places in parts.items():
            try:
                outcomes.append(self.report.unattempted(entry, places, reason))
            except Exception as fault:  # noqa: BLE001  # an unforeseen error in one entry must not affect other entries
                if lease.number:
                    self.defer_faulty(place, fault, now_ms)
                    return False
                self._quarantine(entry, places, fault)
        self.report.record_all(entry, outcomes)
        return True

    def _quarantine(self, entry: retry_messages.RetryEntry, places: Sequence[int], fault: Exception) -> None:
        """Record the stored events of an unreadable entry for the rejected topic, which the operator reads.

        The entry was given up and cannot have a dead letter. The rejected topic then has the only copy of the events.
        """
        log.error(
            "a retry entry that was given up cannot be read, so its events get no dead letter. They go to the topic of "
            "delivery.rejected_topic (reason unreadable), which then has their only copy: keep these records until the events "
            "are published again. Send this traceback to the maintainers of the platform",
            exc_info=fault,
            extra={"endpoint_id": self.message.endpoint_id},
        )
        self.report.quarantine(entry, places, fault)
