"""Decide what is done with each parcel of a turn, take what comes of it, and sum it up in the turn's report.

Runs in the executors. Must not import pyspark or psycopg. Pure: the registry's destination, answers and `now_ms` in. Who
attempts what is `waiting`, and when, is the retry lane's concern (delivery.webhooks.lanes.retry_lane).

    begin ─┬─► skipped, or given up: ended
           ├─► held: comes back
           └─► waiting ─► made ─► answered ─┬─► ended
                     │                      └─► comes back, by its schedule
                     └─► no time for it: comes back
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
from delivery.webhooks.policy import retry_decision
from delivery.webhooks.results import completed_work
from delivery.webhooks.results.results import Results
from delivery.webhooks.retries import retry_messages
from delivery.webhooks.routing import intake, registries, revalidation
from delivery.webhooks.scheduling import circuit_breaker
from delivery.webhooks.sending import batch_payload, payload
from delivery.webhooks.sending.batch_payload import BatchDelivery

log = logging.getLogger(__name__)

PUT_OFF_S = 300.0
"""When a parcel is tried again that met a fault in our own code."""
NOWHERE = "(retry lane)"
"""The topic of what is set apart: it stands in none. No topic of Kafka has such a name."""
_NOT_THERE = frozenset({SkipReason.ENDPOINT_DELETED, SkipReason.SUBSCRIPTION_DELETED, SkipReason.TENANT_DELETED})
_HOLDS = {EndpointStatus.PAUSED: retry_decision.ENDPOINT_PAUSED, EndpointStatus.DISABLED: retry_decision.ENDPOINT_DISABLED}


class Made(NamedTuple):
    """What is sent of a parcel."""

    place: int
    delivery: Delivery | BatchDelivery
    number: int
    """Of the attempt, in all lanes."""
    timeout_s: float | None
    skipped: dict[SkipReason | None, Sequence[int]]
    """What is left out of a batch. It is told when the batch ends: it may come back whole."""


@dataclass(slots=True, eq=False)
class TurnUnderWay:
    """A turn, and what has come of it so far."""

    turn: retry_messages.Lease
    destination: registries.Destination
    until: float
    """No attempt begins after that, in seconds of the clock of whoever attempts."""
    revision: Revision
    """Every change of the registry up to this one has a part in the destination."""
    registry_max_age_s: float
    """It has a part in it in any case when it is so old."""
    ended: completed_work.CompletedKeys = frozenset()
    """What an earlier run of its micro-batch has written of it."""
    waiting: collections.deque[int] = field(default_factory=collections.deque)
    """The places of the parcels that are still to be attempted."""
    accepted: Results = field(default_factory=Results)
    """What needs not wait for the report: the journal leaves it out of a further run."""
    results: Results = field(default_factory=Results)
    """What is told with the report."""
    _back: list[retry_messages.Requeue] = field(default_factory=list)
    _delivered: int = 0
    _failed: int = 0
    _refused: int = 0
    _hold: str | None = None
    _retry_after_s: float | None = None

    @property
    def endpoint(self) -> Endpoint:
        """Where the parcels that wait go to."""
        assert self.destination.endpoint is not None, "what goes to no endpoint is skipped"  # noqa: S101
        return self.destination.endpoint

    def begin(self, now_ms: int) -> None:
        """Decide of the turn, and of each of its parcels, what is to be done.

        1. The endpoint is quarantined, paused or disabled: all come back, and nothing is attempted.
        2. The parcel's endpoint, subscriptions or tenants are not known here, and it is of a later registry: it comes back.
        3. They are gone, or the subscription is paused or quarantined: skipped.
        4. The turn is given up: dead letters. What cannot be read has none, and its shard has forgotten it: it is set apart.
        5. It was accepted in an earlier run of the micro-batch: ended, and told.
        6. Otherwise it is attempted.
        """
        turn, endpoint = self.turn, self.destination.endpoint
        hold = None if endpoint is None else _hold_of(endpoint)
        if endpoint is not None and hold is not None:
            if turn.number and endpoint.customer_id == turn.customer_id:
                self._hold = hold
                for place, waits in enumerate(turn.entries):
                    self._comes_back(place, NextAttempt(waits.again_at_ms, waits.retries), self._hold)
                return
            # What is given up is not sent: whether it could be is no question.
            self.destination = self.destination._replace(endpoint=replace(endpoint, status=EndpointStatus.ACTIVE, fault=None))
        for place, waits in enumerate(turn.entries):
            parts = self._parts(waits)
            if turn.number and not _NOT_THERE.isdisjoint(parts) and self._may_be_later(waits, now_ms):
                self._wait_for_registry(place, now_ms)
            elif None in parts and turn.given_up is None:
                self._attempt_unless_accepted(place, parts)
            else:
                self._end_unsent(place, parts, now_ms)

    def turn_away(self, now_ms: int) -> None:
        """Let all come back unattempted: there is no room for them here."""
        at_ms = now_ms + round(retry_decision.LOCAL_WAIT_S * 1000)
        for place, waits in enumerate(self.turn.entries):
            self._comes_back(place, NextAttempt(at_ms, waits.retries))

    def put_off(self, place: int, fault: Exception, now_ms: int) -> None:
        """Let a parcel come back much later that met a fault of ours, as events that cannot be read; the others go on."""
        log.error("a parcel failed in an unforeseen way", exc_info=fault, extra={"endpoint_id": self.turn.endpoint_id})
        # As an attempt that failed through a fault of ours: what was not attempted would stand in front, before the others.
        waits = self.turn.entries[place]
        told = Attempt(waits.attempts + 1, now_ms, 0.0, None, errors.LocalFailure.error_class, "unforeseen; see the log")
        again = NextAttempt(now_ms + round(PUT_OFF_S * 1000), waits.retries)
        self._comes_back(place, again, intake.UNFORESEEN, (told,))
        self._stop_in_order()

    def _may_be_later(self, waits: retry_messages.RetryEntry, now_ms: int) -> bool:
        """Tell whether what made it due may be later than the registry here. Soon, even where that was restored of a backup."""
        return waits.revision > self.revision and now_ms - waits.since_ms < self.registry_max_age_s * 1000

    def _wait_for_registry(self, place: int, now_ms: int) -> None:
        """Let a parcel come back a moment later, or after as long again as it has waited."""
        waits = self.turn.entries[place]
        wait_s = min(max((now_ms - waits.since_ms) / 1000, retry_decision.LOCAL_WAIT_S), retry_decision.MAX_BEHIND_S)
        self._comes_back(place, NextAttempt(now_ms + round(wait_s * 1000), waits.retries), retry_decision.REGISTRY_BEHIND)
        self._stop_in_order()

    def stop(self) -> None:
        """Begin no more attempts."""
        self.until = float("-inf")

    def made(self, place: int) -> Made | None:
        """Return what is sent of a parcel; None when its content cannot be made, and it is a dead letter."""
        waits = self.turn.entries[place]
        skipped = self._parts(waits)
        delivery = self._unsent(waits, skipped.pop(None))
        try:
            delivery = _with_content(delivery)
        except Exception:  # as in the batch lane
            log.exception("a parcel failed in an unforeseen way", extra={"endpoint_id": self.turn.endpoint_id})
            self._tell(waits, Outcome(delivery, OutcomeKind.DEAD_LETTERED, reason=intake.UNFORESEEN, earlier=waits.history))
            return None
        return Made(place, delivery, waits.attempts + 1, self.endpoint.retrying.timeout_s, skipped)

    def answered(self, made: Made, attempt: Attempt, *, now_ms: int, rng: random.Random) -> None:
        """Take what came of an attempt.

        1. Accepted: delivered.
        2. Failed: it comes back by its endpoint's schedule. In order, the others are not attempted any more.
        3. Failed, and nothing is left of the schedule or of its time: a dead letter.
        """
        waits, error_class = self.turn.entries[made.place], attempt.error_class
        kind, again = OutcomeKind.DELIVERED, None
        if error_class is not None:
            again = retry_decision.again(
                self.endpoint.retrying,
                error_class,
                waits.retries,
                now_ms=now_ms,
                expires_ms=waits.expires_ms,
                retry_after_s=attempt.retry_after_s,
                rng=rng,
            )
            kind = OutcomeKind.DEAD_LETTERED if again is None else OutcomeKind.POSTPONED
            self._failed += error_class in circuit_breaker.FAILED
            self._refused += error_class in circuit_breaker.REFUSED
            if attempt.retry_after_s is not None:
                self._retry_after_s = max(attempt.retry_after_s, self._retry_after_s or 0.0)
            self._stop_in_order()
        if error_class is None:
            self._accept(waits, made.skipped)
        elif again is not None:
            self._comes_back(made.place, again, error_class, (attempt,))
        else:
            self._skip_all(waits, made.skipped)
        self._tell(waits, Outcome(made.delivery, kind, (attempt,), error_class, again, waits.history))

    def end(self, now_ms: int) -> None:
        """Let come back what there was no time for, or what one before it in its order has failed for."""
        for place in self.waiting:
            self._comes_back(place, NextAttempt(now_ms, self.turn.entries[place].retries))

    def report(self, now_ms: int) -> retry_messages.Report:
        """Return what came of the turn."""
        turn = self.turn
        return retry_messages.Report(
            endpoint_id=turn.endpoint_id,
            customer_id=turn.customer_id,
            order_key=turn.order_key,
            lease=turn.number,
            delivered=self._delivered,
            failed=self._failed,
            refused=self._refused,
            blocked=self._hold,
            retry_after_s=self._retry_after_s,
            requeued=sorted(self._back, key=lambda back: back.place),
            entries=len(turn.entries),
            at_ms=now_ms,
        )

    def _comes_back(
        self, place: int, again: NextAttempt, reason: str | None = None, attempts: tuple[Attempt, ...] = ()
    ) -> None:
        kept = tuple(map(retry_messages.shortened, attempts))
        self._back.append(retry_messages.Requeue(place, again, reason or self.turn.entries[place].reason, kept))

    def _stop_in_order(self) -> None:
        if self.turn.order_key is not None:
            self.stop()

    def _end_unsent(self, place: int, parts: dict[SkipReason | None, Sequence[int]], now_ms: int) -> None:
        waits, turn = self.turn.entries[place], self.turn
        for reason, places in parts.items():
            try:
                if reason is None:
                    unsent = self._unsent(waits, places)
                    self._tell(waits, Outcome(unsent, OutcomeKind.DEAD_LETTERED, reason=turn.given_up, earlier=waits.history))
                else:
                    self._skip(waits, places, reason)
            except Exception as fault:  # noqa: BLE001  # a surprise in one parcel must hurt that parcel alone
                if turn.number:
                    self.put_off(place, fault, now_ms)
                    break
                self._set_apart(waits, places, fault)

    def _attempt_unless_accepted(self, place: int, parts: dict[SkipReason | None, Sequence[int]]) -> None:
        waits = self.turn.entries[place]
        if self._was_accepted(waits, parts.pop(None)):
            self._accept(waits, parts)
        else:
            self.waiting.append(place)

    def _was_accepted(self, waits: retry_messages.RetryEntry, places: Sequence[int]) -> bool:
        """Tell whether all that would be sent was accepted. Of a part of it a new batch would have to be made."""
        if not self.ended or waits.replay is not None:
            return False
        keys = (
            completed_work.key_of_packed(segment.unpacked(waits.packed[place]), name)
            for place, name in zip(places, revalidation.subscription_ids(waits, places), strict=True)
        )
        return all(key in self.ended for key in keys)

    def _accept(self, waits: retry_messages.RetryEntry, skipped: Mapping[SkipReason | None, Sequence[int]]) -> None:
        self._delivered += 1
        self._skip_all(waits, skipped)

    def _skip_all(self, waits: retry_messages.RetryEntry, skipped: Mapping[SkipReason | None, Sequence[int]]) -> None:
        for reason, places in skipped.items():
            self._skip(waits, places, reason)

    def _skip(self, waits: retry_messages.RetryEntry, places: Sequence[int], reason: SkipReason | None) -> None:
        self._tell(waits, Outcome(self._unsent(waits, places), OutcomeKind.SKIPPED, reason=reason))

    def _tell(self, waits: retry_messages.RetryEntry, outcome: Outcome[Any]) -> None:
        """Take note of how a parcel ended in this turn, without its body."""
        outcome = outcome._replace(replay=waits.replay)
        is_accepted = outcome.kind is OutcomeKind.DELIVERED
        if isinstance(outcome.delivery, BatchDelivery):
            batch = batch_payload.settled(outcome)
            into = self.accepted if is_accepted and not batch.rejected else self.results
            into.batches.append(batch)
        else:
            into = self.accepted if is_accepted else self.results
            into.outcomes.append(outcome._replace(delivery=outcome.delivery._replace(body=b"")))

    def _set_apart(self, waits: retry_messages.RetryEntry, places: Sequence[int], fault: Exception) -> None:
        """Give what can neither wait any longer nor have a dead letter to the operator: the events as they were kept."""
        log.error(
            "a parcel that is given up failed in an unforeseen way",
            exc_info=fault,
            extra={"endpoint_id": self.turn.endpoint_id},
        )
        for place in places:
            [subscription_id] = revalidation.subscription_ids(waits, [place])
            detail = (
                f"waited for endpoint {self.turn.endpoint_id} of customer {self.turn.customer_id}, by subscription "
                f"{subscription_id}; {self.turn.given_up}; {type(fault).__name__}, see the worker's log"
            )
            record = Record(NOWHERE, -1, -1, waits.since_ms, waits.packed[place])
            self.results.rejections.append(
                intake.Rejection(record=record, reason=intake.UNREADABLE, detail=detail, is_only_copy=True)
            )

    def _parts(self, waits: retry_messages.RetryEntry) -> dict[SkipReason | None, Sequence[int]]:
        return revalidation.split_by_eligibility(
            waits, self.turn.endpoint_id, self.turn.customer_id, _mode(waits), self.destination
        )

    def _unsent(self, waits: retry_messages.RetryEntry, places: Sequence[int]) -> Delivery | BatchDelivery:
        """Return the events of a parcel at these places as a delivery or batch, without a body."""
        turn, endpoint = self.turn, self.destination.endpoint
        if endpoint is None or endpoint.customer_id != turn.customer_id:  # what the log names is left
            endpoint = Endpoint(endpoint_id=turn.endpoint_id, customer_id=turn.customer_id, url="", mode=_mode(waits))
        events = [segment.unpacked(waits.packed[place]) for place in places]
        through = revalidation.subscription_ids(waits, places)
        if waits.left_by is not None:
            webhook_id = batch_payload.webhook_id(turn.endpoint_id, events, through)
            return BatchDelivery(endpoint, webhook_id, b"", b"", b"", events, through, waits.left_by)
        [name] = through
        subscription = self.destination.subscriptions.get(name)
        if subscription is None:
            subscription = Subscription(subscription_id=name, endpoint_id=turn.endpoint_id, event_type="", scope=Scope())
        return Delivery(events[0].event(), subscription, endpoint, payload.webhook_id(events[0], name), b"")


def _mode(waits: retry_messages.RetryEntry) -> DeliveryMode:
    return DeliveryMode.DIRECT if waits.left_by is None else DeliveryMode.BATCH


def _with_content(unsent: Delivery | BatchDelivery) -> Delivery | BatchDelivery:
    if isinstance(unsent, BatchDelivery):
        return batch_payload.with_content(unsent)
    content = payload.content(unsent.event, unsent.endpoint.content_mode)
    return unsent._replace(body=content.body, content_headers=content.headers)


def _hold_of(endpoint: Endpoint) -> str | None:
    """Return the reason for which the lane attempts nothing to this endpoint, or None."""
    return retry_decision.ENDPOINT_QUARANTINED if endpoint.fault else _HOLDS.get(endpoint.status)
