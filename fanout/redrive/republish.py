"""Copy rejected records to the ends of their topics, where the lanes read them once more.

Runs in the command `fanout rejected republish`.
"""

from __future__ import annotations

import collections
from dataclasses import dataclass, field
from typing import Any

import confluent_kafka

from delivery.config import settings
from fanout.kafka import publishing, topic_scanner
from fanout.kafka.places import Place
from fanout.redrive.rejected_search import FoundRejected, RejectedReader, RejectedSelection


@dataclass(slots=True, kw_only=True)
class RepublishSummary:
    """Numbers of a republication, or of a dry run. A record that several lanes rejected counts once."""

    records: int = 0
    """Records that were published again, or with a dry run would be."""
    expired: int = 0
    """Selected records that Kafka no longer has at their offsets."""
    no_topic: int = 0
    """Selected records without an event topic: events of unreadable retry entries, and records of topics that do not exist or
    that `source.topic_pattern` does not match."""
    topics: collections.Counter[str] = field(default_factory=collections.Counter)
    """Event topic → number of its records in `records`."""

    def document(self) -> dict[str, Any]:
        """Return the numbers as a dictionary for JSON output."""
        return {
            "records": self.records,
            "expired": self.expired,
            "no_topic": self.no_topic,
            "topics": dict(sorted(self.topics.items())),
        }


def republish(
    config: settings.Settings, reader: RejectedReader, selection: RejectedSelection, *, dry_run: bool = False
) -> RepublishSummary:
    """Publish the selected rejected records again, with their keys, values and headers, in the order of their offsets.

    A record is read from its own topic, because the rejected topic may have only a part of its value. With `dry_run`, only
    count. Raise KafkaUnavailable or RecordUnreadable if reading or writing fails. Kafka may have some of the new records then.
    """
    summary, topics = RepublishSummary(), reader.event_topics()
    rejected = collections.defaultdict[Place, set[int]](set)

    def choose(found: FoundRejected) -> None:
        record = found.record
        if record.topic in topics:
            rejected[Place(record.topic, record.partition)].add(record.offset)
        else:
            summary.no_topic += 1

    reader.each(selection, choose)
    publisher = None if dry_run else publishing.Publisher(config.kafka)

    def copy(message: confluent_kafka.Message) -> None:
        topic = str(message.topic())
        if publisher is not None:
            publisher.publish(
                publishing.Message(
                    topic=topic, key=message.key(), value=message.value(), headers=topic_scanner.headers(message)
                )
            )
        summary.records += 1
        summary.topics[topic] += 1

    for place, offsets in sorted(rejected.items()):
        before = summary.records
        reader.originals(place, sorted(offsets), copy)
        summary.expired += len(offsets) - (summary.records - before)
    if publisher is not None:
        publisher.flush()
    return summary
