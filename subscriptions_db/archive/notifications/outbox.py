"""Keep the condition of each endpoint, and the operational events that follow until they are in their topic.

Runs in `fanout archive`. What a record changes is written in the transaction that archives it, and the events with it: so each
record counts once, and an event that was decided is written, whatever dies when.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from psycopg.types.json import Json, Jsonb

from subscriptions_db.archive.notifications import endpoint_health
from subscriptions_db.archive.notifications.endpoint_health import Condition, Policy, Seen, Sign, Told
from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query

MAX_EVENTS = 1000
"""Of one turn."""
LATE_S = 86_400
"""What was disabled longer ago is not told: it may be from before anybody was."""


class Waiting(NamedTuple):
    """An operational event on its way to its topic."""

    event_id: str
    kind: str
    endpoint_id: str
    customer_id: str
    at: dt.datetime
    data: dict[str, Any]


def take(connection: connect.Connection, seen: Sequence[Seen], policy: Policy) -> None:
    """Take what is seen of endpoints, in its order. Runs inside the transaction that archives it."""
    if not seen:
        return
    customers = {one.endpoint_id: one.customer_id for one in seen}
    known, told = _locked(connection, list(customers)), []
    after = dict(known)
    for one in seen:
        after[one.endpoint_id], event = endpoint_health.take(after.get(one.endpoint_id, Condition()), one, policy)
        told += [event] if event else []
    _put(connection, {name: found for name, found in after.items() if found != known.get(name, Condition())}, customers, policy)
    _tell(connection, told)


def look(connection: connect.Connection, policy: Policy, *, now: dt.datetime) -> None:
    """Take which endpoints were disabled of late, and wake the conditions of which the time has come."""
    asked = {"now": now, "since": now - dt.timedelta(seconds=LATE_S)}
    with connect.translating(), connection.transaction():
        disabled = [
            Seen(
                row["endpoint_id"],
                row["customer_id"],
                Sign.DISABLED,
                now,
                reason=row["disabled_reason"],
                since=row["disabled_at"],
            )
            for row in connection.execute(query("disabled_of_late"), asked)
        ]
        woken = [
            Seen(row["endpoint_id"], row["customer_id"], Sign.WOKEN, now)
            for row in connection.execute(query("conditions_to_wake"), asked)
        ]
        take(connection, [*disabled, *woken], policy)


def forget(connection: connect.Connection) -> None:
    """Forget endpoints that are registered no more."""
    with connect.translating():
        connection.execute(query("forget_conditions"))


@contextlib.contextmanager
def turn(connection: connect.Connection) -> Iterator[list[Waiting]]:
    """Yield events in their order, to be published inside; they wait no more when that has ended well.

    A process that dies in between publishes them again, with the same ids.
    """
    with connect.translating(), connection.transaction():
        found = connection.execute(query("operational_events"), {"limit": MAX_EVENTS}).fetchall()
        yield [Waiting(**{name: row[name] for name in Waiting._fields}) for row in found]
        if found:
            connection.execute(query("forget_operational_events"), {"numbers": [row["number"] for row in found]})


def _locked(connection: connect.Connection, endpoint_ids: list[str]) -> dict[str, Condition]:
    """Return what is known of these endpoints; nobody else takes anything until the commit."""
    connection.execute(query("lock_conditions"))
    rows = connection.execute(query("conditions"), {"endpoint_ids": endpoint_ids})
    return {row["endpoint_id"]: msgspec.convert(row["condition"], Condition) for row in rows}


def _put(connection: connect.Connection, changed: dict[str, Condition], customers: dict[str, str], policy: Policy) -> None:
    if changed:
        columns = {
            "endpoint_ids": list(changed),
            "customer_ids": [customers[endpoint_id] for endpoint_id in changed],
            "conditions": [Jsonb(msgspec.to_builtins(found)) for found in changed.values()],
            "wake_at": [found.wake_at(policy) for found in changed.values()],
        }
        connection.execute(query("put_conditions"), columns)


def _tell(connection: connect.Connection, told: list[Told]) -> None:
    if told:
        columns = {
            "event_ids": [one.event_id for one in told],
            "kinds": [one.kind.value for one in told],
            "endpoint_ids": [one.endpoint_id for one in told],
            "customer_ids": [one.customer_id for one in told],
            "at": [one.at for one in told],
            "data": [Json(one.data) for one in told],
        }
        connection.execute(query("tell"), columns)
