"""Read pages of a customer's records, and count records, for the searches of attempts and deliveries.

Runs in the API. A record is a row of the table of attempts. One call examines a bounded number of records, so a search with a
rare criterion costs no more than one without criteria. Only records of the endpoint, the `webhook-id` and the period that the
search names count as examined. Records are sorted by time. A reader that pages by cursor misses a record that is archived after
the reader has passed the record's time. A program that must miss no attempt reads the attempts topic.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, Literal, LiteralString, NamedTuple

from subscriptions_db.archive.search import selection
from subscriptions_db.archive.search.archive_positions import PageStart, RecordPosition
from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query

_LONG_AGO = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_NEVER = dt.datetime(9999, 1, 1, tzinfo=dt.UTC)
NEWEST = PageStart(RecordPosition(_NEVER, 0))
"""The start of the first page, which has the newest records."""
Kind = Literal["attempts", "deliveries"]


class FoundRows(NamedTuple):
    """The rows of a page: the newest first, or the oldest first if `PageStart.is_backwards`."""

    rows: list[dict[str, Any]]
    places: tuple[RecordPosition, ...]
    """The position of each row's record."""
    further: RecordPosition | None
    """The position at which the next page in the same order begins; None if all records were examined."""


class Total(NamedTuple):
    """The number of matches of a search among the examined records."""

    matches: int
    is_exact: bool
    """False: there may be more, because only the newest records are examined."""


def nearest(
    connection: connect.Connection, kind: Kind, wanted: dict[str, Any], start: PageStart, *, limit: int, most: int
) -> FoundRows:
    """Examine at most `most` records older than `start`, or newer if `start.is_backwards`; return the first `limit` matches.

    The page may be empty although further records match. The next page begins at `further`. `wanted` are the parameters
    of the statement `matching_attempts` or `matching_deliveries`, from the function `parameters`. For deliveries, the caller
    adds two bounds for each delivery: `most_of_one` records and `most_letters` dead letters are read.
    """
    side = "after" if start.is_backwards else "before"
    asked = wanted | start.place.parameters() | {"limit": limit + 1, "most": most}
    with connect.translated_errors():
        # Not prepared: the right plan depends on the criteria that are given.
        found = connection.execute(_statement(side, kind, f"nearest_{side}"), asked, prepare=False).fetchall()
        places = tuple(RecordPosition(row["started_at"], row.pop("position")) for row in found)
        further = places[limit - 1] if len(found) > limit else _last_looked_at(connection, side, asked)
    return FoundRows(found[:limit], places[:limit], further)


def count(connection: connect.Connection, kind: Kind, wanted: dict[str, Any], *, most: int) -> Total:
    """Return the number of matches among the newest `most` records of the endpoint, `webhook-id` and times in `wanted`."""
    asked = wanted | NEWEST.place.parameters() | {"most": most}
    with connect.translated_errors():
        [row] = connection.execute(_statement("before", kind, "number_of_matches"), asked, prepare=False).fetchall()
        is_exact = _last_looked_at(connection, "before", asked) is None
    return Total(row["count"], is_exact)


def parameters(customer_id: str, asked: selection.SearchFilter) -> dict[str, Any]:
    """Return the criteria of a search as parameters of the statements. `since` or `until` None: no bound on this side."""
    times = {"since": asked.since or _LONG_AGO, "until": asked.until or _NEVER}
    return asked.parameters() | times | {"customer_id": customer_id}


def _last_looked_at(connection: connect.Connection, side: str, asked: dict[str, Any]) -> RecordPosition | None:
    """Return the position of the last of the `asked["most"]` records that a search examines. There the next page continues.

    None: fewer records were left, so the search is complete.
    """
    statement = "with looked_at as (" + query(f"records_{side}") + ")" + query(f"last_record_{side}")
    last = connection.execute(statement, asked, prepare=False).fetchone()
    return None if last is None else RecordPosition(last["started_at"], last["position"])


def _statement(side: str, kind: Kind, name: str) -> LiteralString:
    looked_at, matching = query(f"records_{side}"), query(f"matching_{kind}")
    return "with looked_at as (" + looked_at + "), matching as (" + matching + ")" + query(name)
