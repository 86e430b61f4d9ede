"""Search and count recent attempts of a customer, and read one by its position.

Runs in the API. A record is a row of the table of attempts: an attempt, or an outcome without an attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from subscriptions_db.archive.ingest.archived_rows import AttemptRow
from subscriptions_db.archive.search import records, selection
from subscriptions_db.archive.search.archive_positions import PageStart, RecordPosition
from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query

MAX_LOOKED_AT = 5000
"""Maximum records (rows of the table of attempts) that one call examines. If few match, the next call continues after them."""
MAX_EXAMINED = 10_000
"""Maximum records that a count examines. 50,000 took 240 ms with 100,000 attempts of one customer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSearch(selection.SearchFilter):
    """Search criteria for attempts.

    `text` is searched in the error's text and the response's body too, besides the fields that SearchFilter names.
    """

    status: int | None = None
    error_class: str | None = None
    is_accepted: bool | None = None
    webhook_id: str | None = None


class FoundAttempts(NamedTuple):
    """A page of attempts: the newest first, or the oldest first if `PageStart.is_backwards`."""

    attempts: list[AttemptRow]
    further: RecordPosition | None
    """The position at which the next page in the same order begins; None if all records were examined."""
    places: Sequence[RecordPosition] = ()
    """The position of each attempt."""


def search(
    connection: connect.Connection,
    customer_id: str,
    asked: AttemptSearch,
    *,
    start: PageStart = records.NEWEST,
    limit: int,
    most: int = MAX_LOOKED_AT,
) -> FoundAttempts:
    """Examine at most `most` records older than `start`, or newer if `start.is_backwards`; return the first `limit` matches.

    A record is a row of the table of attempts: an attempt, or an outcome without an attempt, which never matches. The page may
    be empty although further attempts match. The next page begins at `further`.
    """
    wanted = records.parameters(customer_id, asked)
    found = records.nearest(connection, "attempts", wanted, start, limit=limit, most=most)
    return FoundAttempts([AttemptRow(**row) for row in found.rows], found.further, found.places)


def count(connection: connect.Connection, customer_id: str, asked: AttemptSearch) -> records.Total:
    """Return the number of matching attempts among MAX_EXAMINED records.

    These records are the customer's newest within the period, the endpoint and the `webhook-id` that the search names.
    """
    return records.count(connection, "attempts", records.parameters(customer_id, asked), most=MAX_EXAMINED)


def get(connection: connect.Connection, customer_id: str, place: RecordPosition) -> AttemptRow | None:
    """Return the attempt at a position; None if the customer has none there."""
    with connect.translated_errors():
        row = connection.execute(query("attempt_at"), place._asdict() | {"customer_id": customer_id}).fetchone()
    return None if row is None else AttemptRow(**row)
