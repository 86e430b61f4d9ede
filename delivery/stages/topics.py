"""Make sure that the topics of the results exist before anything is consumed.

Runs on the driver and in the command. A missing topic would show only when the first micro-batch is written, after it was sent.
"""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Iterable, Mapping

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from delivery import errors, kafka_options, settings
from delivery.stages import sink

TIMEOUT_S = 10
RETRIES = {"max.message.bytes": str(sink.MAX_REQUEST_BYTES), "retention.ms": "-1"}
"""How the retries topic is made. What expired there unread would be lost events: whoever bounds it must know how long the lane
may stand still."""


def ensure_all(config: settings.Settings) -> None:
    """Create the topics that the job writes and that are missing."""
    partitions = config.delivery.result_partitions
    ensure(config.kafka, [config.delivery.retries_topic], partitions, RETRIES)
    ensure(config.kafka, of_results(config.delivery), partitions)


def ensure(kafka: settings.Kafka, names: Iterable[str], partitions: int, config: Mapping[str, str] | None = None) -> None:
    """Create the topics that are missing, with `config`; raise KafkaUnavailable when the broker does not answer."""
    admin = AdminClient(kafka_options.for_librdkafka(kafka))
    try:
        existing = admin.list_topics(timeout=TIMEOUT_S).topics
        missing = [
            NewTopic(name, num_partitions=partitions, config=dict(config or {})) for name in names if name not in existing
        ]
        for created in (admin.create_topics(missing) if missing else {}).values():
            _await_creation(created)
        _await_leaders(admin, {topic.topic for topic in missing})
    except KafkaException as exc:
        raise errors.KafkaUnavailable(
            f"Kafka at {kafka.bootstrap_servers} does not answer ({exc.args[0].name()}): "
            "start it, or set kafka.bootstrap_servers"
        ) from exc


def _await_creation(created: concurrent.futures.Future[None]) -> None:
    try:
        created.result(TIMEOUT_S)
    except KafkaException as exc:
        if exc.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:  # else another driver was faster
            raise


def _await_leaders(admin: AdminClient, names: set[str]) -> None:
    """Wait until each topic can be written: Kafka says "created" before every broker knows of it."""
    deadline = time.monotonic() + TIMEOUT_S
    while names:
        known = admin.list_topics(timeout=TIMEOUT_S).topics
        names -= {name for name in names if name in known and all(p.leader >= 0 for p in known[name].partitions.values())}
        if names and time.monotonic() > deadline:
            raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
        time.sleep(0.05 if names else 0)


def of_results(lane: settings.Delivery) -> list[str]:
    """Return the topics that the job writes."""
    return [lane.attempts_topic, lane.dead_letter_topic, lane.rejected_topic, lane.retries_topic]
