"""Prove, from what the topics say, that in = delivered + pending + dead-lettered + skipped; name what does not add up. Pure.

Runs in the command and the tests. What can be proved:

* Each record of an event topic lies in a run that a receipt of the lane covers, or behind the last of them.
* A receipt says how many deliveries of its run were due. So many have ended, by the log and the dead letters, or wait.
* What waits in the retry lane is named in the retries topic, with the time until which it may. What waits for its batch is
  named nowhere: it is what the receipt says was due, less all that is named, and may wait for as long as the longest
  `max_wait_s`.

Not provable from topics: that the registry was read right, and that an endpoint has what it accepted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fanout.kafka.places import Place
from fanout.reconcile import evidence, offset_receipts
from fanout.reconcile.evidence import (
    DEAD,
    DEAD_IN_LOG,
    DELIVERED,
    HANDED,
    REDRIVEN,
    REJECTED,
    REPLAYED,
    SKIPPED,
    Evidence,
    Run,
    Whose,
)
from fanout.reconcile.findings import MAX_NAMED, Finding, Findings, Kind

LANES = ("direct", "batch")
UNNAMED = "(not named)"
EXPIRED = "(no longer in Kafka)"
LATE_MS = 3_600_000
"""What has to end by a time has an hour more: a lane that stood still for some minutes has lost nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """By what is judged."""

    now_ms: int
    since_ms: int | None = None
    """Receipts that were written before are not judged; None: all are."""
    until_ms: int
    """Receipts that were written later are not judged: rows beside them may not have been there yet."""
    is_stopped: bool = False
    """Whether the job is known not to run: then nothing is under way."""
    max_wait_s: float = 86_400.0
    """For so long may an event wait for its batch."""
    from_first: bool = True
    """Whether a lane must have handled a partition from its first record on; else from its first receipt on."""
    retries_known: bool = True
    """Whether all that was handed to the retry lane meanwhile still stands in the retries topic."""
    rejected_known: bool = True
    """Whether all records that were rejected in the time still stand in theirs."""
    letters_known: bool = True
    """Whether all dead letters of the time still stand in their topic."""


@dataclass(slots=True)
class Counts:
    """How deliveries ended."""

    delivered: int = 0
    pending: int = 0
    dead_lettered: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    """What is due and neither has ended nor waits."""
    repeated: int = 0
    """Acceptances beyond a delivery's first."""
    replayed: int = 0
    """Acceptances that somebody asked for, beside all these: whatever had become of the delivery, or had it not been due."""

    @property
    def due(self) -> int:
        """Return how many there are."""
        return self.delivered + self.pending + self.dead_lettered + self.skipped.total() + self.lost

    def add(self, other: Counts) -> None:
        self.delivered += other.delivered
        self.pending += other.pending
        self.dead_lettered += other.dead_lettered
        self.skipped += other.skipped
        self.lost += other.lost
        self.repeated += other.repeated
        self.replayed += other.replayed

    def document(self) -> dict[str, Any]:
        """Return them for machines."""
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
    """What is accounted for together."""

    lane: str
    event_type: str
    endpoint_id: str


@dataclass(slots=True)
class LaneAccount:
    """What a lane has read, and how all that was due in it ended."""

    records: int = 0
    rejected: int = 0
    counts: Counts = field(default_factory=Counts)
    behind: int = 0
    """Records that it has not handled, or only just."""


@dataclass(slots=True)
class Account:
    """How everything adds up."""

    lanes: dict[str, LaneAccount]
    groups: dict[Group, Counts] = field(default_factory=dict)
    findings: Findings = field(default_factory=Findings)

    @property
    def holds(self) -> bool:
        """Tell whether everything adds up."""
        return not self.findings.by_kind

    def document(self) -> dict[str, Any]:
        """Return the account for machines."""
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


def account(told: Evidence, terms: Terms) -> Account:
    """Return the account of all lanes that have ever run. One partition of an event topic after the other."""
    result = Account({lane: LaneAccount() for lane in LANES if told.has(lane)})
    for place in told.places():
        walks = {lane: _Walk(lane, place, told, terms, result) for lane in result.lanes}
        for offset, whose, states in told.said(place):
            if whose is evidence.NOBODY:
                for walk in walks.values():
                    walk.take_rejected(offset, states)
            elif whose.lane in walks:
                walks[whose.lane].take(offset, whose, states)
        for walk in walks.values():
            walk.finish()
    for group, counts in result.groups.items():
        result.lanes[group.lane].counts.add(counts)
    return result


class _Walk:
    """Go through one partition in the order of its offsets, for one lane."""

    def __init__(self, lane: str, place: Place, told: Evidence, terms: Terms, result: Account) -> None:
        self._lane, self._place, self._told, self._terms, self._result = lane, place, told, terms, result
        receipts = told.runs(lane, place)
        since_ms = terms.since_ms or 0
        self._found = offset_receipts.counted([run for run in receipts if since_ms <= run.written_at_ms <= terms.until_ms])
        self._last = max((run.last for run in receipts), default=-1)
        """Of all receipts, also those that are not judged."""
        self._unfinished: list[int] = []
        """First offset and last, of what has ended behind it."""
        self._runs = self._found.runs
        self._at = 0
        self._begin()
        self._read_on()

    def _begin(self) -> None:
        """Begin a run."""
        self._of_run = 0
        """What is named of the run: ended, waiting, or lost."""
        self._rejected = self._rejected_by_a_lane = 0

    def _read_on(self) -> None:
        """Account for the records, before what came of them."""
        held = self._told.events.get(self._place)
        of_lane = self._result.lanes[self._lane]
        if held is not None:
            of_lane.behind += held.count(max((run.last for run in self._runs), default=held.first - 1) + 1, held.end)
        if not self._runs:
            return
        begin = self._runs[0].first
        if self._terms.from_first and held is not None:
            begin = min(begin, held.first)
        for gap in offset_receipts.gaps(self._found, begin):
            expired_until = gap.last if held is None else min(gap.last, held.first - 1)
            if gap.first <= expired_until:
                self._find(Kind.EXPIRED, gap.first, expired_until, expired_until - gap.first + 1)
            if held is not None and (records := held.count(gap.first, gap.last)):
                self._find(Kind.UNHANDLED, max(gap.first, held.first), gap.last, records)
        for run in self._found.halves:
            self._find(Kind.READ_AGAIN, run.first, run.last, run.records)
        for run in self._runs:
            of_lane.records += run.records
            of_lane.rejected += run.rejected
            # Fewer are no finding: a compacted topic drops some later.
            if held is not None and run.first >= held.first and (missed := held.count(run.first, run.last) - run.records) > 0:
                self._find(Kind.UNREAD, run.first, run.last, missed)

    def take_rejected(self, offset: int, states: list[int]) -> None:
        if self._is_in_run(offset):
            if REJECTED in states:
                self._rejected += 1
            else:
                self._rejected_by_a_lane += 1

    def take(self, offset: int, whose: Whose, states: list[int]) -> None:
        """Take all that is said of one delivery. What replays have brought proves nothing of what was due."""
        if REPLAYED in states:
            self._replayed(offset, whose, states.count(REPLAYED))
            states = [state for state in states if state != REPLAYED]
        if states:
            self._take_due(offset, whose, states)

    def _take_due(self, offset: int, whose: Whose, states: list[int]) -> None:
        if not self._is_in_run(offset):
            if offset > self._last:
                self._unfinished = [*self._unfinished[:1], offset]
            return
        event_type = self._told.type_at(self._place, offset)
        if event_type == "":
            self._find(Kind.NO_EVENT, offset, offset, 1, whose)
        self._of_run += 1
        counts = self._counts(event_type or EXPIRED, whose.endpoint_id)
        if states == [DELIVERED]:  # the usual case
            counts.delivered += 1
            return
        ways = {way for state in states if (way := _way(state, is_redriven=REDRIVEN in states))}
        if len(ways) > 1:
            self._find(Kind.CONTRADICTION, offset, offset, 1, whose, detail=f"It was {' and '.join(sorted(ways))}")
        if DELIVERED in states:
            counts.delivered += 1
            counts.repeated += states.count(DELIVERED) - 1
        elif "dead-lettered" in ways:
            counts.dead_lettered += 1
            if DEAD not in states and self._terms.letters_known:
                self._find(Kind.NO_LETTER, offset, offset, 1, whose)
        elif "skipped" in ways:
            counts.skipped[self._told.reasons[next(state for state in states if state >= SKIPPED) - SKIPPED]] += 1
        else:
            self._wait(offset, whose, states, counts)

    def _replayed(self, offset: int, whose: Whose, many: int) -> None:
        """Count what was asked for again. A replay need not ask for what was due, nor for what a lane has come to."""
        self._counts(self._told.type_at(self._place, offset) or EXPIRED, whose.endpoint_id).replayed += many

    def _wait(self, offset: int, whose: Whose, states: list[int], counts: Counts) -> None:
        """Take what has not ended."""
        handed = max(states)
        if handed >= HANDED:
            counts.pending += 1
            if self._told.expires_ms(handed) + LATE_MS < self._terms.now_ms:
                self._find(Kind.OVERDUE, offset, offset, 1, whose)
        elif self._terms.retries_known and self._terms.letters_known:
            counts.lost += 1
            self._find(Kind.NOT_HANDED_OVER, offset, offset, 1, whose)
        else:
            counts.pending += 1

    def finish(self) -> None:
        """Judge the runs that are left."""
        while self._at < len(self._runs):
            self._judge(self._runs[self._at])
        if self._unfinished and self._terms.is_stopped:
            first, last = self._unfinished[0], self._unfinished[-1]
            self._find(Kind.UNFINISHED, first, last, last - first + 1)

    def _is_in_run(self, offset: int) -> bool:
        while self._at < len(self._runs) and self._runs[self._at].last < offset:
            self._judge(self._runs[self._at])
        return self._at < len(self._runs) and self._runs[self._at].first <= offset

    def _judge(self, run: Run) -> None:
        """Hold what a receipt says against what came of its run; go on to the next."""
        more = run.rejected - self._rejected - self._rejected_by_a_lane
        if more > 0 and self._terms.rejected_known:
            self._find(Kind.REJECTED_UNTOLD, run.first, run.last, more)
        if (fewer := self._rejected - run.rejected) > 0:
            self._find(Kind.REJECTED_UNCOUNTED, run.first, run.last, fewer)
        left = run.due - self._of_run
        if left > 0:
            self._judge_unnamed(run, left)
        elif -left > run.at_most:
            self._find(Kind.SURPLUS, run.first, run.last, -left)
        self._at += 1
        self._begin()

    def _judge_unnamed(self, run: Run, left: int) -> None:
        """Judge what was due in a run and is named nowhere. Only in the batch lane something may wait so."""
        is_late = run.written_at_ms + self._terms.max_wait_s * 1000 < self._terms.now_ms
        kind = Kind.OVERDUE if self._lane == "batch" else Kind.LOST
        events = {offset: self._told.type_at(self._place, offset) for offset in range(run.first, run.last + 1)}
        if kind is Kind.LOST or is_late:
            missing = self._missing(run, events) if self._result.findings.has_room else []
            if len(missing) == left <= MAX_NAMED:
                for offset, whose in missing:
                    self._find(kind, offset, offset, 1, whose)
            else:
                self._find(kind, run.first, run.last, left, detail=_among(missing))
        types = {event_type for event_type in events.values() if event_type != ""}
        counts = self._counts((types.pop() or EXPIRED) if len(types) == 1 else UNNAMED, UNNAMED)
        if kind is Kind.LOST:
            counts.lost += left
        else:
            counts.pending += left

    def _missing(self, run: Run, events: Mapping[int, str | None]) -> list[tuple[int, Whose]]:
        """Return what might be missing in a run.

        To whom other events of the same type are due in it, this one is probably due as well.
        """
        named: dict[Whose, set[int]] = {}
        for offset, whose, _ in self._told.said(self._place, run.first, run.last):
            if whose.lane == self._lane:
                named.setdefault(whose, set()).add(offset)
        types = {whose: {events.get(offset) for offset in offsets} for whose, offsets in named.items()}
        missing = [
            (offset, whose)
            for whose, offsets in named.items()
            for offset, event_type in events.items()
            if event_type and offset not in offsets and event_type in types[whose]
        ]
        if not named:  # then all that is known is the offset
            missing = [(offset, evidence.NOBODY) for offset, event_type in events.items() if event_type]
        return sorted(missing)

    def _counts(self, event_type: str, endpoint_id: str) -> Counts:
        group = Group(self._lane, event_type, endpoint_id)
        counts = self._result.groups.get(group)
        if counts is None:
            counts = self._result.groups[group] = Counts()
        return counts

    def _find(self, kind: Kind, first: int, last: int, many: int, whose: Whose = evidence.NOBODY, *, detail: str = "") -> None:
        found = Finding(kind, self._lane, self._place, first, last, many, whose.subscription_id, whose.endpoint_id, detail)
        self._result.findings.add(found)


def _way(state: int, *, is_redriven: bool) -> str | None:
    """Return in which way a delivery has ended by this; None: in none."""
    if state == DELIVERED:
        return "delivered"
    if state == DEAD or (state == DEAD_IN_LOG and not is_redriven):
        return "dead-lettered"
    return "skipped" if SKIPPED <= state < HANDED else None


def _among(missing: Iterable[tuple[int, Whose]]) -> str:
    named = [f"{offset} {whose.subscription_id}".strip() for offset, whose in missing]
    more = f" and {len(named) - MAX_NAMED} more" if len(named) > MAX_NAMED else ""
    return f"Probably among: {', '.join(named[:MAX_NAMED])}{more}" if named else ""
