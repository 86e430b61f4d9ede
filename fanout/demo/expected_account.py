"""Hold what was due against what the receivers got and what the job recorded. Pure.

Runs in the command and the tests.
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
from fanout.reconcile import ledger

LANES = ("direct", "batch")
Pair = tuple[str, str]
"""Event id and subscription id."""
Evidence = tuple[str, ...]
"""What a receiver can tell of a delivery. Of a single event: its `webhook-id`. Of one in a batch: endpoint, source, event id;
which of two subscriptions was meant it cannot tell, and then the event must have come twice."""
History = Sequence[tuple[int, dict[str, Any]]]
"""Revision and document of each state of the registry, oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedEvent:
    """An event and where Kafka put it."""

    event: scenario.PublishedEvent
    partition: int
    offset: int
    appended_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneAccount:
    """How every due pair of one lane ended."""

    due: int
    delivered: int
    redriven: int
    """Those of the delivered that had been given up, and were delivered after that."""
    dead_lettered: int
    """Those that stayed so."""
    skipped: dict[str, int]
    pending: int
    """Events that the lane has not handled."""
    lost: tuple[Pair, ...]
    duplicates: int
    """Deliveries that were accepted beyond the first time."""
    latency_ms: dict[str, float]
    """From the append of an event to the answer that accepted it; of what was redriven, nothing."""

    def document(self) -> dict[str, int]:
        """Return the counts for machines."""
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
    """What became of the failing customer's dead letters, each delivery once."""

    customer: str
    dead_letters: int
    """By their topic, and whatever else was polled or redriven."""
    polled: int
    """Over HTTP, each payload byte for byte as it was published."""
    acknowledged: int
    redriven: int
    """By the log."""
    delivered: int
    """After that, by the receivers, which took none of it before."""

    @property
    def holds(self) -> bool:
        """Tell whether each was polled, acknowledged, redriven and delivered, and nothing else was."""
        return {self.polled, self.acknowledged, self.redriven, self.delivered} == {self.dead_letters}


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """How every due pair ended."""

    events: int
    rejected: int
    lanes: dict[str, LaneAccount]
    batches: dict[str, int]
    """How many were sent, by why they left."""
    over_http: OverHttp
    unverified: int
    unexpected: tuple[Pair, ...]
    """What was delivered, dead-lettered or skipped and was not due, or not so."""
    findings: tuple[str, ...]
    """What `fanout reconcile` finds in the topics, which knows neither what was due nor what the receivers got."""
    wall_s: float

    @property
    def holds(self) -> bool:
        """Tell whether nothing is lost, all was verified, nobody got what was not due, and topics and dead letters add up."""
        is_open = any(lane.lost or lane.pending for lane in self.lanes.values())
        return self.over_http.holds and not (self.unexpected or self.unverified or self.findings or is_open)

    def document(self) -> dict[str, Any]:
        """Return the account for machines."""
        lanes = {name: lane.document() for name, lane in self.lanes.items()}
        return {
            "events": self.events,
            **{name: sum(lane[name] for lane in lanes.values()) for name in lanes[LANES[0]]},
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
class _Expected:
    """A due pair, and what may come of it."""

    pair: Pair
    evidence: Evidence
    reasons: frozenset[str | None]
    """For which it may be skipped; None: it may be sent."""
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
) -> Account:
    """Return the account.

    A pair counts as delivered when a receiver accepted a request with it whose signature it had verified; what the job says of
    itself is not taken for that. `given_up` is what had become a dead letter of the failing customer before that polled.
    """
    requests = list(received)
    accepted = collections.Counter(evidence for request in requests for evidence in _accepted(request))
    pending = {lane: sum(recorded.revision_at(lane, _place(one), one.offset) is None for one in placed) for lane in LANES}
    expected = {lane: dict(_expected(lane, placed, history, recorded)) for lane in LANES}
    lanes, as_expected = {}, set[Due]()
    for lane in LANES:
        lanes[lane], ended = _settled(expected[lane], pending[lane], recorded, accepted)
        as_expected |= ended
    known = {one.evidence for of_lane in expected.values() for one in of_lane.values() if None in one.reasons}
    strangers = tuple(("?", " ".join(evidence)) for evidence in accepted.keys() - known)
    event_ids = {(*_place(one), one.offset): one.event.event_id for one in placed}
    otherwise = ((event_ids.get(due[:3], "?"), due.subscription_id) for due in recorded.ended() - as_expected)
    return Account(
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
        unexpected=tuple(sorted(otherwise)) + strangers,
        findings=tuple(findings),
        wall_s=wall_s,
    )


def _accepted(request: receiver.Received) -> Iterator[Evidence]:
    if request.batch is None:
        if request.is_accepted:
            yield (request.webhook_id,)
        return
    for named in request.accepted:
        yield (request.path.rsplit("/", 1)[1], *named)


def _place(one: PlacedEvent) -> places.Place:
    return places.Place(one.event.message.topic, one.partition)


def _expected(
    lane: str, placed: Sequence[PlacedEvent], history: History, recorded: ledger.Ledger
) -> Iterator[tuple[Due, _Expected]]:
    """Yield what a lane found due, by the registry as the lane's receipts say that it knew it.

    What waits, for its batch or for its next attempt, is sent by the registry of that later moment. So it may also be skipped
    for a change that came since.
    """
    for one in placed:
        event = one.event
        revision = recorded.revision_at(lane, _place(one), one.offset)
        if revision is None:
            continue
        first = max(number for number, (known, _) in enumerate(history) if known <= revision)
        document = history[first][1]
        for subscription in oracle.due(event, document, lane):
            name = str(subscription["id"])
            reasons = {oracle.skip_reason(subscription, document)}
            if reasons == {None}:
                reasons |= {oracle.skip_reason(subscription, later) for _, later in history[first + 1 :]}
            evidence: Evidence = (webhook_id(event.source, event.event_id, name),)
            if lane == "batch":
                evidence = (str(subscription["endpoint"]), event.source, event.event_id)
            yield (
                Due(*_place(one), one.offset, name),
                _Expected((event.event_id, name), evidence, frozenset(reasons), one.appended_at_ms),
            )


def _settled(
    expected: dict[Due, _Expected],
    pending: int,
    recorded: ledger.Ledger,
    accepted: collections.Counter[Evidence],
) -> tuple[LaneAccount, set[Due]]:
    """Return the account of a lane, and what of it ended as it may."""
    sendable = {due: one for due, one in expected.items() if None in one.reasons}
    unclaimed = collections.Counter(accepted)
    delivered = set[Due]()
    dead = recorded.dead() & sendable.keys()
    # Of two with the same evidence, what came is rather the one that the job does not say to have ended otherwise.
    for due in sorted(sendable, key=lambda due: due in dead or due in recorded.skipped):
        evidence = sendable[due].evidence
        if unclaimed[evidence]:
            unclaimed[evidence] -= 1
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
        LaneAccount(
            due=len(expected),
            delivered=len(delivered),
            redriven=len(redriven),
            dead_lettered=len(dead),
            skipped=dict(collections.Counter(skipped.values())),
            pending=pending,
            lost=tuple(sorted(expected[due].pair for due in expected.keys() - ended)),
            duplicates=sum(unclaimed[evidence] for evidence in {one.evidence for one in sendable.values()}),
            latency_ms=percentiles([at_ms - expected[due].appended_at_ms for due, at_ms in answered.items()]),
        ),
        ended,
    )


def webhook_id(source: str, event_id: str, subscription_id: str) -> str:
    """Return the id that docs/delivery-contract.md promises, computed from that text and not by the platform's code."""
    identity = f"{source}\0{event_id}\0{subscription_id}".encode()
    return f"msg_{hashlib.blake2b(identity, digest_size=16).hexdigest()}"


def percentiles(values: list[float]) -> dict[str, float]:
    """Return p50, p90 and p99."""
    if len(values) < 2:
        return dict.fromkeys(("p50", "p90", "p99"), round(sum(values), 1))
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {"p50": round(cuts[49], 1), "p90": round(cuts[89], 1), "p99": round(cuts[98], 1)}
