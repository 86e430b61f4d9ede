"""Create the topics that the job writes, before the job reads any record.

Otherwise a missing topic would show only after the requests of the first micro-batch were sent, when the results are written.
Runs on the driver, in the commands and in `fanout archive`.
"""

from __future__ import annotations

import concurrent.futures
import logging
import time
from collections.abc import Iterable, Mapping

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]  # public, but missing in the stubs
from confluent_kafka.cimpl import NewTopic

from delivery import errors
from delivery.config import kafka_clients, settings, topic_pattern
from delivery.stages.kafka import sink

log = logging.getLogger(__name__)

TIMEOUT_S = 10
"""Seconds for one request to Kafka."""
LOOK_S = 0.2
"""Seconds between two requests for the leaders of new topics. Not shorter: each answer has all topics of the cluster."""
LEADERS_WITHIN_S = 60
"""Seconds for new topics to get leaders. A broker that had just created 2,000 other topics took more than 10."""
_NO_RIGHT = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
"""Error codes with which a broker refuses a request because the login has no right to it."""
RETRIES_TOPIC_CONFIG = {"max.message.bytes": str(sink.MAX_REQUEST_BYTES), "retention.ms": "-1"}
"""Configuration of a new retries topic: the topic takes the largest batch, and keeps records forever. Records that expire
unread are lost events. So a retention that an operator sets must be longer than any standstill of the retry lane."""


def ensure_all(config: settings.Settings) -> None:
    """Create those topics of `of_results` that do not exist, then call `require_room` for the retries topic.

    Called by `prepare`, `fanout archive` and `fanout demo`. Raise the errors of `ensure` and of `require_room`.
    """
    partitions = config.delivery.result_partitions
    ensure(config.kafka, [config.delivery.retries_topic], partitions, RETRIES_TOPIC_CONFIG)
    # Creates the others: the retries topic exists now, with its own configuration.
    ensure(config.kafka, of_results(config.delivery), partitions)
    require_room(config.kafka, config.delivery.retries_topic)


def prepare(config: settings.Settings) -> None:
    """Call `require_apart` and `ensure_all` for a job that starts, and raise their errors.

    KafkaUnavailable then says that the job did not start: only a running job waits for Kafka.
    """
    require_apart(config)
    try:
        ensure_all(config)
    except errors.KafkaUnavailable as exc:
        raise errors.KafkaUnavailable(f"{exc}. The job did not start; only a running job waits for Kafka") from exc


def require_apart(config: settings.Settings) -> None:
    """Raise SettingsError if one topic serves two purposes.

    1. The job would write its results to a topic that it reads as events. In the topics of attempts and of rejected records
       each result would then make another result, without end.
    2. Two settings name the same topic of the job. A reader of one kind of records would get records of the other kind.

    delivery.stages.kafka.wakeups refuses a wake-up topic that matches the pattern of the event topics.
    """
    pattern = config.source.topic_pattern
    if own := [name for name in of_results(config.delivery) if topic_pattern.matches(pattern, name)]:
        raise errors.SettingsError(
            f"setting source.topic_pattern: {pattern} matches {own[0]}, to which the job writes. The job would read its own "
            "results as events, so it does not start with this pattern: change the pattern"
        )
    first_of: dict[str, str] = {}
    for setting, name in _own_topics(config).items():
        if (first := first_of.setdefault(name, setting)) != setting:
            raise errors.SettingsError(
                f"settings {first} and {setting}: both name topic {name}, and a reader would take records of one kind for "
                "those of the other. The job does not start with these settings: choose another name for one of them"
            )


def _own_topics(config: settings.Settings) -> dict[str, str]:
    """Return the topics to which the job writes, results and wake-ups, by the names of their settings."""
    lane = config.delivery
    return {
        "delivery.attempts_topic": lane.attempts_topic,
        "delivery.dead_letter_topic": lane.dead_letter_topic,
        "delivery.rejected_topic": lane.rejected_topic,
        "delivery.retries_topic": lane.retries_topic,
        "batch.ticks_topic": config.batch.ticks_topic,
        "retry.ticks_topic": config.retry.ticks_topic,
    }


def ensure(
    kafka: settings.KafkaSettings,
    wanted: Iterable[str],
    partitions: int,
    config: Mapping[str, str] | None = None,
    *,
    timeout_s: float = TIMEOUT_S,
) -> None:
    """Create those of the topics named `wanted` that do not exist, with this number of partitions and this `config`.

    Existing topics stay as they are. `config` has options of the topic, such as `retention.ms`; None: the broker's defaults.
    Return when the new topics have leaders. Raise KafkaUnavailable if a broker refuses a request, or none answers within
    `timeout_s` seconds. Also raise it if a new topic has no leader within LEADERS_WITHIN_S. Raise SettingsError if librdkafka
    refuses an option.
    """
    admin = kafka_clients.admin(kafka)
    try:
        existing = admin.list_topics(timeout=timeout_s).topics
        missing = [
            NewTopic(name, num_partitions=partitions, config=dict(config or {})) for name in wanted if name not in existing
        ]
        for created in (admin.create_topics(missing, request_timeout=timeout_s) if missing else {}).values():
            _await_creation(created)
        _await_leaders(admin, {topic.topic for topic in missing}, kafka.bootstrap_servers, timeout_s=timeout_s)
    except KafkaException as exc:
        raise unavailable(kafka, exc, f"to list topics, or to create those of {', '.join(wanted)} that do not exist") from exc


def names(kafka: settings.KafkaSettings, timeout_s: float = TIMEOUT_S) -> frozenset[str]:
    """Return the names of all topics that the login may describe.

    Raise KafkaUnavailable if no broker answers within `timeout_s` seconds and 3 s more, or if a broker refuses the request.
    Raise SettingsError if librdkafka refuses an option.
    """
    try:
        return frozenset(kafka_clients.admin(kafka).list_topics(timeout=timeout_s).topics)
    except KafkaException as exc:
        raise unavailable(kafka, exc, "to list topics") from exc


def require_room(kafka: settings.KafkaSettings, name: str, *, timeout_s: float = TIMEOUT_S) -> None:
    """Raise SettingsError if the retries topic `name` exists and refuses records as large as the largest postponed batch.

    To such a topic, the first postponed batch of that size could not be written. Its micro-batch would never be committed,
    and its deliveries would be sent again and again. If the login may not read the topic's configuration, only log a warning.
    Raise KafkaUnavailable if no broker answers within `timeout_s` seconds, or if a broker refuses the request for another
    reason. Also raise SettingsError if librdkafka refuses an option.
    """
    topic, option = ConfigResource(ConfigResource.Type.TOPIC, name), "max.message.bytes"
    admin = kafka_clients.admin(kafka)
    try:
        [found] = admin.describe_configs([topic], request_timeout=timeout_s).values()
        takes, needed = int(found.result()[option].value), int(RETRIES_TOPIC_CONFIG[option])
    except KafkaException as exc:
        code = exc.args[0].code()
        if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            log.warning(
                "this login may not read the configuration of topic %s, so max.message.bytes was not checked. If it is too "
                "small, a large postponed batch cannot be written, and its micro-batch is repeated. Grant DescribeConfigs on "
                "the topic to this login", name,
            )  # fmt: skip
        elif code != KafkaError.UNKNOWN_TOPIC_OR_PART:  # new and unknown to this broker, or (doctor) not created yet
            raise unavailable(kafka, exc, f"for the configuration of topic {name}") from exc
        return
    if takes < needed:
        raise errors.SettingsError(
            f"topic {name} takes records of up to {takes} bytes, and a batch that is postponed to the retry lane may have "
            f"{needed} bytes. Neither `fanout run` nor `fanout archive` starts with this topic. "
            f"Run kafka-configs --bootstrap-server {kafka.bootstrap_servers} "
            f"--alter --entity-type topics --entity-name {name} --add-config {option}={needed}"
        )


def unavailable(kafka: settings.KafkaSettings, exc: KafkaException, wish: str) -> errors.KafkaUnavailable:
    """Return the error for a request to Kafka that failed: Kafka does not answer, or a broker refuses the request.

    `wish` follows the words "a request" in the message, such as `to list topics`. If Kafka does not answer, connect to it again
    for up to 3 s, to name the reason in the message.
    """
    error: KafkaError = exc.args[0]
    if error.code() < 0:  # librdkafka's own errors; a broker's errors have positive codes
        reason = ": ".join(filter(None, [error.name(), kafka_clients.connection_failure(kafka)]))
        return errors.KafkaUnavailable(
            f"Kafka at {kafka.bootstrap_servers} does not answer ({reason}), so the request failed: start Kafka, or correct "
            "the settings of [kafka]: addresses, login, TLS"
        )
    lacks_right = error.code() in _NO_RIGHT
    cure = "grant the right to this login (docs/operations.md lists the rights)" if lacks_right else "check the brokers"
    return errors.KafkaUnavailable(f"Kafka at {kafka.bootstrap_servers} refuses a request {wish} ({error.str()}): {cure}")


def _await_creation(created: concurrent.futures.Future[None]) -> None:
    try:
        created.result()
    except KafkaException as exc:
        if exc.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:  # ignored: another driver was faster
            raise


def _await_leaders(
    admin: AdminClient,
    created: set[str],
    servers: str,
    *,
    timeout_s: float = TIMEOUT_S,
    within_s: float = LEADERS_WITHIN_S,
) -> None:
    """Wait until all partitions of these new topics have leaders.

    The wait is needed, because Kafka reports a topic as created before every broker knows the topic.

    Raise KafkaUnavailable after `within_s` seconds. Raise KafkaException if no broker answers within `timeout_s` seconds.
    """
    deadline = time.monotonic() + within_s
    while created:
        known = admin.list_topics(timeout=timeout_s).topics
        partitions = {name: known[name].partitions.values() for name in created if name in known}
        created -= {name for name, found in partitions.items() if found and all(part.leader >= 0 for part in found)}
        if created:
            if time.monotonic() > deadline:
                raise errors.KafkaUnavailable(
                    f"Kafka at {servers} has created the topics {', '.join(sorted(created))}, and they have no leader after "
                    f"{within_s:.0f} s. Nothing was written to them: check the brokers, and try again"
                )
            time.sleep(LOOK_S)


def of_results(delivery: settings.DeliverySettings) -> list[str]:
    """Return the names of the four topics to which the lanes write: attempts, dead letters, rejected records and retries."""
    return [delivery.attempts_topic, delivery.dead_letter_topic, delivery.rejected_topic, delivery.retries_topic]
