"""Read what the job wrote about its work: the delivery log, the dead letters, the rejected events.

Runs in the command and the tests.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import confluent_kafka
import orjson

from delivery import kafka_options, settings

Place = tuple[str, int]
"""Topic and partition."""


@dataclass(slots=True)
class Ledger:
    """Everything that has been read so far. Pairs are (event id, subscription id)."""

    attempts: int = 0
    delivered: dict[tuple[str, str], float] = field(default_factory=dict)
    """Pair → milliseconds from Kafka's append to the response of the first attempt that was accepted."""
    dead_letters: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    skipped: dict[tuple[str, str], str] = field(default_factory=dict)
    rejected: list[dict[str, Any]] = field(default_factory=list)
    receipts: dict[Place, list[dict[str, Any]]] = field(default_factory=dict)

    def handled_until(self) -> dict[Place, int]:
        """Return the last offset of each partition that was handled."""
        return {place: max(receipt["last_offset"] for receipt in receipts) for place, receipts in self.receipts.items()}

    def revision_at(self, topic: str, partition: int, offset: int) -> int | None:
        """Return the registry's revision by which a record was last routed, or None when it was not."""
        for receipt in reversed(self.receipts.get((topic, partition), ())):
            if receipt["first_offset"] <= offset <= receipt["last_offset"]:
                return int(receipt["revision"])
        return None

    def take(self, kind: str, entry: dict[str, Any]) -> None:
        """Add one row; `kind` is the topic's role: attempts, dead_letters or rejected."""
        if kind == "rejected":
            self.rejected.append(entry)
        elif kind == "dead_letters":
            self.dead_letters[_pair(entry)] = entry
        elif entry["kind"] == "receipt":
            self.receipts.setdefault((entry["topic"], entry["partition"]), []).append(entry)
        else:
            for logged in entry["entries"]:
                self._take_outcome(logged)

    def _take_outcome(self, entry: dict[str, Any]) -> None:
        if entry["kind"] == "skipped":
            self.skipped[_pair(entry)] = entry["reason"]
        elif entry["kind"] == "attempt":
            self.attempts += 1
            if entry["error_class"] is None:
                finished_ms = entry["started_at_ms"] + entry["duration_ms"]
                self.delivered.setdefault(_pair(entry), finished_ms - entry["appended_at_ms"])


def _pair(entry: dict[str, Any]) -> tuple[str, str]:
    return entry["event_id"], entry["subscription_id"]


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
            | kafka_options.for_command(kafka)
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
