"""Read what the job wrote about its work: the delivery log, the dead letters, the rejected events.

Runs in the command and the tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import confluent_kafka
import orjson

from delivery import kafka_options, settings


class Place(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class Due(NamedTuple):
    """A delivery, by where its event is in Kafka: what the entries of both lanes tell of it."""

    topic: str
    partition: int
    offset: int
    subscription_id: str


@dataclass(slots=True)
class Ledger:
    """Everything that has been read so far."""

    attempts: int = 0
    """Requests: that of a batch is one."""
    delivered: dict[Due, float] = field(default_factory=dict)
    """When the first request with it was accepted, milliseconds since the epoch. What the answer to a batch rejects is a dead
    letter besides."""
    dead_letters: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    """By event id and subscription id."""
    skipped: dict[Due, str] = field(default_factory=dict)
    postponed: dict[Due, str] = field(default_factory=dict)
    """What was handed to the retry lane unattempted, with the reason. What was attempted before has its attempts instead."""
    redriven: dict[Due, int] = field(default_factory=dict)
    """Until when what was given up is no dead letter any more: `dead_lettered_at_ms` of the letter that was redriven."""
    batches: dict[str, str] = field(default_factory=dict)
    """Those that were sent, by `webhook-id`: why each left."""
    rejected: dict[tuple[str, int, int], dict[str, Any]] = field(default_factory=dict)
    """By topic, partition and offset: each lane reads every record, and says so of one that is no event."""
    receipts: dict[tuple[str, Place], list[dict[str, Any]]] = field(default_factory=dict)
    """By lane and place."""

    def handled_until(self, lane: str) -> dict[Place, int]:
        """Return the last offset of each partition that a lane has handled."""
        return {
            place: max(receipt["last_offset"] for receipt in receipts)
            for (name, place), receipts in self.receipts.items()
            if name == lane
        }

    def revision_at(self, lane: str, place: Place, offset: int) -> int | None:
        """Return the registry's revision by which a lane last routed a record, or None when it did not."""
        for receipt in reversed(self.receipts.get((lane, place), ())):
            if receipt["first_offset"] <= offset <= receipt["last_offset"]:
                return int(receipt["revision"])
        return None

    def dead(self) -> set[Due]:
        """Return what was given up, and not redriven since."""
        letters = {_due(letter): letter for letter in self.dead_letters.values()}
        return {due for due, letter in letters.items() if letter.get("dead_lettered_at_ms", 0) > self.redriven.get(due, -1)}

    def ended(self) -> set[Due]:
        """Return what was delivered, given up or skipped."""
        return self.delivered.keys() | self.skipped.keys() | self.dead()

    def pending(self) -> int:
        """Return how many deliveries are due, by the lanes' own account, and have not ended.

        They wait for their batch, or in the retry lane.
        """
        # A micro-batch that runs again says the same of the same offsets.
        due: dict[tuple[str, Place, int], int] = {}
        for (lane, place), receipts in self.receipts.items():
            due |= {(lane, place, receipt["first_offset"]): receipt["due"] for receipt in receipts}
        return sum(due.values()) - len(self.ended())

    def take(self, kind: str, entry: dict[str, Any]) -> None:
        """Add one row; `kind` is the topic's role: attempts, dead_letters or rejected."""
        if kind == "rejected":
            self.rejected[entry["topic"], entry["partition"], entry["offset"]] = entry
        elif kind == "dead_letters":
            self.dead_letters[entry["event_id"], entry["subscription_id"]] = entry
        elif entry["kind"] == "receipt":
            self.receipts.setdefault((entry["lane"], Place(entry["topic"], entry["partition"])), []).append(entry)
        else:
            for logged in entry["entries"]:
                self._take_outcome(logged)

    def _take_outcome(self, entry: dict[str, Any]) -> None:
        """Take an entry about one delivery, or about a batch of them."""
        kind = entry["kind"].removeprefix("batch_")
        is_batch = kind != entry["kind"]
        deliveries = of_batch(entry["offsets"]) if is_batch else (_due(entry),)
        if kind == "skipped":
            self.skipped |= dict.fromkeys(deliveries, entry["reason"])
        elif kind == "postponed":
            self.postponed |= dict.fromkeys(deliveries, entry["reason"])
        elif kind == "redriven":
            self.redriven |= dict.fromkeys(deliveries, entry["dead_lettered_at_ms"])
        elif kind == "attempt":
            self.attempts += 1
            if is_batch:
                self.batches[entry["webhook_id"]] = entry["left_by"]
            if entry["error_class"] is None:
                for due in deliveries:
                    self.delivered.setdefault(due, entry["started_at_ms"] + entry["duration_ms"])


def _due(entry: dict[str, Any]) -> Due:
    return Due(entry["topic"], entry["partition"], entry["offset"], entry["subscription_id"])


def of_batch(offsets: dict[str, dict[str, dict[str, list[int]]]]) -> Iterator[Due]:
    """Yield the deliveries of a batch: its entry names, by subscription, topic and partition, the offsets."""
    for subscription_id, by_topic in offsets.items():
        for topic, by_partition in by_topic.items():
            for partition, at in by_partition.items():
                for offset in at:
                    yield Due(topic, int(partition), offset, subscription_id)


class Reader:
    """Follow the three topics from their beginning. The topics must exist."""

    def __init__(self, kafka: settings.Kafka, lane: settings.Delivery) -> None:
        self.ledger = Ledger()
        self._kinds = {
            lane.attempts_topic: "attempts",
            lane.dead_letter_topic: "dead_letters",
            lane.rejected_topic: "rejected",
        }
        self._consumer = confluent_kafka.Consumer(
            {"group.id": "fanout-ledger", "enable.auto.commit": False, "enable.partition.eof": False}
            | kafka_options.for_librdkafka(kafka)
        )
        topics = self._consumer.list_topics(timeout=10).topics
        self._consumer.assign(
            [
                confluent_kafka.TopicPartition(name, partition, confluent_kafka.OFFSET_BEGINNING)
                for name in self._kinds
                for partition in topics[name].partitions
            ]
        )

    def poll(self, timeout_s: float) -> int:
        """Take what has come, waiting for at most `timeout_s`; return how many rows that were."""
        messages = self._consumer.consume(2000, timeout_s)
        for message in messages:
            if message.error() is None:
                self.ledger.take(self._kinds[str(message.topic())], orjson.loads(message.value() or b""))
        return len(messages)

    def close(self) -> None:
        """Leave Kafka."""
        self._consumer.close()
