"""Make what a customer receives: the `webhook-id` and the body.

Runs in the executors. Must not import pyspark or psycopg.
Source: Standard Webhooks 1.0, "Payload structure" and "Unique identifier".
"""

from __future__ import annotations

import hashlib

import orjson

from delivery.model import Event, SubscriptionId

CONTENT_TYPE = "application/json"


def webhook_id(event: Event, subscription_id: SubscriptionId) -> str:
    """Return the id that all attempts of this delivery carry, now, after a crash and on a later redrive.

    A digest of what makes the delivery unique (CloudEvents: source + id; and the subscription), because event ids are
    producers' text and may hold anything, while this id stands in a header and in the signed content, where no `.` may be.
    """
    identity = f"{event.source}\0{event.event_id}\0{subscription_id}"
    return "msg_" + hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()


def body(event: Event) -> bytes:
    """Return the Standard Webhooks body of one event: its attributes, and under `data` the payload's own bytes."""
    head = {
        "type": event.event_type,
        "timestamp": event.time,
        "id": event.event_id,
        "source": event.source,
        "tenant_id": event.tenant_id,
    }
    if event.sub_tenant_id is not None:
        head["sub_tenant_id"] = event.sub_tenant_id
    return b'%s,"data":%s}' % (orjson.dumps(head)[:-1], event.data)
