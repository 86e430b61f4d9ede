"""Search recent attempts of a customer, the newest first.

Runs in the API. Attempts are sorted by time. A reader that pages by cursor misses an attempt that is archived after its page
was read. The attempts topic has every attempt.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from subscriptions_db.archive.ingest.archived_rows import AttemptRow
from subscriptions_db.archive.search import selection
from subscriptions_db.archive.search.cursor import AttemptPosition
from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query

MAX_LOOKED_AT = 5000
"""Maximum attempts that one call examines. If few of them match, the next call continues after them."""
_LONG_AGO = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_NEVER = dt.datetime(9999, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSearch(selection.SearchFilter):
    """Search criteria for attempts."""

    status: int | None = None
    error_class: str | None = None
    is_accepted: bool | None = None
    webhook_id: str | None = None


class FoundAttempts(NamedTuple):
    """A page of attempts, the newest first."""

    attempts: list[AttemptRow]
    before: AttemptPosition | None
    """Where to continue with older attempts; None if all were examined."""
    places: Sequence[AttemptPosition] = ()
    """The position of each attempt."""


def search(
    connection: connect.Connection, customer_id: str, asked: AttemptSearch, *, before: AttemptPosition | None = None, limit: int
) -> FoundAttempts:
    """Return the `limit` newest matching attempts older than `before`. One call examines at most MAX_LOOKED_AT attempts.

    The page may be empty although older attempts match: continue at the `before` of the result.
    """
    wanted = parameters(customer_id, asked, before) | {"limit": limit, "most": MAX_LOOKED_AT}
    with connect.translated_errors():
        # Not prepared: the right plan depends on the criteria that are given.
        found = connection.execute(query("attempts_before"), wanted, prepare=False).fetchall()
        places = [AttemptPosition(row["started_at"], row.pop("position")) for row in found]
        older = places[-1] if len(found) == limit else last_looked_at(connection, wanted)
    return FoundAttempts([AttemptRow(**row) for row in found], older, tuple(places))


def parameters(customer_id: str, asked: selection.SearchFilter, before: AttemptPosition | None) -> dict[str, Any]:
    """Return the search criteria and the starting position as parameters of SQL statements."""
    start = before or AttemptPosition(asked.until or _NEVER, 0)
    if asked.until is not None:
        start = min(start, AttemptPosition(asked.until, 0))
    place = {"before": start.started_at, "position": start.position, "since": asked.since or _LONG_AGO}
    return asked.parameters() | place | {"customer_id": customer_id}


def last_looked_at(connection: connect.Connection, wanted: dict[str, Any]) -> AttemptPosition | None:
    """Return the last examined attempt of a page that is not full; None if all attempts were examined."""
    last = connection.execute(query("last_attempt_looked_at"), wanted, prepare=False).fetchone()
    return None if last is None else AttemptPosition(last["started_at"], last["position"])


def get(connection: connect.Connection, customer_id: str, place: AttemptPosition) -> AttemptRow | None:
    """Return the attempt at a position; None if the customer has none there."""
    with connect.translated_errors():
        row = connection.execute(query("attempt_at"), place._asdict() | {"customer_id": customer_id}).fetchone()
    return None if row is None else AttemptRow(**row)
