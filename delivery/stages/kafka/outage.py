"""Tell a lane that ended because Kafka was away from one that has a fault.

Runs on the driver. Spark waits for a Kafka that does not answer, but not for ever: how far the topics go it asks for some
minutes (delivery.stages.kafka.source), and a task fails sooner. Nothing is wrong with the lane then, and it starts again.
"""

from __future__ import annotations

import logging
import re

from confluent_kafka.admin import AdminClient

from delivery.config import kafka_clients, settings

log = logging.getLogger(__name__)

TIMEOUT_S = 5.0
_MEANT = re.compile(
    r"org\.apache\.kafka\.common\.errors\.(Timeout|Disconnect|Network|BrokerNotAvailable|LeaderNotAvailable)Exception"
    r"|No resolvable bootstrap urls"  # its name has gone with it, as that of a container or of a headless service
    r"|TimeoutException: Cannot fetch record"  # Spark's own, of its consumer in a task
    r"|Local: (Message timed out|Broker transport failure|All broker connections are down)"  # librdkafka's, of a task's rows
)


def is_meant(failure: str) -> bool:
    """Tell whether the text of a failure is that of a Kafka that did not answer in time."""
    return _MEANT.search(failure) is not None


def is_over(kafka: settings.Kafka) -> bool:
    """Ask Kafka for anything; return whether it has answered. Takes TIMEOUT_S where it does not."""
    try:
        admin = AdminClient(kafka_clients.for_librdkafka(kafka))  # which has to live until it has answered
        admin.describe_cluster(request_timeout=TIMEOUT_S).result()
    except Exception as exc:  # noqa: BLE001  # whatever it is, no answer has come
        log.debug("Kafka does not answer yet: %s", exc)
        return False
    return True
