"""Compare the due deliveries of the demo with the requests to the receivers and the results in the job's topics. Pure.

Runs in `fanout` commands and the tests. The result is an account: how many deliveries were due, how many ended in each
way, and which were lost or unexpected. A `Pair` names a delivery.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import statistics
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from delivery.webhooks.results.log_entries import Due
from fanout.demo import oracle, over_http, scenario
from fanout.kafka import places
from fanout.local import receiver
from fanout.reconcile import accounting, ledger

Pair = tuple[str, str]
"""A delivery, by event id and subscription id."""
Token = tuple[str, ...]
"""Identity of a delivery for a receiver. For a single event: its `webhook-id`. For an event of a batch: endpoint, source and
event id. If two subscriptions of a batch endpoint match one event, both deliveries have the same token, and the endpoint must
get the event twice."""
History = Sequence[tuple[int, dict[str, Any]]]
"""Revision and document of each state of the registry, oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedEvent:
    """An event and its place in Kafka."""

    event: scenario.PublishedEvent
    partition: int
    offset: int
    appended_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedLane:
    """Outcomes of the due deliveries of one lane. `ExpectedAccount.unexpected` has the deliveries that were not due."""

    due: int
    delivered: int
    redriven: int
    """Deliveries, among those in `delivered`, whose dead letter was redriven."""
    dead_lettered: int
    """Deliveries that became dead letters, and were not delivered after a redrive."""
    skipped: dict[str, int]
    """Skip reason → number of deliveries."""
    pending: int
    """Events that the lane did not handle."""
    lost: tuple[Pair, ...]
    """Due deliveries without a permitted outcome."""
    duplicates: int
    """Number of times that a receiver accepted a delivery again."""
    latency_ms: dict[str, float]
    """p50, p90 and p99 of the milliseconds from the append of an event to the answer that accepted it, without redriven
    deliveries."""

    def document(self) -> dict[str, int]:
        """Return the counts for JSON output, by the names of the fields. `skipped` and `lost` are numbers here."""
        return {
            "due": self.due,
            "delivered": self.delivered,
            "redriven": self.redriven,
            "dead_lettered": self.dead_lettered,
            "skipped": sum(self.skipped.values()),
            "pending": self.pending,
            "lost": len(self.lost),
            "duplicates": self.duplicates,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class OverHttp:
    """Outcomes of the dead letters of scenario.FAILING_CUSTOMER, which the demo polls, acknowledges and redrives over HTTP.

    Each field except `customer` is a number of deliveries, and counts a delivery once.
    """

    customer: str
    dead_letters: int
    """Deliveries with a dead letter in the dead-letter topic or in a poll, or with a redrive in the attempts topic."""
    polled: int
    """Deliveries whose dead letter was polled over HTTP, with the payload byte for byte as published."""
    acknowledged: int
    """Deliveries whose dead letter was acknowledged over HTTP."""
    redriven: int
    """Deliveries that were redriven, as the attempts topic says."""
    delivered: int
    """Deliveries that a receiver accepted after the redrive. No receiver accepted one of them before."""

    @property
    def holds(self) -> bool:
        """Return True if `polled`, `acknowledged`, `redriven` and `delivered` all equal `dead_letters`."""
        return {self.polled, self.acknowledged, self.redriven, self.delivered} == {self.dead_letters}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedAccount:
    """Outcomes of all due deliveries of the demo, and each contradiction that the comparison found."""

    events: int
    """Published events, without the bad records."""
    rejected: int
    """Records that the job rejected."""
    lanes: dict[str, ExpectedLane]
    """Lane name → account of its due deliveries."""
    batches: dict[str, int]
    """Number of sent batches, by the reason for which they were sent (a LeaveReason)."""
    over_http: OverHttp
    unverified: int
    """Requests whose signature did not verify."""
    unexpected: tuple[Pair, ...]
    """Deliveries that have an outcome and were not due, or whose outcome is not permitted. An accepted request without a due
    delivery has `?` as its event id, and its Token in place of the subscription."""
    findings: tuple[str, ...]
    """Findings of `fanout reconcile`, which knows neither the oracle nor the receivers."""
    wall_s: float
    """Seconds that the demo took, before it printed the account."""

    @property
    def holds(self) -> bool:
        """Return True if nothing is lost, pending, unverified or unexpected, `over_http` holds, and there are no findings."""
        is_open = any(lane.lost or lane.pending for lane in self.lanes.values())
        return self.over_http.holds and not (self.unexpected or self.unverified or self.findings or is_open)

    def document(self) -> dict[str, Any]:
        """Return the account for JSON output: the fields of this class, and the sums of the lanes' counts.

        `unexpected` is a number here. `latency_ms` has the percentiles of each lane.
        """
        lanes = {name: lane.document() for name, lane in self.lanes.items()}
        return {
            "events": self.events,
            **{name: sum(lane[name] for lane in lanes.values()) for name in lanes[accounting.LANES[0]]},
            "rejected": self.rejected,
            "unverified": self.unverified,
            "unexpected": len(self.unexpected),
            "findings": list(self.findings),
            "lanes": lanes,
            "batches": self.batches,
            "over_http": dataclasses.asdict(self.over_http),
            "wall_s": round(self.wall_s, 1),
            "latency_ms": {name: lane.latency_ms for name, lane in self.lanes.items()},
        }


@dataclass(frozen=True, slots=True)
class _DueDelivery:
    """A due delivery, and its permitted outcomes."""

    pair: Pair
    token: Token
    reasons: frozenset[str | None]
    """Reasons for which the delivery may be skipped. If the set contains None, the delivery may be sent."""
    appended_at_ms: int


def account(
    placed: Sequence[PlacedEvent],
    history: History,
    recorded: ledger.Ledger,
    received: Iterable[receiver.Received],
    *,
    given_up: AbstractSet[Due],
    polled: over_http.Polled,
    findings: Iterable[str],
    wall_s: float,
) -> ExpectedAccount:
    """Return the account of all due deliveries.

    A delivery counts as delivered if a receiver accepted a request with it, whatever the job recorded, and even if the
    request's signature did not verify. `ExpectedAccount.unverified` counts such requests too. `given_up` are the deliveries to
    FAILING_CUSTOMER that were dead letters before the demo polled this customer's dead letters. `polled` is what the polls
    returned.
    """
    requests = list(received)
    accepted = collections.Counter(token for request in requests for token in _accepted(request))
    pending = {
        lane: sum(recorded.revision_at(lane, _place(event), event.offset) is None for event in placed)
        for lane in accounting.LANES
    }
    expected = {lane: dict(_expected(lane, placed, history, recorded)) for lane in accounting.LANES}
    lanes, as_expected = {}, set[Due]()
    for lane in accounting.LANES:
        lanes[lane], ended = _account_of_lane(expected[lane], pending[lane], recorded, accepted)
        as_expected |= ended
    known = {delivery.token for of_lane in expected.values() for delivery in of_lane.values() if None in delivery.reasons}
    unknown = tuple(("?", " ".join(token)) for token in accepted.keys() - known)
    event_ids = {(*_place(placed_event), placed_event.offset): placed_event.event.event_id for placed_event in placed}
    not_due = ((event_ids.get(due[:3], "?"), due.subscription_id) for due in recorded.ended() - as_expected)
    return ExpectedAccount(
        events=len(placed),
        rejected=len(recorded.rejected),
        lanes=lanes,
        batches=dict(collections.Counter(recorded.batches.values())),
        over_http=OverHttp(
            customer=scenario.FAILING_CUSTOMER,
            dead_letters=len(given_up | polled.seen | recorded.redriven.keys()),
            polled=len(polled.intact),
            acknowledged=len(polled.acknowledged),
            redriven=len(recorded.redriven),
            delivered=sum(lane.redriven for lane in lanes.values()),
        ),
        unverified=sum(not request.is_verified for request in requests),
        unexpected=tuple(sorted(not_due)) + unknown,
        findings=tuple(findings),
        wall_s=wall_s,
    )


def _accepted(request: receiver.Received) -> Iterator[Token]:
    if request.batch is None:
        if request.is_accepted:
            yield (request.webhook_id,)
        return
    for named in request.accepted:
        yield (request.path.rsplit("/", 1)[1], *named)


def _place(placed_event: PlacedEvent) -> places.Place:
    return places.Place(placed_event.event.message.topic, placed_event.partition)


def _expected(
    lane: str, placed: Sequence[PlacedEvent], history: History, recorded: ledger.Ledger
) -> Iterator[tuple[Due, _DueDelivery]]:
    """Yield the deliveries that are due in a lane, by the revision that the lane's receipts of handled offsets name.

    Events without a receipt of the lane are left out: the lane has not handled them.
    A delivery that waits for its batch or its next attempt is sent as the registry says at the time of sending. So a change of
    the registry during the wait may cause a skip.
    """
    for placed_event in placed:
        event, offset = placed_event.event, placed_event.offset
        revision = recorded.revision_at(lane, _place(placed_event), offset)
        if revision is None:
            continue
        first = max(number for number, (known, _) in enumerate(history) if known <= revision)
        document = history[first][1]
        for subscription in oracle.due(event, document, lane):
            name = str(subscription["id"])
            reasons = {oracle.skip_reason(subscription, document)}
            if reasons == {None}:
                reasons |= {oracle.skip_reason(subscription, later) for _, later in history[first + 1 :]}
            token: Token = (webhook_id(event.source, event.event_id, name),)
            if lane == "batch":
                token = (str(subscription["endpoint"]), event.source, event.event_id)
            yield (
                Due(*_place(placed_event), offset, name),
                _DueDelivery((event.event_id, name), token, frozenset(reasons), placed_event.appended_at_ms),
            )


def _account_of_lane(
    expected: dict[Due, _DueDelivery],
    pending: int,
    recorded: ledger.Ledger,
    accepted: collections.Counter[Token],
) -> tuple[ExpectedLane, set[Due]]:
    """Return the account of a lane, and its deliveries with a permitted outcome."""
    sendable = {due: delivery for due, delivery in expected.items() if None in delivery.reasons}
    unclaimed = collections.Counter(accepted)
    delivered = set[Due]()
    dead = recorded.dead() & sendable.keys()
    # Two deliveries may have the same token. The delivery without another outcome in the log counts as delivered.
    for due in sorted(sendable, key=lambda due: due in dead or due in recorded.skipped):
        token = sendable[due].token
        if unclaimed[token]:
            unclaimed[token] -= 1
            delivered.add(due)
    dead -= delivered
    skipped = {
        due: reason
        for due, reason in recorded.skipped.items()
        if due in expected and reason in expected[due].reasons and due not in delivered
    }
    ended = delivered | dead | skipped.keys()
    redriven = delivered & recorded.redriven.keys()
    answered = {due: recorded.delivered[due] for due in (delivered - redriven) & recorded.delivered.keys()}
    return (
        ExpectedLane(
            due=len(expected),
            delivered=len(delivered),
            redriven=len(redriven),
            dead_lettered=len(dead),
            skipped=dict(collections.Counter(skipped.values())),
            pending=pending,
            lost=tuple(sorted(expected[due].pair for due in expected.keys() - ended)),
            duplicates=sum(unclaimed[token] for token in {delivery.token for delivery in sendable.values()}),
            latency_ms=percentiles([at_ms - expected[due].appended_at_ms for due, at_ms in answered.items()]),
        ),
        ended,
    )


def webhook_id(source: str, event_id: str, subscription_id: str) -> str:
    """Return the `webhook-id` of a delivery as docs/delivery-contract.md defines it, without the code of the platform."""
    identity = f"{source}\0{event_id}\0{subscription_id}".encode()
    return f"msg_{hashlib.blake2b(identity, digest_size=16).hexdigest()}"


def percentiles(values: list[float]) -> dict[str, float]:
    """Return p50, p90 and p99 of the values, rounded to one decimal; 0 without values."""
    if len(values) < 2:
        return dict.fromkeys(("p50", "p90", "p99"), round(sum(values), 1))
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {"p50": round(cuts[49], 1), "p90": round(cuts[89], 1), "p99": round(cuts[98], 1)}
