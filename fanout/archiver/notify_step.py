"""Publish operational events, which the job delivers to their subscribers like other events.

Runs in `fanout archive`. Archiving, redrives and replays do not depend on the topic of operational events. A failure of Kafka
in this step is logged, and the step is tried again later. With `--once` the failure ends the command. The events are
CloudEvents in binary mode: the job reads this mode in the same way with all settings `source.*`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import orjson

from delivery import errors
from delivery.config import settings
from delivery.registry_model import PLATFORM
from delivery.stages.kafka import topics
from fanout.kafka import publishing
from subscriptions_db.archive.notifications import endpoint_health, outbox
from subscriptions_db.postgres import connect

SOURCE = "fanout"
"""The CloudEvents attribute `source` of every operational event."""
PAUSE_S = 30.0
"""Seconds for which no operational event is published after a failure of Kafka."""

log = logging.getLogger(__name__)


class Notifier:
    """Create `operations.topic`, and publish operational events there. After a failure of Kafka, pause for PAUSE_S."""

    def __init__(self, config: settings.Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds."""
        self._config = config
        self._clock = clock
        self._allowed_at = 0.0
        self._has_topic = False

    def step(self, connection: connect.Connection, *, once: bool) -> int:
        """Publish the oldest operational events, at most outbox.MAX_EVENTS; return their number, 0 while the step pauses.

        The first step, and the first one after a failure, create the topic if it is missing. After a failure of Kafka, log it
        and return 0. With `once`, raise KafkaUnavailable instead. Raise RegistryUnavailable if Postgres is unavailable.
        """
        if self._clock() < self._allowed_at:
            return 0
        topic = self._config.operations.topic
        try:
            if not self._has_topic:
                topics.ensure(self._config.kafka, [topic], publishing.EVENT_PARTITIONS)
                self._has_topic = True
            return publish(self._config, connection)
        except errors.KafkaUnavailable as exc:
            if once:
                raise
            log.warning(
                "operational events could not be published (%s). They wait in Postgres, and are tried again in %.0f s. "
                "Archiving, redrives and replays do not wait for them. If this is logged again, check that Kafka answers, and "
                "that the archiver has the rights create and write on topic %s (setting operations.topic)",
                exc,
                PAUSE_S,
                topic,
            )
            self._has_topic, self._allowed_at = False, self._clock() + PAUSE_S
            return 0


def publish(config: settings.Settings, connection: connect.Connection) -> int:
    """Publish the oldest operational events that wait in Postgres, at most outbox.MAX_EVENTS; return their number.

    Raise KafkaUnavailable if Kafka does not confirm all of them. Then the next call publishes the same events again. Each event
    keeps its id, and so its `webhook-id`.
    """
    with outbox.claim_page(connection) as waiting:
        if waiting:
            publisher = publishing.Publisher(config.kafka)
            for event in waiting:
                publisher.publish(message(event, config.operations.topic))
            publisher.flush()
        return len(waiting)


def message(event: outbox.OutboxEvent, topic: str) -> publishing.Message:
    """Return the Kafka record of an operational event. All events about one subject (an endpoint, …) go to one partition."""
    attributes = {
        "specversion": "1.0",
        "id": event.event_id,
        "type": event.kind,
        "source": SOURCE,
        "time": endpoint_health.rfc3339(event.at),
        "tenantid": PLATFORM,
    }
    if event.customer_id is not None:
        attributes["subtenantid"] = event.customer_id
    headers = {"content-type": "application/json"} | {f"ce_{name}": value for name, value in attributes.items()}
    return publishing.Message(
        topic=topic,
        key=event.subject_id.encode(),
        value=orjson.dumps(event.data),
        headers=tuple((name, value.encode()) for name, value in headers.items()),
    )
