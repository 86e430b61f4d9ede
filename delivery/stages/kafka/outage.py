"""Recognise a query that failed because Kafka did not answer, and test whether Kafka answers again.

Runs on the driver. While Kafka is absent, Spark waits only for some minutes for the end offsets of the topics
(delivery.stages.kafka.source), and a task fails sooner. The lane itself has no fault then: its query starts again once Kafka
answers.
"""

from __future__ import annotations

import logging
import re

from confluent_kafka.admin import AdminClient

from delivery.config import kafka_clients, settings

log = logging.getLogger(__name__)

TIMEOUT_S = 5.0
"""Seconds to wait for Kafka's answer."""
_KAFKA_OUTAGE = re.compile(
    r"org\.apache\.kafka\.common\.errors\.(Timeout|Disconnect|Network|BrokerNotAvailable|LeaderNotAvailable)Exception"
    r"|No resolvable bootstrap urls"  # the host name disappears with a container or a headless service
    r"|TimeoutException: Cannot fetch record"  # raised by Spark's consumer in a task
    r"|Local: (Message timed out|Broker transport failure|All broker connections are down)"  # raised by librdkafka
)


def is_kafka_outage(failure: str) -> bool:
    """Return True if the error text of a query says that Kafka did not answer in time."""
    return _KAFKA_OUTAGE.search(failure) is not None


def is_over(kafka: settings.Kafka) -> bool:
    """Return True if Kafka answers a request. Takes at most TIMEOUT_S."""
    try:
        admin = AdminClient(kafka_clients.for_librdkafka(kafka))  # must live until the answer has come
        admin.describe_cluster(request_timeout=TIMEOUT_S).result()
    except Exception as exc:  # noqa: BLE001  # any failure means: no answer
        log.debug("Kafka does not answer yet: %s", exc)
        return False
    return True
