"""Make sure that the topics of the results exist before anything is consumed.

Runs on the driver and in the command. A missing topic would show only when the first micro-batch is written, after it was sent.
"""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from delivery import errors, kafka_options, settings

TIMEOUT_S = 10
_ALREADY_EXISTS = 36
"""Kafka's error code TOPIC_ALREADY_EXISTS: another driver was faster."""


def ensure(kafka: settings.Kafka, names: Iterable[str], partitions: int) -> None:
    """Create the topics that are missing; raise KafkaUnavailable when the broker does not answer."""
    admin = AdminClient(kafka_options.for_command(kafka) | {"log_level": 0})
    try:
        existing = admin.list_topics(timeout=TIMEOUT_S).topics
        missing = [NewTopic(name, num_partitions=partitions) for name in names if name not in existing]
        for created in (admin.create_topics(missing) if missing else {}).values():
            created.result(TIMEOUT_S)
    except KafkaException as exc:
        if exc.args[0].code() == _ALREADY_EXISTS:
            return
        raise errors.KafkaUnavailable(
            f"Kafka at {kafka.bootstrap_servers} did not answer ({exc.args[0].name()}): start it, or set kafka.bootstrap_servers"
        ) from exc


def of_results(lane: settings.Delivery) -> list[str]:
    """Return the topics that the job writes."""
    return [lane.attempts_topic, lane.dead_letter_topic, lane.rejected_topic]
