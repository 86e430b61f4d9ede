"""Hold what was due against what the receivers got and what the job recorded. Pure.

Runs in the command and the tests.
"""

from __future__ import annotations

import collections
import hashlib
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fanout import ledger, receiver
from fanout.demo import oracle, scenario

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedEvent:
    """An event and where Kafka put it."""

    event: scenario.PublishedEvent
    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """How every due pair ended."""

    events: int
    rejected: int
    due: int
    delivered: int
    dead_lettered: int
    skipped: dict[str, int]
    pending: int
    lost: tuple[Pair, ...]
    duplicates: int
    """Accepted requests beyond the first of each delivery."""
    unverified: int
    unexpected: tuple[Pair, ...]
    """Pairs that were delivered, dead-lettered or skipped and were not due, or not so."""
    wall_s: float
    latency_ms: dict[str, float]

    @property
    def holds(self) -> bool:
        """Tell whether nothing is lost, everything was verified, and nobody got what was not due."""
        return not (self.lost or self.unexpected or self.unverified or self.pending)

    def document(self) -> dict[str, Any]:
        """Return the account for machines."""
        return {
            "events": self.events,
            "due": self.due,
            "delivered": self.delivered,
            "dead_lettered": self.dead_lettered,
            "skipped": sum(self.skipped.values()),
            "pending": self.pending,
            "lost": len(self.lost),
            "duplicates": self.duplicates,
            "rejected": self.rejected,
            "unverified": self.unverified,
            "unexpected": len(self.unexpected),
            "wall_s": round(self.wall_s, 1),
            "latency_ms": {"direct": self.latency_ms},
        }


def account(
    placed: Sequence[PlacedEvent],
    history: Sequence[tuple[int, dict[str, Any]]],
    recorded: ledger.Ledger,
    received: Iterable[receiver.Received],
    *,
    wall_s: float,
) -> Account:
    """Return the account.

    `history` holds (revision, document) of each state of the registry, oldest first. A pair counts as delivered when a
    receiver accepted a request for it whose signature it had verified; what the job says of itself is not taken for that.
    """
    requests = list(received)
    accepted = collections.Counter(request.webhook_id for request in requests if request.status < 300)
    unverified = sum(not request.is_verified for request in requests)
    due: dict[Pair, str | None] = {}
    pending = 0
    sources: dict[str, str] = {}
    for entry in placed:
        sources[entry.event.event_id] = entry.event.source
        revision = recorded.revision_at(entry.event.message.topic, entry.partition, entry.offset)
        if revision is None:
            pending += 1
            continue
        document = next(document for known, document in reversed(history) if known <= revision)
        for subscription_id, skip in oracle.due(entry.event, document):
            due[entry.event.event_id, subscription_id] = skip

    ids = {pair: webhook_id(sources[pair[0]], *pair) for pair in due}
    delivered = {pair for pair, skip in due.items() if skip is None and accepted[ids[pair]]}
    dead = {pair for pair in recorded.dead_letters if pair in due and due[pair] is None and pair not in delivered}
    skipped = {pair: reason for pair, reason in recorded.skipped.items() if due.get(pair) == reason}
    ended = delivered | dead | skipped.keys()
    recorded_pairs = recorded.delivered.keys() | recorded.dead_letters.keys() | recorded.skipped.keys()
    expected_ids = {ids[pair] for pair, skip in due.items() if skip is None}
    strangers = tuple(("?", one) for one in accepted.keys() - expected_ids)
    return Account(
        events=len(placed),
        rejected=len(recorded.rejected),
        due=len(due),
        delivered=len(delivered),
        dead_lettered=len(dead),
        skipped=dict(collections.Counter(skipped.values())),
        pending=pending,
        lost=tuple(sorted(due.keys() - ended)),
        duplicates=sum(accepted[ids[pair]] - 1 for pair in delivered),
        unverified=unverified,
        unexpected=tuple(sorted(recorded_pairs - ended)) + strangers,
        wall_s=wall_s,
        latency_ms=percentiles(list(recorded.delivered.values())),
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
