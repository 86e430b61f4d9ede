"""Name what does not add up, and say what it may mean. Pure.

Runs in the command and the tests.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fanout.kafka.places import Place

MAX_KEPT = 1000
"""So many are kept by name; all are counted."""
MAX_NAMED = 10
"""So many deliveries of one run are named."""


class Kind(enum.StrEnum):
    """What can be wrong."""

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
        "no receipt covers these records, though the lane has handled later ones: they were passed over, or the row with the "
        "receipt is gone from the attempts topic"
    ),
    Kind.EXPIRED: (
        "no receipt covers these offsets, and Kafka holds them no more: records that expired unread are lost to the lane; "
        "marks of transactions look the same"
    ),
    Kind.UNFINISHED: (
        "deliveries have ended of records behind the last receipt, and the job is said to be stopped: a micro-batch was cut "
        "off. It runs again when the job starts, and what it had not written down is sent again"
    ),
    Kind.UNREAD: "Kafka holds more records in this run than the lane has read: some were passed over",
    Kind.READ_AGAIN: (
        "the lane was sent back and has read a part of this run again: what was due in it cannot be told before the lane has "
        "read on"
    ),
    Kind.LOST: (
        "more was due than has ended or waits: a row with an outcome is missing. The micro-batch was cut off while it wrote "
        "(then it runs again when the job starts), or deliveries are lost"
    ),
    Kind.NOT_HANDED_OVER: (
        "by the log it failed or was postponed, and neither does it wait in the retries topic nor is there a dead letter: "
        "it was lost between two rows, or the micro-batch was cut off while it wrote"
    ),
    Kind.NO_LETTER: "by the log it was given up, and its dead letter is not in its topic: it was lost, or removed there",
    Kind.SURPLUS: (
        "more has ended than was due: the micro-batch ran twice and the registry changed in between, or something was "
        "delivered that was not due"
    ),
    Kind.NO_EVENT: (
        "a delivery has ended of a record that is no event, or is not there: settings of `source` have changed since, or "
        "somebody else has written to a topic"
    ),
    Kind.CONTRADICTION: (
        "it has ended in two ways: a micro-batch that had been cut off ran again and came to another end. The customer may "
        "have it, and a redrive would send it again with the same `webhook-id`"
    ),
    Kind.REJECTED_UNTOLD: (
        "the lane has rejected more records than are in the topic of rejected records: the operator was not told"
    ),
    Kind.REJECTED_UNCOUNTED: "more records are in the topic of rejected records than the lane says it has rejected",
    Kind.OVERDUE: "it waits for longer than anything may: it is lost in the lane's state, or the lane stands still",
}


class Finding(NamedTuple):
    """One thing that does not add up."""

    kind: Kind
    lane: str
    place: Place
    first: int
    last: int
    many: int
    subscription_id: str = ""
    endpoint_id: str = ""
    detail: str = ""

    def document(self) -> dict[str, Any]:
        """Return it for machines."""
        return {
            "kind": self.kind.value,
            "lane": self.lane,
            "topic": self.place.topic,
            "partition": self.place.partition,
            "first_offset": self.first,
            "last_offset": self.last,
            "count": self.many,
            "subscription_id": self.subscription_id or None,
            "endpoint_id": self.endpoint_id or None,
            "text": self.text(),
        }

    def text(self) -> str:
        """Return it as a sentence."""
        offsets = f"{self.first}" if self.first == self.last else f"{self.first}–{self.last}"
        whose = f", subscription {self.subscription_id} to {self.endpoint_id}" if self.subscription_id else ""
        many = f" ({self.many})" if self.many > 1 else ""
        detail = f" {self.detail}." if self.detail else ""
        return f"{self.lane}, {self.place.topic}:{self.place.partition}:{offsets}{whose}{many}: {MEANINGS[self.kind]}.{detail}"


@dataclass(slots=True)
class Findings:
    """What was found: all counted, the first MAX_KEPT kept."""

    kept: list[Finding] = field(default_factory=list)
    by_kind: Counter[str] = field(default_factory=Counter)

    @property
    def has_room(self) -> bool:
        """Tell whether one more would be kept."""
        return len(self.kept) < MAX_KEPT

    def add(self, finding: Finding) -> None:
        self.by_kind[finding.kind.value] += 1
        if self.has_room:
            self.kept.append(finding)
