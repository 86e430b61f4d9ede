"""Search recent attempts of a customer, the newest first.

Runs wherever customers or operators ask. They stand in the order of their time, so one that is archived late comes in behind a
cursor that has passed its time: whoever wants every attempt reads the attempts topic.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from subscriptions_db.archive.ingest.archived_rows import AttemptRow
from subscriptions_db.archive.search import selection
from subscriptions_db.archive.search.cursor import Moment
from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query

MAX_LOOKED_AT = 5000
"""As for dead letters."""
_LONG_AGO = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_NEVER = dt.datetime(9999, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(selection.Asked):
    """Which attempts."""

    status: int | None = None
    error_class: str | None = None
    is_accepted: bool | None = None
    webhook_id: str | None = None


class Found(NamedTuple):
    """Some attempts, the newest first, and how to go on."""

    attempts: list[AttemptRow]
    before: Moment | None
    """The cursor for older ones; None when there are none."""
    places: Sequence[Moment] = ()
    """Of each attempt its own."""


def search(
    connection: connect.Connection, customer_id: str, asked: Asked, *, before: Moment | None = None, limit: int
) -> Found:
    """Return the newest attempts that are asked for, older than `before`. None may be found, and older ones there still."""
    wanted = parameters(customer_id, asked, before) | {"limit": limit, "most": MAX_LOOKED_AT}
    with connect.translating():
        # Not prepared, as for dead letters.
        found = connection.execute(query("attempts_before"), wanted, prepare=False).fetchall()
        places = [Moment(row["started_at"], row.pop("position")) for row in found]
        older = places[-1] if len(found) == limit else last_looked_at(connection, wanted)
    return Found([AttemptRow(**row) for row in found], older, tuple(places))


def parameters(customer_id: str, asked: selection.Asked, before: Moment | None) -> dict[str, Any]:
    """Return what is asked for, and from where on, as the statements have it."""
    start = before or Moment(asked.until or _NEVER, 0)
    if asked.until is not None:
        start = min(start, Moment(asked.until, 0))
    place = {"before": start.started_at, "position": start.position, "since": asked.since or _LONG_AGO}
    return asked.parameters() | place | {"customer_id": customer_id}


def last_looked_at(connection: connect.Connection, wanted: dict[str, Any]) -> Moment | None:
    """Return how far a page was looked for that was not found full; None: to the end."""
    last = connection.execute(query("last_attempt_looked_at"), wanted, prepare=False).fetchone()
    return None if last is None else Moment(last["started_at"], last["position"])


def get(connection: connect.Connection, customer_id: str, place: Moment) -> AttemptRow | None:
    """Return the attempt at a place; None where the customer has none there."""
    with connect.translating():
        row = connection.execute(query("attempt_at"), place._asdict() | {"customer_id": customer_id}).fetchone()
    return None if row is None else AttemptRow(**row)
