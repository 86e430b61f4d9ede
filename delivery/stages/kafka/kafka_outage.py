"""Recognise a query that failed because Kafka or the schema registry did not answer, and test whether they answer again.

Runs on the driver. While Kafka is absent, Spark waits only for some minutes for the end offsets of the topics
(delivery.stages.kafka.topic_source), and a task fails sooner. The lane itself has no fault then: its query starts again once
Kafka answers. If the schema registry does not answer, the lanes pause topics or partitions (docs/adr/0043). Only the real-time
lane with `once` waits for the schema registry as it waits for Kafka.
"""

from __future__ import annotations

import logging
import re

from delivery import errors
from delivery.config import kafka_clients, plan_builder, schema_settings, settings
from delivery.stages.kafka import record_reader
from delivery.webhooks.formats import registry_client

log = logging.getLogger(__name__)

TIMEOUT_S = 5.0
"""Seconds to wait for Kafka's answer."""
AWAY = (
    "Kafka or the schema registry does not answer: records wait in Kafka, and the lane continues by itself. Check the brokers "
    "and the schema registry"
)
"""Answer of `/readyz` while the real-time lane waits for Kafka or the schema registry."""
_KAFKA_OUTAGE = re.compile(
    r"org\.apache\.kafka\.common\.errors\.(Timeout|Disconnect|Network|BrokerNotAvailable|LeaderNotAvailable)Exception"
    r"|No resolvable bootstrap urls"  # the host name disappears with a container or a headless service
    r"|TimeoutException: Cannot fetch record"  # raised by Spark's consumer in a task
    rf"|KafkaUnavailable: {record_reader.NO_RECORDS}"  # raised by a task of the direct or the batch lane
    r"|Local: (Message timed out|Broker transport failure|All broker connections are down)"  # raised by librdkafka
)


def is_kafka_outage(failure: str) -> bool:
    """Return True if the error text of a query says that Kafka did not answer in time, or could not be reached."""
    return _KAFKA_OUTAGE.search(failure) is not None


def is_over(config: settings.Settings) -> bool:
    """Return True if Kafka's outage is over: Kafka answers a request within TIMEOUT_S."""
    return _kafka_answers(config.kafka)


def schema_registry_answers(config: schema_settings.SchemaRegistrySettings) -> bool:
    """Return True if each test request gets a usable answer of the schema registry, or if no topic has a schema registry.

    The test requests the schema with the id 1, and the schemas that decoding by it needs. A Protobuf schema that is text is
    also requested in serialized form, which the registry may refuse. Usable answers are a schema, the error that there is no
    such schema, and status 403, because the login may be limited to other schemas. Any other answer, such as status 401 or
    500, is an outage. Each request takes at most `schema_registry.timeout_s` for each URL of the schema registry.
    """
    if (formats := plan_builder.formats_of(config)) is None:
        return True
    try:
        registry_client.RegistryClient(formats.access).require_answer()
    except errors.SchemaRegistryUnavailable as exc:
        log.debug("the schema registry does not answer yet: %s", exc)
        return False
    return True


def _kafka_answers(kafka: settings.KafkaSettings) -> bool:
    try:
        kafka_clients.require_answer(kafka_clients.admin(kafka), within_s=TIMEOUT_S)
    except Exception as exc:  # noqa: BLE001  # any failure means: no answer
        log.debug("Kafka does not answer yet: %s", exc)
        return False
    return True
