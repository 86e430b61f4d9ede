"""A shard of the retry lane in memory, and messages for the shard. Between two decisions the shard's whole state is bytes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from delivery.model import Attempt, NextAttempt
from delivery.registry_model import CustomerId, EndpointId, SubscriptionId
from delivery.webhooks.batching import segment
from delivery.webhooks.policy import error_classes, retry_reasons
from delivery.webhooks.retries import leasing_bounds, retry_messages, shard_backlog, shard_scheduler, window
from delivery.webhooks.retries.leasing_bounds import LeasingBounds
from delivery.webhooks.state import backlog
from tests.support import builders

NOW = builders.record().appended_at_ms
DAY_MS = 86_400_000
_events = itertools.count()


def packed(payload: bytes = b"{}") -> bytes:
    """Return a packed event with an id of its own."""
    event = builders.event(event_id=f"r{next(_events):06}", data=payload)
    return segment.item(event, NOW).packed


def entry(events: int = 1, *, payload: bytes = b"{}", **fields: Any) -> retry_messages.RetryEntry:
    """Return an entry that may be attempted at once."""
    since_ms = fields.get("since_ms", NOW)
    defaults: dict[str, Any] = {
        "packed": [packed(payload) for _ in range(events)],
        "subscriptions": [SubscriptionId("s1")],
        "subscription_places": [],
        "left_by": None,
        "again_at_ms": since_ms,
        "since_ms": since_ms,
        "expires_ms": since_ms + 3 * DAY_MS,
        "reason": error_classes.SERVER_ERROR,
    }
    return retry_messages.RetryEntry(**defaults | fields)


def ids(*leases: retry_messages.Lease) -> list[str]:
    """Return the ids of the events of some leases, in order."""
    return [event_id for lease in leases for event_id in events_of(lease.entries)]


def events_of(entries: Iterable[retry_messages.RetryEntry]) -> list[str]:
    """Return the ids of the events of some entries, in order."""
    return [segment.unpacked(event).event_id for each in entries for event in each.packed]


def postponed(*entries: retry_messages.RetryEntry, endpoint: str = "ep1", customer: str = "c1", resends: bool = False) -> bytes:
    message = retry_messages.Postponed(EndpointId(endpoint), CustomerId(customer), list(entries), resends=resends)
    return retry_messages.encoded(message)


def failed_attempt(number: int = 1, **fields: Any) -> Attempt:
    return Attempt(
        **{"number": number, "started_at_ms": NOW, "duration_ms": 1.0, "status": 500, "error_class": "server_error"} | fields
    )


def requeue(
    place: int, at_ms: int, *attempts: Attempt, retries: int = 1, reason: str = error_classes.SERVER_ERROR
) -> retry_messages.Requeue:
    return retry_messages.Requeue(place, NextAttempt(at_ms, retries), reason, attempts)


def reported(lease: retry_messages.Lease, *requeued: retry_messages.Requeue, **fields: Any) -> bytes:
    """Return the report of a lease. By default, entries that are not requeued were accepted."""
    defaults: dict[str, Any] = {
        "delivered": len(lease.entries) - len(requeued),
        "failed": sum(1 for each in requeued if each.attempts),
        "blocked": None,
        "retry_after_s": None,
    }
    return retry_messages.encoded(
        retry_messages.Report(
            endpoint_id=lease.endpoint_id,
            customer_id=lease.customer_id,
            order_key=lease.order_key,
            lease=lease.number,
            requeued=list(requeued),
            **defaults | fields,
        )
    )


def accepted(lease: retry_messages.Lease, **fields: Any) -> bytes:
    return reported(lease, **fields)


def refused(lease: retry_messages.Lease, at_ms: int, **fields: Any) -> bytes:
    """Return the report of a lease whose entries failed. With an order key, only the first was attempted."""
    attempted = 1 if lease.order_key is not None else len(lease.entries)
    requeued = [requeue(place, at_ms, failed_attempt()) for place in range(attempted)]
    rest = range(attempted, len(lease.entries))
    requeued += [requeue(place, lease.entries[place].again_at_ms, retries=0) for place in rest]
    return reported(lease, *requeued, **fields)


def blocked(lease: retry_messages.Lease, why: str = retry_reasons.ENDPOINT_PAUSED) -> bytes:
    """Return the report of a lease whose endpoint is blocked: no entry was attempted."""
    return reported(lease, delivered=0, blocked=why)


class Shard:
    """A shard that decides as if each decision ran in a process of its own."""

    def __init__(self, look_ahead_ms: int = 0, bounds: LeasingBounds = leasing_bounds.BOUNDS, **policy: Any) -> None:
        self.index_bytes: bytes | None = None
        self.segments: dict[int, bytes] = {}
        self.policy = window.ShardPolicy(**policy)
        self.look_ahead_ms = look_ahead_ms
        self.bounds = bounds
        self.bytes_written = 0
        self.backlog: backlog.ShardBacklog
        self.last: shard_scheduler.LeaseDecision

    @property
    def index(self) -> shard_scheduler.RetryIndex:
        return shard_scheduler.decoded(self.index_bytes)

    def step(self, *arrived: bytes, now_ms: int, behind_ms: int = 0) -> list[retry_messages.Lease]:
        """Decide once, and return the leases. `behind_ms`: how far the shard is behind in its topic."""
        self.last = self.decided(arrived, now_ms=now_ms, behind_ms=behind_ms)
        self.backlog = shard_backlog.of(self.last, now_ms)
        if not self.last.changed:
            assert (self.last.leases, self.last.append, self.last.drop) == ([], {}, [])
            return []
        for number in self.last.drop:
            del self.segments[number]
        assert not self.segments.keys() & self.last.append.keys()
        self.segments |= self.last.append
        self.bytes_written += sum(map(len, self.last.append.values()))
        self.index_bytes = shard_scheduler.encoded(self.last.index)
        assert self.index.segments.segments.keys() == self.segments.keys()
        return [retry_messages.lease(written) for written in self.last.leases]

    def wait(self) -> tuple[int, list[retry_messages.Lease]]:
        """Advance the time until there is a lease. Return the time and the leases."""
        leases: list[retry_messages.Lease] = []
        while not leases:
            assert self.backlog.due_ms is not None
            now_ms = self.backlog.due_ms - self.look_ahead_ms
            leases = self.step(now_ms=now_ms)
        return now_ms, leases

    def decided(self, arrived: Iterable[bytes], *, now_ms: int, behind_ms: int = 0) -> shard_scheduler.LeaseDecision:
        """Return a decision without applying it."""
        return shard_scheduler.decide(
            self.index,
            map(retry_messages.message, arrived),
            self.segments.__getitem__,
            self.policy,
            now_ms=now_ms,
            look_ahead_ms=self.look_ahead_ms,
            behind_ms=behind_ms,
            bounds=self.bounds,
        )

    def bytes_kept(self) -> int:
        return sum(map(len, self.segments.values()))

    def is_empty(self) -> bool:
        return (
            not self.segments
            and not self.index.buckets
            and not any(summary.events for summary in self.index.endpoints.values())
        )
