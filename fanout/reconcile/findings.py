"""Define the findings of a reconciliation, and the meaning of each kind. Pure.

Runs in `fanout` commands, the tests and the load tests.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fanout.kafka.places import Place

MAX_KEPT = 1000
"""Maximum findings that are kept in full. All findings are counted."""
MAX_NAMED = 10
"""Maximum deliveries of one receipt that are named in findings."""


class Kind(enum.StrEnum):
    """The kinds of contradictions in the topics. MEANINGS explains each to the operator."""

    UNHANDLED = "unhandled"
    EXPIRED = "expired"
    UNFINISHED = "unfinished"
    UNREAD = "unread"
    READ_AGAIN = "read_again"
    LOST = "lost"
    NOT_HANDED_OVER = "not_handed_over"
    NO_LETTER = "no_letter"
    SURPLUS = "surplus"
    NO_EVENT = "no_event"
    CONTRADICTION = "contradiction"
    REJECTED_UNTOLD = "rejected_untold"
    REJECTED_UNCOUNTED = "rejected_uncounted"
    OVERDUE = "overdue"


MEANINGS = {
    Kind.UNHANDLED: (
        "the lane handled later records, and no receipt covers these: the lane skipped them, or their receipt is gone from the "
        "attempts topic. The lane does not read them again. Look up their deliveries, and publish each event without a "
        "delivery again"
    ),
    Kind.EXPIRED: (
        "no receipt covers these offsets, and Kafka no longer holds them: their records expired before the lane read them, or "
        "they are markers of transactions. The lane delivers no event of them. If the producers use no transactions, lengthen "
        "the topic's retention, and ask the producers for the events"
    ),
    Kind.UNFINISHED: (
        "deliveries ended for records after the last receipt, and --settle 0s says that the job is stopped: a micro-batch was "
        "interrupted. Start the job: it runs the micro-batch again, and repeats only deliveries without a recorded outcome"
    ),
    Kind.UNREAD: (
        "Kafka holds more records in this range than the lane read: the lane skipped some, and does not read them again. "
        "Look up their deliveries, and publish each event without a delivery again"
    ),
    Kind.READ_AGAIN: (
        "the lane was reset to an older checkpoint and has read only a part of this range again: the number of due deliveries "
        "is unknown until the lane has passed the range. Wait, and reconcile again"
    ),
    Kind.LOST: (
        "more deliveries were due than have ended or wait: outcomes are missing. If a micro-batch was interrupted, "
        "start the job: it runs again. If the job has run since, these deliveries are lost: publish the events again"
    ),
    Kind.NOT_HANDED_OVER: (
        "the attempts topic says failed or postponed, and the delivery is neither in the retries topic nor a dead letter. If a "
        "micro-batch was interrupted, start the job: it runs again. If the job has run since, the delivery is lost: publish "
        "the event again"
    ),
    Kind.NO_LETTER: (
        "the attempts topic says given up, and the dead-letter topic has no dead letter: it was lost, or somebody removed it. "
        "A redrive cannot find it: publish the event again"
    ),
    Kind.SURPLUS: (
        "more deliveries ended than were due: a micro-batch ran twice and the registry changed in between, or an endpoint got "
        "an event that was not due to it. Nothing is lost; compare the subscription's changes in the audit log"
    ),
    Kind.NO_EVENT: (
        "a delivery ended for a record that is missing, or is not an event by the present `source` settings: these settings "
        "changed since, an older version of fanout read the record as an event, or another program writes to one of the "
        "topics. Run the command with the job's settings, or find that program"
    ),
    Kind.CONTRADICTION: (
        "the delivery has two outcomes: a micro-batch was interrupted, ran again and ended it differently. The customer may "
        "have the event. There is nothing to repair; a redrive would send it again with the same `webhook-id`"
    ),
    Kind.REJECTED_UNTOLD: (
        "the lane rejected more records than the topic of rejected records holds: these were lost, or somebody removed them. "
        "You cannot look them up. No customer is affected, so there is nothing to repair"
    ),
    Kind.REJECTED_UNCOUNTED: (
        "the topic of rejected records holds more records than the lane rejected: another program writes to this topic. Find "
        "that program. No customer is affected"
    ),
    Kind.OVERDUE: (
        "the delivery waits longer than its endpoint permits. If the lane stands still, run `fanout doctor` and see the job's "
        "log: the lane continues with the delivery. If the lane runs without lag, its state has lost the delivery: publish the "
        "event again"
    ),
}
"""For each kind of finding: its meaning, the reaction of the platform, and the next step of the operator."""


class Finding(NamedTuple):
    """A contradiction in the topics about one lane and the records in one range of offsets."""

    kind: Kind
    lane: str
    place: Place
    first: int
    last: int
    total: int
    """Number of records or deliveries, at offsets from `first` to `last`, that the finding is about. Both offsets are
    included."""
    subscription_id: str = ""
    endpoint_id: str = ""
    detail: str = ""
    """A further sentence for the operator, without its full stop; empty: none."""

    def document(self) -> dict[str, Any]:
        """Return the finding as a dictionary for JSON output.

        The keys are `kind`, `lane`, `topic`, `partition`, `first_offset`, `last_offset`, `count` (the field `total`),
        `subscription_id`, `endpoint_id` and `text`. An id that is empty becomes None.
        """
        return {
            "kind": self.kind.value,
            "lane": self.lane,
            "topic": self.place.topic,
            "partition": self.place.partition,
            "first_offset": self.first,
            "last_offset": self.last,
            "count": self.total,
            "subscription_id": self.subscription_id or None,
            "endpoint_id": self.endpoint_id or None,
            "text": self.text(),
        }

    def text(self) -> str:
        """Return the finding as text for an operator."""
        offsets = f"{self.first}" if self.first == self.last else f"{self.first}–{self.last}"
        recipient = f", subscription {self.subscription_id} to {self.endpoint_id}" if self.subscription_id else ""
        count = f" ({self.total})" if self.total > 1 else ""
        detail = f" {self.detail}." if self.detail else ""
        place = f"{self.place.topic}:{self.place.partition}:{offsets}"
        return f"{self.lane}, {place}{recipient}{count}: {MEANINGS[self.kind]}.{detail}"


@dataclass(slots=True)
class Findings:
    """The number of findings of each kind, and the first MAX_KEPT findings in full."""

    kept: list[Finding] = field(default_factory=list)
    by_kind: Counter[str] = field(default_factory=Counter)

    @property
    def has_room(self) -> bool:
        """Return True if one more finding would be kept."""
        return len(self.kept) < MAX_KEPT

    def add(self, finding: Finding) -> None:
        """Count a finding, and keep it unless MAX_KEPT findings are kept already."""
        self.by_kind[finding.kind.value] += 1
        if self.has_room:
            self.kept.append(finding)
