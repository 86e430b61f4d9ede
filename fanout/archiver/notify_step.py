"""Publish operational events, which the job delivers to their subscribers like other events.

Runs in `fanout archive`. The events are CloudEvents in binary mode, because the settings `source.*` do not change how
the job reads that mode.
"""

from __future__ import annotations

import orjson

from delivery.config import settings
from delivery.registry_model import PLATFORM
from fanout.kafka import publishing
from subscriptions_db.archive.notifications import endpoint_health, outbox
from subscriptions_db.postgres import connect

SOURCE = "fanout"
"""The CloudEvents attribute `source` of every operational event."""


def publish(config: settings.Settings, connection: connect.Connection) -> int:
    """Publish the oldest operational events of the outbox, at most one page; return their number.

    Raise KafkaUnavailable if Kafka does not confirm all of them. Then the next call publishes the page again, and each event
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
