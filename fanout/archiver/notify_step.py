"""Publish operational events, which the job delivers to their subscribers like other events.

Runs in `fanout archive`. The events are CloudEvents in binary mode, which is read alike under all settings of `source`.
"""

from __future__ import annotations

import orjson

from delivery.config import settings
from delivery.model import PLATFORM
from fanout.kafka import publishing
from subscriptions_db.archive.notifications import endpoint_health, outbox
from subscriptions_db.postgres import connect

SOURCE = "fanout"


def publish(config: settings.Settings, connection: connect.Connection) -> int:
    """Publish a page of the outbox; return its number of events. A repeated event keeps its id, and so its `webhook-id`."""
    with outbox.claim_page(connection) as waiting:
        if waiting:
            publisher = publishing.Publisher(config.kafka)
            for one in waiting:
                publisher.publish(message(one, config.operations.topic))
            publisher.flush()
        return len(waiting)


def message(one: outbox.OutboxEvent, topic: str) -> publishing.Message:
    """Return the record of an event. All events about one endpoint go to one partition."""
    attributes = {
        "specversion": "1.0",
        "id": one.event_id,
        "type": one.kind,
        "source": SOURCE,
        "time": endpoint_health.rfc3339(one.at),
        "tenantid": PLATFORM,
        "subtenantid": one.customer_id,
    }
    headers = {"content-type": "application/json"} | {f"ce_{name}": value for name, value in attributes.items()}
    return publishing.Message(
        topic=topic,
        key=one.endpoint_id.encode(),
        value=orjson.dumps(one.data),
        headers=tuple((name, value.encode()) for name, value in headers.items()),
    )
