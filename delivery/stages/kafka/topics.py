"""Make sure that the topics of the results exist before anything is consumed.

Runs on the driver and in the command. A missing topic would show only when the first micro-batch is written, after it was sent.
"""

from __future__ import annotations

import concurrent.futures
import logging
import time
from collections.abc import Iterable, Mapping

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]  # public, but not said so
from confluent_kafka.cimpl import NewTopic

from delivery import errors
from delivery.config import kafka_clients, settings
from delivery.stages.kafka import sink

log = logging.getLogger(__name__)

TIMEOUT_S = 10
RETRIES = {"max.message.bytes": str(sink.MAX_REQUEST_BYTES), "retention.ms": "-1"}
"""How the retries topic is made. What expired there unread would be lost events: whoever bounds it must know how long the lane
may stand still."""


def ensure_all(config: settings.Settings) -> None:
    """Create the topics that the job writes and that are missing; raise where one that is there cannot take what it writes."""
    partitions = config.delivery.result_partitions
    ensure(config.kafka, [config.delivery.retries_topic], partitions, RETRIES)
    ensure(config.kafka, of_results(config.delivery), partitions)
    require_room(config.kafka, config.delivery.retries_topic)


def ensure(kafka: settings.Kafka, names: Iterable[str], partitions: int, config: Mapping[str, str] | None = None) -> None:
    """Create the topics that are missing, with `config`; raise KafkaUnavailable when the broker does not answer."""
    admin = AdminClient(kafka_clients.for_librdkafka(kafka))
    try:
        existing = admin.list_topics(timeout=TIMEOUT_S).topics
        missing = [
            NewTopic(name, num_partitions=partitions, config=dict(config or {})) for name in names if name not in existing
        ]
        for created in (admin.create_topics(missing) if missing else {}).values():
            _await_creation(created)
        _await_leaders(admin, {topic.topic for topic in missing})
    except KafkaException as exc:
        raise _unavailable(kafka, exc) from exc


def names(kafka: settings.Kafka, timeout_s: float = TIMEOUT_S) -> frozenset[str]:
    """Return the names of all topics; raise KafkaUnavailable when the broker does not answer in time."""
    try:
        return frozenset(AdminClient(kafka_clients.for_librdkafka(kafka)).list_topics(timeout=timeout_s).topics)
    except KafkaException as exc:
        raise _unavailable(kafka, exc) from exc


def require_room(kafka: settings.Kafka, name: str) -> None:
    """Raise SettingsError when the retries topic `name` is there and takes no records as large as a postponed batch.

    It would show when the first such batch has failed: its micro-batch cannot be written, and is sent again and again.
    """
    topic, option = ConfigResource(ConfigResource.Type.TOPIC, name), "max.message.bytes"
    admin = AdminClient(kafka_clients.for_librdkafka(kafka))
    try:
        [found] = admin.describe_configs([topic]).values()
        takes, needed = int(found.result(TIMEOUT_S)[option].value), int(RETRIES[option])
    except KafkaException as exc:
        code = exc.args[0].code()
        if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            log.warning("whether %s takes large records cannot be seen: grant DescribeConfigs on it to the job", name)
        elif code != KafkaError.UNKNOWN_TOPIC_OR_PART:  # which the job will make
            raise _unavailable(kafka, exc) from exc
        return
    if takes < needed:
        raise errors.SettingsError(
            f"{name} takes records of {takes} bytes, and a postponed batch may have {needed}: kafka-configs --alter "
            f"--entity-type topics --entity-name {name} --add-config {option}={needed}"
        )


def _unavailable(kafka: settings.Kafka, exc: KafkaException) -> errors.KafkaUnavailable:
    return errors.KafkaUnavailable(
        f"Kafka at {kafka.bootstrap_servers} does not answer ({exc.args[0].name()}): start it, or set kafka.bootstrap_servers"
    )


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
