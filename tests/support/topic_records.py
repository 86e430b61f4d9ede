"""Read the records of a topic as the job has them, with their keys."""

import confluent_kafka

from delivery.config import settings
from delivery.model import Record
from delivery.stages.kafka import record_reader
from fanout.kafka import topic_scanner


def record_of(message: confluent_kafka.Message) -> tuple[Record, bytes | None]:
    """Return a record as the job has it, and its key."""
    return record_reader.record_of(message), message.key()


def records(kafka: settings.KafkaSettings, topic: str) -> list[tuple[Record, bytes | None]]:
    """Return all records that the topic has now, and their keys."""
    found: list[tuple[Record, bytes | None]] = []
    scanner = topic_scanner.Scanner(kafka)
    try:
        scanner.read(scanner.extents([topic]), "events", lambda message: found.append(record_of(message)))
    finally:
        scanner.close()
    return found
