"""A shard of the retry lane in memory, and what arrives for it: everything that is kept is bytes between two decisions."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from delivery.model import Again, Attempt, CustomerId, EndpointId, SubscriptionId
from delivery.webhooks.batching import segment
from delivery.webhooks.policy import retry_decision
from delivery.webhooks.retries import retry_messages, shard_scheduler
from delivery.webhooks.state import backlog
from tests.support import builders

NOW = builders.record().appended_at_ms
DAY_MS = 86_400_000
_events = itertools.count()


def packed(payload: bytes = b"{}") -> bytes:
    """An event of its own, as it waits."""
    event = builders.event(event_id=f"r{next(_events):06}", data=payload)
    return segment.item(event, NOW).packed


def waiting(events: int = 1, *, payload: bytes = b"{}", **fields: Any) -> retry_messages.Parcel:
    """A parcel that may be attempted at once."""
    since_ms = fields.get("since_ms", NOW)
    defaults: dict[str, Any] = {
        "packed": [packed(payload) for _ in range(events)],
        "subscriptions": [SubscriptionId("s1")],
        "through": [],
        "left_by": None,
        "again_at_ms": since_ms,
        "since_ms": since_ms,
        "expires_ms": since_ms + 3 * DAY_MS,
        "reason": retry_decision.SERVER_ERROR,
    }
    return retry_messages.Parcel(**defaults | fields)


def ids(*turns: retry_messages.Turn) -> list[str]:
    """The ids of the events of some turns, in order."""
    return [event_id for turn in turns for event_id in events_of(turn.parcels)]


def events_of(parcels: Iterable[retry_messages.Parcel]) -> list[str]:
    """The ids of the events of some parcels, in order."""
    return [segment.unpacked(one).event_id for each in parcels for one in each.packed]


def postponed(*parcels: retry_messages.Parcel, endpoint: str = "ep1", customer: str = "c1") -> bytes:
    return retry_messages.encoded(retry_messages.Postponed(EndpointId(endpoint), CustomerId(customer), list(parcels)))


def failed_attempt(number: int = 1, **fields: Any) -> Attempt:
    return Attempt(
        **{"number": number, "started_at_ms": NOW, "duration_ms": 1.0, "status": 500, "error_class": "server_error"} | fields
    )


def back(
    place: int, at_ms: int, *attempts: Attempt, retries: int = 1, reason: str = retry_decision.SERVER_ERROR
) -> retry_messages.Back:
    return retry_messages.Back(place, Again(at_ms, retries), reason, attempts)


def reported(turn: retry_messages.Turn, *returned: retry_messages.Back, **fields: Any) -> bytes:
    """The report of a turn; by default all are accepted that do not come back, and what was attempted of the others failed."""
    defaults: dict[str, Any] = {
        "delivered": len(turn.parcels) - len(returned),
        "failed": sum(1 for each in returned if each.attempts),
        "hold": None,
        "retry_after_s": None,
    }
    return retry_messages.encoded(
        retry_messages.Report(
            endpoint_id=turn.endpoint_id,
            customer_id=turn.customer_id,
            order_key=turn.order_key,
            turn=turn.number,
            back=list(returned),
            **defaults | fields,
        )
    )


def accepted(turn: retry_messages.Turn, **fields: Any) -> bytes:
    return reported(turn, **fields)


def refused(turn: retry_messages.Turn, at_ms: int, **fields: Any) -> bytes:
    """The report of a turn of which each parcel failed and is attempted again then. In order, only the first was attempted."""
    attempted = 1 if turn.order_key is not None else len(turn.parcels)
    returned = [back(place, at_ms, failed_attempt()) for place in range(attempted)]
    returned += [back(place, turn.parcels[place].again_at_ms, retries=0) for place in range(attempted, len(turn.parcels))]
    return reported(turn, *returned, **fields)


def held(turn: retry_messages.Turn, why: str = retry_decision.ENDPOINT_PAUSED) -> bytes:
    """The report of a turn of which nothing was attempted."""
    return reported(turn, delivered=0, hold=why)


class Shard:
    """Take decisions one after another, as if each ran in a process of its own."""

    def __init__(self, horizon_ms: int = 0, **policy: Any) -> None:
        self.index_bytes: bytes | None = None
        self.segments: dict[int, bytes] = {}
        self.policy = shard_scheduler.Policy(**policy)
        self.horizon_ms = horizon_ms
        self.bytes_written = 0
        self.told: backlog.Pending
        self.last: shard_scheduler.Decision

    @property
    def index(self) -> shard_scheduler.Index:
        return shard_scheduler.decoded(self.index_bytes)

    def step(self, *arrived: bytes, now_ms: int) -> list[retry_messages.Turn]:
        """Decide once; return what leaves."""
        self.last = self.decided(arrived, now_ms=now_ms)
        self.told = shard_scheduler.told(self.last, now_ms)
        if not self.last.changed:
            assert (self.last.turns, self.last.append, self.last.drop) == ([], {}, [])
            return []
        for number in self.last.drop:
            del self.segments[number]
        assert not self.segments.keys() & self.last.append.keys()
        self.segments |= self.last.append
        self.bytes_written += sum(map(len, self.last.append.values()))
        self.index_bytes = shard_scheduler.encoded(self.last.index)
        assert self.index.stock.segments.keys() == self.segments.keys()
        return [retry_messages.turn(written) for written in self.last.turns]

    def wait(self) -> tuple[int, list[retry_messages.Turn]]:
        """Let time pass until something leaves; return when that is, and what leaves."""
        turns: list[retry_messages.Turn] = []
        while not turns:
            assert self.told.due_ms is not None
            now_ms = self.told.due_ms - self.horizon_ms
            turns = self.step(now_ms=now_ms)
        return now_ms, turns

    def decided(self, arrived: Iterable[bytes], *, now_ms: int) -> shard_scheduler.Decision:
        """Return the decision, and do nothing of it."""
        return shard_scheduler.decide(
            self.index, arrived, self.segments.__getitem__, self.policy, now_ms=now_ms, horizon_ms=self.horizon_ms
        )

    def bytes_kept(self) -> int:
        return sum(map(len, self.segments.values()))

    def is_empty(self) -> bool:
        return not self.segments and not self.index.buckets and not any(one.events for one in self.index.endpoints.values())
