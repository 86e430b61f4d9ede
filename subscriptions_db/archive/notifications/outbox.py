"""Update endpoint health and keep operational events in an outbox until they are published.

Runs in `fanout archive`. Health and events that follow from a record are written in the transaction that archives the
record. So each record counts exactly once, and no decided event is lost in a crash.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from psycopg.types.json import Json, Jsonb

from subscriptions_db.archive.notifications import endpoint_health
from subscriptions_db.archive.notifications.endpoint_health import EndpointHealth, OperationalEvent, Policy, Signal, SignalKind
from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query

MAX_EVENTS = 1000
"""Maximum events in one page of the outbox."""
LATE_S = 86_400
"""Seconds for which a `disabled` event can be made after it became due. Without this bound, switching operational events on
would report endpoints that were disabled long ago."""


class OwnedHealth(NamedTuple):
    """The health of an endpoint, and the customer for whom it was observed."""

    customer_id: str
    health: EndpointHealth


class OutboxEvent(NamedTuple):
    """An operational event that is not published yet."""

    event_id: str
    kind: str
    subject_id: str
    """The endpoint, or the API key, that the event is about; or the customer or tenant that has reached a quota."""
    customer_id: str | None
    """The customer that may receive the event. None: operators only."""
    at: dt.datetime
    data: dict[str, Any]


def record(connection: connect.Connection, signals: Sequence[Signal], policy: Policy) -> None:
    """Apply signals, in order, to the stored health of their endpoints, and store the operational events that follow.

    If another customer has registered the id of a deleted endpoint, the new endpoint starts healthy, and signals about the
    deleted endpoint are ignored. Must run in a transaction.
    """
    if not signals:
        return
    known, owners = _locked(connection, sorted({signal.endpoint_id for signal in signals}))
    after, events = dict(known), []
    for signal in signals:
        if owners.get(signal.endpoint_id, signal.customer_id) != signal.customer_id:
            continue
        healthy = OwnedHealth(signal.customer_id, EndpointHealth())
        owned = after.get(signal.endpoint_id, healthy)
        owned = owned if owned.customer_id == signal.customer_id else healthy
        health, event = endpoint_health.apply(owned.health, signal, policy)
        after[signal.endpoint_id] = OwnedHealth(signal.customer_id, health)
        events += [event] if event else []
    changed = {
        name: owned
        for name, owned in after.items()
        if owned != known.get(name, OwnedHealth(owned.customer_id, EndpointHealth()))
    }
    _put(connection, changed, policy)
    put_events(connection, events)


def record_due(connection: connect.Connection, policy: Policy, *, now: dt.datetime) -> None:
    """Apply two kinds of signals to the stored health of endpoints, and store the operational events that follow.

    No record of a topic causes these signals. Runs in a transaction of its own.

    1. An endpoint is disabled, and no operational event has reported that. The signal is repeated until the report is made, or
       has been due for LATE_S seconds.
    2. An endpoint has dead letters that are due to be reported.
    """
    asked = {"now": now, "since": now - dt.timedelta(seconds=LATE_S), "quiet_s": policy.quiet_s}
    with connect.translated_errors(), connection.transaction():
        disabled = [
            Signal(
                row["endpoint_id"],
                row["customer_id"],
                SignalKind.DISABLED,
                now,
                reason=row["disabled_reason"],
                since=row["disabled_at"],
            )
            for row in connection.execute(query("recently_disabled_endpoints"), asked)
        ]
        woken = [
            Signal(row["endpoint_id"], row["customer_id"], SignalKind.WOKEN, now)
            for row in connection.execute(query("endpoint_health_due"), asked)
        ]
        record(connection, [*disabled, *woken], policy)


def delete_orphans(connection: connect.Connection) -> None:
    """Delete the health of endpoints that are no longer registered, or that another customer has registered since."""
    with connect.translated_errors():
        connection.execute(query("delete_orphaned_endpoint_health"))


@contextlib.contextmanager
def claim_page(connection: connect.Connection) -> Iterator[list[OutboxEvent]]:
    """Lock and yield the oldest events that no other process has locked, at most MAX_EVENTS.

    The caller publishes the events in its `with` block. If the block ends without an error, the events are deleted.

    After a crash before the commit, the next process publishes the same events again, with the same ids.
    """
    with connect.translated_errors(), connection.transaction():
        found = connection.execute(query("operational_events"), {"limit": MAX_EVENTS}).fetchall()
        yield [OutboxEvent(**{name: row[name] for name in OutboxEvent._fields}) for row in found]
        if found:
            connection.execute(query("delete_operational_events"), {"numbers": [row["number"] for row in found]})


def _locked(connection: connect.Connection, endpoint_ids: list[str]) -> tuple[dict[str, OwnedHealth], dict[str, str]]:
    """Return the stored health of these endpoints, and the customers of those that are registered, by endpoint id.

    An endpoint without stored health is left out. Lock out other writers of health until the commit.
    """
    connection.execute(query("lock_endpoint_health"))
    rows = connection.execute(query("endpoint_health"), {"endpoint_ids": endpoint_ids}).fetchall()
    known = {
        row["endpoint_id"]: OwnedHealth(row["customer_id"], msgspec.convert(row["condition"], EndpointHealth))
        for row in rows
        if row["customer_id"] is not None
    }
    return known, {row["endpoint_id"]: row["owner_id"] for row in rows if row["owner_id"] is not None}


def _put(connection: connect.Connection, changed: dict[str, OwnedHealth], policy: Policy) -> None:
    if changed:
        columns = {
            "endpoint_ids": list(changed),
            "customer_ids": [owned.customer_id for owned in changed.values()],
            "conditions": [Jsonb(msgspec.to_builtins(owned.health)) for owned in changed.values()],
            "wake_at": [owned.health.wake_at(policy) for owned in changed.values()],
        }
        connection.execute(query("put_endpoint_health"), columns)


def put_events(connection: connect.Connection, events: Sequence[OperationalEvent]) -> None:
    """Store events until they are published. Must run in the transaction that decides on the events."""
    if events:
        columns = {
            "event_ids": [event.event_id for event in events],
            "kinds": [event.kind.value for event in events],
            "subject_ids": [event.subject_id for event in events],
            # An empty text, not null: the previous version encodes the column, and a null would stop it at each start.
            "customer_ids": [event.customer_id or "" for event in events],
            "at": [event.at for event in events],
            "data": [Json(event.data) for event in events],
        }
        connection.execute(query("put_operational_events"), columns)
