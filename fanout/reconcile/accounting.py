"""Prove from the topics that due deliveries = delivered + pending + dead-lettered + skipped, and name the differences. Pure.

Runs in `fanout` commands, tests and load tests. A receipt says which offsets a lane handled, and how many deliveries were due.
The account checks three statements:
1. Every record of an event topic is in a range that a receipt of the lane covers, or after the last receipt. With
   `Terms.from_first`, this holds from the partition's first record on, else from the lane's first receipt on.
2. A receipt states how many deliveries of its range were due. In the topics of results, as many must have ended or must wait.
3. A delivery that waits in the retry lane is in the retries topic, with its expiry. A delivery that waits for its batch is in
   no topic. The number of such deliveries is the due count of the receipt minus the deliveries that topics name.

The topics cannot prove that the registry was right, nor that an endpoint still has what it accepted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fanout.kafka.places import Place
from fanout.reconcile import offset_receipts
from fanout.reconcile.evidence import (
    DEAD,
    DEAD_IN_LOG,
    DELIVERED,
    ENQUEUED,
    NOBODY,
    REDRIVEN,
    REJECTED,
    REPLAYED,
    SKIPPED,
    Evidence,
    HandledRange,
    Recipient,
)
from fanout.reconcile.findings import MAX_NAMED, Finding, Findings, Kind

LANES = ("direct", "batch")
"""The lanes that have accounts. `direct` includes the real-time lane. The retry lane's deliveries count for one of the two."""
UNNAMED = "(not named)"
"""Stands for the endpoint of a due delivery that no topic names, and for its event type unless the range has one type."""
EXPIRED = "(no longer in Kafka)"
"""Event type of a delivery whose event was not read, usually because Kafka no longer holds it."""
GRACE_MS = 3_600_000
"""Milliseconds, one hour. A retry entry is overdue from one hour after its expiry: a lane may stand still for a while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Conditions of a reconciliation: which receipts it judges, which topics still have all records, and facts about the job.

    A receipt is judged by comparing its counts with the outcomes in its range of offsets.
    """

    now_ms: int
    since_ms: int | None = None
    """Receipts written before this time are not judged. None: no receipt is too old."""
    until_ms: int
    """Receipts written after this time are not judged, because other records of their micro-batch may not have been read."""
    is_stopped: bool = False
    """True if the job is known to be stopped, so that no micro-batch is in flight."""
    max_wait_s: float = 86_400.0
    """Seconds that an event may wait for its batch: the longest `max_wait_s` of all endpoints."""
    from_first: bool = True
    """True: a lane must have handled each partition from its first record on; False: from the lane's first receipt on."""
    retries_complete: bool = True
    """True if the retries topic still has every record of the judged time."""
    rejected_complete: bool = True
    """True if the topic of rejected records still has every record of the judged time."""
    letters_complete: bool = True
    """True if the dead-letter topic still has every record of the judged time."""


@dataclass(slots=True)
class Counts:
    """Numbers of deliveries, by outcome."""

    delivered: int = 0
    pending: int = 0
    dead_lettered: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    """Deliveries that were due, and neither ended nor wait."""
    repeated: int = 0
    """Number of times that an endpoint accepted a delivery again."""
    replayed: int = 0
    """Accepted deliveries of replays. No other number includes them: they do not prove that a delivery was due."""

    @property
    def due(self) -> int:
        """Return the number of deliveries that were due."""
        return self.delivered + self.pending + self.dead_lettered + self.skipped.total() + self.lost

    def add(self, other: Counts) -> None:
        """Add the numbers of other deliveries."""
        self.delivered += other.delivered
        self.pending += other.pending
        self.dead_lettered += other.dead_lettered
        self.skipped += other.skipped
        self.lost += other.lost
        self.repeated += other.repeated
        self.replayed += other.replayed

    def document(self) -> dict[str, Any]:
        """Return `due` and the counts for JSON output, by the names of the fields."""
        return {
            "due": self.due,
            "delivered": self.delivered,
            "pending": self.pending,
            "dead_lettered": self.dead_lettered,
            "skipped": dict(sorted(self.skipped.items())),
            "lost": self.lost,
            "repeated": self.repeated,
            "replayed": self.replayed,
        }


class Group(NamedTuple):
    """Key by which deliveries are counted together."""

    lane: str
    event_type: str
    endpoint_id: str


@dataclass(slots=True)
class LaneAccount:
    """Numbers of one lane: records that its judged receipts count, records after these receipts, and outcomes of deliveries."""

    records: int = 0
    rejected: int = 0
    counts: Counts = field(default_factory=Counts)
    behind: int = 0
    """Records after the last judged receipt. In a partition without a judged receipt: all records that were read."""


@dataclass(slots=True)
class Account:
    """Counts and findings of a reconciliation."""

    lanes: dict[str, LaneAccount]
    groups: dict[Group, Counts] = field(default_factory=dict)
    findings: Findings = field(default_factory=Findings)

    @property
    def holds(self) -> bool:
        """Return True if there are no findings."""
        return not self.findings.by_kind

    def document(self) -> dict[str, Any]:
        """Return `holds`, `lanes`, `groups`, `findings_by_kind` and the kept `findings` by name, for JSON output."""
        return {
            "holds": self.holds,
            "lanes": {
                name: {"records": lane.records, "rejected": lane.rejected, "behind": lane.behind, **lane.counts.document()}
                for name, lane in self.lanes.items()
            },
            "groups": [group._asdict() | counts.document() for group, counts in sorted(self.groups.items())],
            "findings_by_kind": dict(self.findings.by_kind),
            "findings": [finding.document() for finding in self.findings.kept],
        }


def account(evidence: Evidence, terms: Terms) -> Account:
    """Return the account of the direct and of the batch lane (LANES), each only if there is evidence of it."""
    result = Account({lane: LaneAccount() for lane in LANES if evidence.has_lane(lane)})
    for place in evidence.places():
        walks = {lane: _Walk(lane, place, evidence, terms, result) for lane in result.lanes}
        for offset, recipient, states in evidence.statements(place):
            if recipient is NOBODY:
                for walk in walks.values():
                    walk.add_rejected(offset, states)
            elif recipient.lane in walks:
                walks[recipient.lane].add(offset, recipient, states)
        for walk in walks.values():
            walk.finish()
    for group, counts in result.groups.items():
        result.lanes[group.lane].counts.add(counts)
    return result


class _Walk:
    """Account for one partition and one lane. Call `add` and `add_rejected` in the order of offsets, then `finish`."""

    def __init__(self, lane: str, place: Place, evidence: Evidence, terms: Terms, result: Account) -> None:
        self._lane, self._place, self._evidence, self._terms, self._result = lane, place, evidence, terms, result
        receipts = evidence.ranges(lane, place)
        since_ms = terms.since_ms or 0
        self._effective = offset_receipts.effective(
            [handled for handled in receipts if since_ms <= handled.written_at_ms <= terms.until_ms]
        )
        self._last = max((handled.last for handled in receipts), default=-1)
        """Last offset of all receipts, including receipts that are not judged."""
        self._unfinished: list[int] = []
        """First and last offset, after `_last`, of deliveries that some topic names."""
        self._ranges = self._effective.ranges
        self._at = 0
        self._reset_range()
        self._account_records()

    def _reset_range(self) -> None:
        self._named_in_range = 0
        """Deliveries of the range for which some topic has a record."""
        self._rejected = self._rejected_in_one_lane = 0

    def _account_records(self) -> None:
        """Count the records of the partition. Find gaps, ranges with unread records, and ranges that were partly read again."""
        stored = self._evidence.events.get(self._place)
        of_lane = self._result.lanes[self._lane]
        if stored is not None:
            of_lane.behind += stored.count(
                max((handled.last for handled in self._ranges), default=stored.first - 1) + 1, stored.end
            )
        if not self._ranges:
            return
        begin = self._ranges[0].first
        if self._terms.from_first and stored is not None:
            begin = min(begin, stored.first)
        for gap in offset_receipts.gaps(self._effective, begin):
            expired_until = gap.last if stored is None else min(gap.last, stored.first - 1)
            if gap.first <= expired_until:
                self._find(Kind.EXPIRED, gap.first, expired_until, expired_until - gap.first + 1)
            if stored is not None and (records := stored.count(gap.first, gap.last)):
                self._find(Kind.UNHANDLED, max(gap.first, stored.first), gap.last, records)
        for handled in self._effective.partly_read_again:
            self._find(Kind.READ_AGAIN, handled.first, handled.last, handled.records)
        for handled in self._ranges:
            of_lane.records += handled.records
            of_lane.rejected += handled.rejected
            # Fewer records are not a finding: a compacted topic drops some later.
            if (
                stored is not None
                and handled.first >= stored.first
                and (missed := stored.count(handled.first, handled.last) - handled.records) > 0
            ):
                self._find(Kind.UNREAD, handled.first, handled.last, missed)

    def add_rejected(self, offset: int, states: list[int]) -> None:
        """Count a rejected record, if its offset is in a judged range. `states` are its states in the topics."""
        if self._is_in_range(offset):
            if REJECTED in states:
                self._rejected += 1
            else:
                self._rejected_in_one_lane += 1

    def add(self, offset: int, recipient: Recipient, states: list[int]) -> None:
        """Count one delivery by all its states, if its offset is in a judged range. Always count acceptances of replays."""
        if REPLAYED in states:
            self._add_replayed(offset, recipient, states.count(REPLAYED))
            states = [state for state in states if state != REPLAYED]
        if states:
            self._add_due(offset, recipient, states)

    def _add_due(self, offset: int, recipient: Recipient, states: list[int]) -> None:
        if not self._is_in_range(offset):
            if offset > self._last:
                self._unfinished = [*self._unfinished[:1], offset]
            return
        event_type = self._evidence.type_at(self._place, offset)
        if event_type == "":
            self._find(Kind.NO_EVENT, offset, offset, 1, recipient)
        self._named_in_range += 1
        counts = self._counts(event_type or EXPIRED, recipient.endpoint_id)
        if states == [DELIVERED]:  # the usual case
            counts.delivered += 1
            return
        outcomes = {outcome for state in states if (outcome := _outcome(state, is_redriven=REDRIVEN in states))}
        if len(outcomes) > 1:
            self._find(Kind.CONTRADICTION, offset, offset, 1, recipient, detail=f"It was {' and '.join(sorted(outcomes))}")
        if DELIVERED in states:
            counts.delivered += 1
            counts.repeated += states.count(DELIVERED) - 1
        elif "dead-lettered" in outcomes:
            counts.dead_lettered += 1
            if DEAD not in states and self._terms.letters_complete:
                self._find(Kind.NO_LETTER, offset, offset, 1, recipient)
        elif "skipped" in outcomes:
            counts.skipped[self._evidence.reasons[next(state for state in states if state >= SKIPPED) - SKIPPED]] += 1
        else:
            self._add_waiting(offset, recipient, states, counts)

    def _add_replayed(self, offset: int, recipient: Recipient, total: int) -> None:
        """Count acceptances of replays. A replay may include deliveries that were not due, and events that no lane has read."""
        self._counts(self._evidence.type_at(self._place, offset) or EXPIRED, recipient.endpoint_id).replayed += total

    def _add_waiting(self, offset: int, recipient: Recipient, states: list[int], counts: Counts) -> None:
        """Count a delivery without an outcome: it waits in the retry lane, or it is lost.

        If the retries topic or the dead-letter topic lacks records of the judged time, the delivery counts as pending.
        """
        highest = max(states)
        if highest >= ENQUEUED:
            counts.pending += 1
            if self._evidence.expires_ms(highest) + GRACE_MS < self._terms.now_ms:
                self._find(Kind.OVERDUE, offset, offset, 1, recipient)
        elif self._terms.retries_complete and self._terms.letters_complete:
            counts.lost += 1
            self._find(Kind.NOT_HANDED_OVER, offset, offset, 1, recipient)
        else:
            counts.pending += 1

    def finish(self) -> None:
        """Judge the remaining ranges. If the job is stopped, report deliveries of records after the last receipt."""
        while self._at < len(self._ranges):
            self._judge(self._ranges[self._at])
        if self._unfinished and self._terms.is_stopped:
            first, last = self._unfinished[0], self._unfinished[-1]
            self._find(Kind.UNFINISHED, first, last, last - first + 1)

    def _is_in_range(self, offset: int) -> bool:
        while self._at < len(self._ranges) and self._ranges[self._at].last < offset:
            self._judge(self._ranges[self._at])
        return self._at < len(self._ranges) and self._ranges[self._at].first <= offset

    def _judge(self, handled: HandledRange) -> None:
        """Compare a receipt with the outcomes in its range, and go to the next range."""
        more = handled.rejected - self._rejected - self._rejected_in_one_lane
        if more > 0 and self._terms.rejected_complete:
            self._find(Kind.REJECTED_UNTOLD, handled.first, handled.last, more)
        if (fewer := self._rejected - handled.rejected) > 0:
            self._find(Kind.REJECTED_UNCOUNTED, handled.first, handled.last, fewer)
        left = handled.due - self._named_in_range
        if left > 0:
            self._judge_unnamed(handled, left)
        elif -left > handled.surplus_allowed:
            self._find(Kind.SURPLUS, handled.first, handled.last, -left)
        self._at += 1
        self._reset_range()

    def _judge_unnamed(self, handled: HandledRange, left: int) -> None:
        """Judge `left` due deliveries that no topic names: in the batch lane they wait, perhaps overdue; else they are lost."""
        is_late = handled.written_at_ms + self._terms.max_wait_s * 1000 < self._terms.now_ms
        kind = Kind.OVERDUE if self._lane == "batch" else Kind.LOST
        events = {offset: self._evidence.type_at(self._place, offset) for offset in range(handled.first, handled.last + 1)}
        if kind is Kind.LOST or is_late:
            missing = self._missing(handled, events) if self._result.findings.has_room else []
            if len(missing) == left <= MAX_NAMED:
                for offset, recipient in missing:
                    self._find(kind, offset, offset, 1, recipient)
            else:
                self._find(kind, handled.first, handled.last, left, detail=_among(missing))
        types = {event_type for event_type in events.values() if event_type != ""}
        counts = self._counts((types.pop() or EXPIRED) if len(types) == 1 else UNNAMED, UNNAMED)
        if kind is Kind.LOST:
            counts.lost += left
        else:
            counts.pending += left

    def _missing(self, handled: HandledRange, events: Mapping[int, str | None]) -> list[tuple[int, Recipient]]:
        """Return the deliveries that are probably missing in a range.

        If one event of the range was due to a recipient, the other events of its type in the range probably were, too. If no
        topic names a recipient of this lane for the range, return all events of the range that were read, with NOBODY.
        """
        named: dict[Recipient, set[int]] = {}
        for offset, recipient, _ in self._evidence.statements(self._place, handled.first, handled.last):
            if recipient.lane == self._lane:
                named.setdefault(recipient, set()).add(offset)
        types = {recipient: {events.get(offset) for offset in offsets} for recipient, offsets in named.items()}
        missing = [
            (offset, recipient)
            for recipient, offsets in named.items()
            for offset, event_type in events.items()
            if event_type and offset not in offsets and event_type in types[recipient]
        ]
        if not named:  # only the offsets are known
            missing = [(offset, NOBODY) for offset, event_type in events.items() if event_type]
        return sorted(missing)

    def _counts(self, event_type: str, endpoint_id: str) -> Counts:
        group = Group(self._lane, event_type, endpoint_id)
        counts = self._result.groups.get(group)
        if counts is None:
            counts = self._result.groups[group] = Counts()
        return counts

    def _find(self, kind: Kind, first: int, last: int, total: int, recipient: Recipient = NOBODY, *, detail: str = "") -> None:
        found = Finding(
            kind, self._lane, self._place, first, last, total, recipient.subscription_id, recipient.endpoint_id, detail
        )
        self._result.findings.add(found)


def _outcome(state: int, *, is_redriven: bool) -> str | None:
    """Return the outcome that the state of a delivery stands for; None: the state is no outcome.

    For a delivery that was redriven, DEAD_IN_LOG is no outcome: the attempt after the redrive decides.
    """
    if state == DELIVERED:
        return "delivered"
    if state == DEAD or (state == DEAD_IN_LOG and not is_redriven):
        return "dead-lettered"
    return "skipped" if SKIPPED <= state < ENQUEUED else None


def _among(missing: Iterable[tuple[int, Recipient]]) -> str:
    named = [f"{offset} {recipient.subscription_id}".strip() for offset, recipient in missing]
    more = f" and {len(named) - MAX_NAMED} more" if len(named) > MAX_NAMED else ""
    return f"Probably among: {', '.join(named[:MAX_NAMED])}{more}" if named else ""
