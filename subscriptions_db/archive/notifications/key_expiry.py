"""Store an operational event about each API key that expires soon (docs/operational-events.md), once for each key.

Runs in `fanout archive`. The transaction that stores the event also records in the key's row that the event exists. So a crash
neither loses nor repeats the event.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from subscriptions_db.archive.notifications import endpoint_health, outbox
from subscriptions_db.archive.notifications.endpoint_health import EventKind, OperationalEvent, Policy
from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query


def record(connection: connect.Connection, policy: Policy, *, now: dt.datetime) -> None:
    """Store an event for each API key of a customer that expires within `policy.key_expiring_days` and has no event yet.

    Keys without a customer (operator, executor, publisher) get no event, nor do revoked and expired keys.
    """
    asked = {"now": now, "until": now + dt.timedelta(days=policy.key_expiring_days)}
    with connect.translated_errors(), connection.transaction():
        taken = connection.execute(query("take_expiring_api_keys"), asked).fetchall()
        taken.sort(key=lambda key: (key["expires_at"], key["key_id"]))
        outbox.put_events(connection, [event_about(key, now) for key in taken])


def event_about(key: Mapping[str, Any], now: dt.datetime) -> OperationalEvent:
    """Return the event about a key that expires soon. Pure."""
    data = {
        "key_id": key["key_id"],
        "name": key["name"],
        "scope": key["scope"],
        "expires_at": endpoint_health.rfc3339(key["expires_at"]),
    }
    return OperationalEvent(EventKind.KEY_EXPIRING, key["key_id"], key["customer_id"], now, data)
