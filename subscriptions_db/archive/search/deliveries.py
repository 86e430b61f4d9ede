"""Search recent deliveries of a customer, the newest first: each once, with what has become of it.

Runs wherever customers or operators ask. Nothing is kept of a delivery as such: it is made of its records when asked for, of
attempts, of what was told where there was none, and of dead letters. So it costs the archive next to nothing, and is as it is
now. It stands where its first record does, among the attempts; what is said there of late ones holds here, too.
"""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from subscriptions_db.archive.search import attempts, selection
from subscriptions_db.archive.search.archived_dead_letters import State
from subscriptions_db.archive.search.cursor import Moment
from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query

MAX_LOOKED_AT = 1000
"""So many records are looked at in one call. Fewer than of attempts: of each the others of its delivery are looked up."""
MAX_OF_ONE = 200
"""Of the records of one delivery the newest, by which it is known how it is."""
MAX_LETTERS = 10_000
"""Of one delivery: as many events as a batch may have."""


class Status(enum.StrEnum):
    """What has become of a delivery, by the newest that is known of it."""

    DELIVERED = "delivered"
    WAITING = "waiting"
    """It failed, or was not attempted yet; the retry lane has it."""
    DEAD_LETTERED = "dead_lettered"
    """Given up. What has become of its letter since, the letter's state says."""
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(selection.Asked):
    """Which deliveries. The times are those of their first records."""

    status: Status | None = None
    reason: str | None = None
    webhook_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """An event for a subscription, or a batch of them, and what has become of it."""

    webhook_id: str
    endpoint_id: str
    event_id: str | None
    event_type: str | None
    tenant_id: str | None
    subscription_id: str | None
    events: int
    began_at: dt.datetime
    """Of the first record: when it was first attempted, or told that it is not."""
    newest_at: dt.datetime
    """Of the newest one."""
    status: Status
    reason: str | None
    """Why it is not delivered: the error class of the newest attempt, or why there was none."""
    attempts: int
    """Among as many records, the newest ones."""
    dead_letters: int
    """Of its newest attempt: for a batch, as many as its events that were not taken."""
    dead_letter: int | None
    """Where the newest of them is."""
    dead_letter_state: State | None


class Found(NamedTuple):
    """Some deliveries, the newest first, and how to go on."""

    deliveries: Sequence[Delivery]
    before: Moment | None
    """The cursor for older ones; None when there are none."""
    places: Sequence[Moment] = ()
    """Of each delivery its own."""


def search(
    connection: connect.Connection, customer_id: str, asked: Asked, *, before: Moment | None = None, limit: int
) -> Found:
    """Return the newest deliveries that are asked for, begun before `before`. None may be found, and older ones there still."""
    wanted = attempts.parameters(customer_id, asked, before) | {"limit": limit, "most": MAX_LOOKED_AT}
    wanted |= {"most_of_one": MAX_OF_ONE, "most_letters": MAX_LETTERS}
    with connect.translating():
        # Not prepared, as for dead letters.
        found = connection.execute(query("deliveries_before"), wanted, prepare=False).fetchall()
        places = [Moment(row["began_at"], row.pop("position")) for row in found]
        older = places[-1] if len(found) == limit else attempts.last_looked_at(connection, wanted)
    return Found(list(map(_delivery, found)), older, tuple(places))


def get(connection: connect.Connection, customer_id: str, webhook_id: str) -> Delivery | None:
    """Return the delivery of an id; None where the customer has none of it in the archive, or no more."""
    asked = {"customer_id": customer_id, "webhook_id": webhook_id}
    with connect.translating():
        first = connection.execute(query("first_of_delivery"), asked).fetchone()
    if first is None:
        return None
    # It stands there, maybe behind more of its own records than are looked at in one call.
    behind = Moment(first["started_at"], first["position"] + 1)
    found = search(connection, customer_id, Asked(webhook_id=webhook_id), before=behind, limit=1).deliveries
    return next(iter(found), None)


def _delivery(row: dict[str, Any]) -> Delivery:
    state = row.pop("dead_letter_state")
    return Delivery(**row | {"status": Status(row["status"]), "dead_letter_state": None if state is None else State(state)})
