"""Decide what happens to each entry of a lease before the entry's attempt, and after it.

Pure: the registry's rows, the completed-work log, the attempt, `now_ms` and the random numbers are passed in.

    triage ─┬─► ToRequeue: endpoint paused, disabled or quarantined, or registry behind
            ├─► WasDelivered: accepted before the micro-batch was interrupted
            ├─► ToEnd: skipped, or a dead letter
            └─► ToAttempt ─► attempt ─► settle ─► delivered, postponed or a dead letter
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from delivery import errors
from delivery.model import Attempt, NextAttempt, OutcomeKind, SkipReason
from delivery.registry_model import Endpoint, EndpointStatus, Revision
from delivery.webhooks.batching import segment
from delivery.webhooks.leases import lease_delivery
from delivery.webhooks.policy import backoff, error_classes, retry_reasons
from delivery.webhooks.results import completed_work
from delivery.webhooks.retries import retry_messages
from delivery.webhooks.routing import registries, revalidation
from delivery.webhooks.scheduling import circuit_breaker

EVENT_DEPENDENT = frozenset(
    {
        error_classes.SERVER_ERROR,
        error_classes.UNAVAILABLE,
        errors.AttemptTimedOut.error_class,
        errors.ConnectionLost.error_class,
        errors.ResponseInvalid.error_class,
    }
)
"""Error classes of failures that one event can cause at a healthy endpoint. A crash behind a gateway gives `unavailable`. A 429
and a failed connect do not depend on the event."""
_MISSING = frozenset({SkipReason.ENDPOINT_DELETED, SkipReason.SUBSCRIPTION_DELETED, SkipReason.TENANT_DELETED})
_PAUSE_REASONS = {
    EndpointStatus.PAUSED: retry_reasons.ENDPOINT_PAUSED,
    EndpointStatus.DISABLED: retry_reasons.ENDPOINT_DISABLED,
}
Parts = Mapping[SkipReason | None, Sequence[int]]
"""Indexes of an entry's events in `RetryEntry.packed`, by the SkipReason for which the events are skipped. The events under the
key None are to be sent. If the lease is given up, these events become dead letters instead."""


class RegistryView(NamedTuple):
    """The part of a worker's registry that decides about one lease."""

    destination: registries.Destination
    """Endpoint, subscriptions and deleted tenants of the lease."""
    revision: Revision
    """The destination includes every change of the registry up to this revision."""
    max_age_s: float
    """Maximum age, in seconds, of a change of the registry that the destination may lack."""


class ToAttempt(NamedTuple):
    """The entry is to be attempted."""


class ToRequeue(NamedTuple):
    """The entry waits again, without an attempt."""

    next_attempt: NextAttempt
    reason: str
    """Reason for which the entry waits, a word of retry_reasons."""


class WasDelivered(NamedTuple):
    """The endpoint accepted the entry's events already, except those in `skipped`. These are now recorded as skipped."""

    skipped: Parts


class ToEnd(NamedTuple):
    """The entry ends without an attempt. Events under a SkipReason are skipped; events under None become dead letters."""

    parts: Parts


Decision = ToAttempt | ToRequeue | WasDelivered | ToEnd
TO_ATTEMPT = ToAttempt()


class Triage(NamedTuple):
    """The decisions about a lease before its attempts."""

    pause_reason: str | None
    """The reason why nothing of the lease is attempted, such as `endpoint_paused`. None: the entries may be attempted."""
    decisions: list[Decision]
    """One decision per entry, in the order of the entries."""


class Disposition(NamedTuple):
    """The decision about an entry after its attempt."""

    kind: OutcomeKind
    next_attempt: NextAttempt | None
    """Set if the entry is postponed."""
    is_unhealthy: bool
    """True if the failure shows that the endpoint is unhealthy."""
    is_refusal: bool
    """True if a healthy endpoint refused the entry."""
    is_poison: bool = False
    """True if the failure also counts as `is_unhealthy`, but may say more about the entry's events than about the endpoint (see
    the function `is_poison`)."""


def triage(lease: retry_messages.Lease, view: RegistryView, ended: completed_work.CompletedKeys, now_ms: int) -> Triage:
    """Return the decision about each entry of a lease.

    Cases 1 and 2 come first. Otherwise case 3 decides which events of an entry are skipped, and case 4 or 5 decides about its
    other events.

    1. The endpoint is quarantined, paused or disabled: all entries of its delivery mode are requeued.
    2. The worker's registry lacks the endpoint, a subscription or a tenant of an entry's events, and may be older than the
       registry by which the entry was written: the entry is requeued.
    3. A registry that is not older lacks the endpoint, the subscription or the tenant of some events. These rows were deleted,
       so the events are skipped. Events of a paused or quarantined subscription are skipped too. The entry ends if it has no
       other events.
    4. The endpoint accepted all other events of the entry already (`ended`): they count as delivered, and are not sent.
    5. Otherwise the other events are attempted.

    If the lease is given up (`Lease.given_up`), its entries cannot wait. In case 2 all events of the entry become dead letters.
    Otherwise only case 3 applies, and all other events become dead letters. All entries of a lease that is given up as
    BROUGHT_FORWARD are skipped, because they are resends of deliveries that wait in the retry lane.
    """
    endpoint = view.destination.endpoint
    reason = _pause_reason(lease, endpoint)
    decisions = [
        _decision(lease, entry, view, ended, now_ms)
        if reason is None or (endpoint is not None and endpoint.mode is not lease_delivery.mode(entry))
        else ToRequeue(NextAttempt(entry.again_at_ms, entry.retries), reason)
        for entry in lease.entries
    ]
    # A report with a reason to pause says that all entries stay, also those that have ended.
    return Triage(reason if all(isinstance(decision, ToRequeue) for decision in decisions) else None, decisions)


def settle(
    entry: retry_messages.RetryEntry,
    endpoint: Endpoint,
    attempt: Attempt,
    *,
    accepted_ms: int,
    now_ms: int,
    rng: random.Random,
) -> Disposition:
    """Return the decision about an attempted entry.

    1. Accepted: delivered.
    2. Failed: postponed until the time that `backoff.next_attempt` returns.
    3. Failed, and `backoff.next_attempt` returns None: a dead letter. The endpoint has no schedule, or no wait of it is left,
       or the next attempt would come after the entry expires.

    `accepted_ms` is the value in the entry's Lease: when the endpoint last accepted a request, as far as the shard knows.
    """
    error_class = attempt.error_class
    if error_class is None:
        return Disposition(OutcomeKind.DELIVERED, None, is_unhealthy=False, is_refusal=False)
    next_attempt = backoff.next_attempt(
        endpoint.retrying,
        error_class,
        entry.retries,
        now_ms=now_ms,
        expires_ms=entry.expires_ms,
        retry_after_s=attempt.retry_after_s,
        repeated=backoff.local_failures((*entry.history, attempt)),
        rng=rng,
    )
    kind = OutcomeKind.DEAD_LETTERED if next_attempt is None else OutcomeKind.POSTPONED
    return Disposition(
        kind,
        next_attempt,
        is_unhealthy=error_class in circuit_breaker.UNHEALTHY,
        is_refusal=error_class in circuit_breaker.REFUSED,
        is_poison=is_poison(entry, attempt, accepted_ms),
    )


def is_poison(entry: retry_messages.RetryEntry, attempt: Attempt, accepted_ms: int) -> bool:
    """Return True if a failed `attempt` may say more about the entry's events (a poison message) than about the endpoint.

    Three conditions hold together:
    1. The entry's previous attempt failed too.
    2. Both attempts failed with a class in EVENT_DEPENDENT.
    3. A report or health hint from after the previous attempt says that the endpoint has accepted a request. `accepted_ms` is
       the time of the last report or hint that says so.

    After each acceptance by the endpoint, the shard leaves the poison failures of only one report out of its count
    (`Window.apply_report`).
    """
    if not entry.history or attempt.error_class not in EVENT_DEPENDENT:
        return False
    before = entry.history[-1]
    return before.error_class in EVENT_DEPENDENT and before.started_at_ms + before.duration_ms < accepted_ms


def parts(
    lease: retry_messages.Lease, entry: retry_messages.RetryEntry, destination: registries.Destination
) -> dict[SkipReason | None, Sequence[int]]:
    """Return the indexes of an entry's events by the SkipReason for which to skip them. The key None has the events to send."""
    mode = lease_delivery.mode(entry)
    return revalidation.split_by_eligibility(entry, lease.endpoint_id, lease.customer_id, mode, destination)


def lacks_rows(lease: retry_messages.Lease, destination: registries.Destination) -> bool:
    """Return True if `destination` lacks the endpoint, a subscription or a tenant of the lease's events.

    An endpoint whose id was registered again for another customer or mode counts as missing. So does a subscription whose id
    was registered again for another endpoint.
    """
    return any(not _MISSING.isdisjoint(parts(lease, entry, destination)) for entry in lease.entries)


def _decision(
    lease: retry_messages.Lease,
    entry: retry_messages.RetryEntry,
    view: RegistryView,
    ended: completed_work.CompletedKeys,
    now_ms: int,
) -> Decision:
    if lease.given_up == SkipReason.BROUGHT_FORWARD:
        return ToEnd({SkipReason.BROUGHT_FORWARD: range(len(entry.packed))})
    found = parts(lease, entry, view.destination)
    if not _MISSING.isdisjoint(found) and _may_be_newer(entry, view, now_ms):
        # An entry that is given up has left the shard's state and cannot wait. Skipped as deleted, it would be lost unseen.
        return _wait_for_registry(entry, now_ms) if lease.number else ToEnd({None: range(len(entry.packed))})
    if None not in found or lease.given_up is not None:
        return ToEnd(found)
    if not _was_accepted(entry, found[None], ended):
        return TO_ATTEMPT
    return WasDelivered({reason: places for reason, places in found.items() if reason is not None})


def _pause_reason(lease: retry_messages.Lease, endpoint: Endpoint | None) -> str | None:
    """Return the reason for which nothing of a lease is attempted, or None if the entries may be attempted.

    The endpoint's status does not matter in three cases, so the result is None too:
    1. The lease is given up, and sends no request.
    2. The worker's registry lacks the endpoint.
    3. The endpoint's id belongs to another customer now, because the lease's own endpoint was deleted.
    """
    if endpoint is None or not lease.number or endpoint.customer_id != lease.customer_id:
        return None
    return retry_reasons.ENDPOINT_QUARANTINED if endpoint.fault else _PAUSE_REASONS.get(endpoint.status)


def _may_be_newer(entry: retry_messages.RetryEntry, view: RegistryView, now_ms: int) -> bool:
    """Return True if the writer of the entry had a newer revision of the registry than this worker has.

    Return False for an entry older than `view.max_age_s`, because the worker's registry then has all changes that the writer
    had. Without this rule, entries would wait for ever after a restore from a backup that set the registry's revisions back.
    """
    return entry.revision > view.revision and now_ms - entry.since_ms < view.max_age_s * 1000


def _wait_for_registry(entry: retry_messages.RetryEntry, now_ms: int) -> ToRequeue:
    """Return the decision to requeue an entry that has to wait until this worker's registry is newer.

    The entry's next wait is as long as the time since `entry.since_ms`, but at least LOCAL_WAIT_S and at most MAX_BEHIND_S.
    """
    wait_s = min(max((now_ms - entry.since_ms) / 1000, backoff.LOCAL_WAIT_S), backoff.MAX_BEHIND_S)
    return ToRequeue(NextAttempt(now_ms + round(wait_s * 1000), entry.retries), retry_reasons.REGISTRY_BEHIND)


def _was_accepted(entry: retry_messages.RetryEntry, places: Sequence[int], ended: completed_work.CompletedKeys) -> bool:
    """Return True if all events at these places were accepted. If only some were, the whole batch is sent again.

    False for a replay, because `ended` has no replays, and for an unreadable entry.
    """
    if not ended or entry.replay is not None:
        return False
    keys = (
        completed_work.key_of_packed(segment.unpacked(entry.packed[place]), subscription_id)
        for place, subscription_id in zip(places, revalidation.subscription_ids(entry, places), strict=True)
    )
    try:
        return all(key in ended for key in keys)
    except Exception:  # noqa: BLE001  # unreadable: its attempt meets the same error and defers this entry alone
        return False
