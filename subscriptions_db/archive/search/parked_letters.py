"""List the parked dead letters of a consumer, and give them back to the consumer (unpark).

Runs in the API. A poll parks a dead letter that the consumer has leased `max_receives` times, once the last lease has
ended (consumers.py).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any, NamedTuple

from subscriptions_db.archive.search import archived_dead_letters, consumers
from subscriptions_db.archive.search.archived_dead_letters import ArchivedDeadLetter
from subscriptions_db.archive.search.selection import DeadLetterSearch
from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query

MAX_UNPARKED = 1000
"""Maximum dead letters that one call unparks, so that no call locks rows for long."""


class ParkedLetter(NamedTuple):
    """A dead letter that is parked for a consumer."""

    letter: ArchivedDeadLetter
    times: int
    """Number of leases of the dead letter by this consumer."""
    parked_at: dt.datetime


class ParkedPage(NamedTuple):
    """A page of parked dead letters in the order of the archive."""

    parked: list[ParkedLetter]
    until: int
    """The page is complete from its start to this position. A dead letter that is parked later may lie in this range."""
    has_more: bool
    """True: there may be more matches beyond `until`: earlier ones if `is_backwards`, else later ones."""


class Unparked(NamedTuple):
    """The dead letters that a call has given back to their consumer."""

    positions: list[int]
    has_more: bool
    """True: more dead letters of the request are still parked, so the caller repeats the call. True with empty `positions`: the
    consumer has too many dead letters without an ack, and must ack some before the next call."""


def browse(
    connection: connect.Connection,
    customer_id: str,
    name: str,
    selection: DeadLetterSearch,
    *,
    place: int,
    is_backwards: bool,
    limit: int,
) -> ParkedPage:
    """Return the consumer's matching parked dead letters after the position `place`, or before it with `is_backwards`.

    The page has at most `limit` dead letters, and no more than fit into an answer. Discarded and redriven dead letters are left
    out. The page may be empty although further dead letters are parked: `has_more` says so.
    """
    among: archived_dead_letters.Among = "parked_before" if is_backwards else "parked_after"
    found = archived_dead_letters.nearest(connection, customer_id, selection, among, place, limit=limit, consumer=name)
    fitting = archived_dead_letters.fitting_letters(connection, customer_id, found, place=place)
    asked = {"customer_id": customer_id, "name": name, "positions": fitting.positions}
    with connect.translated_errors():
        leases = {row["position"]: row for row in connection.execute(query("parked_leases_at"), asked)}
    parked = [
        ParkedLetter(letter, leases[letter.position]["times"], leases[letter.position]["parked_at"])
        for letter in archived_dead_letters.waiting(connection, customer_id, fitting.positions)
        if letter.position in leases
    ]
    return ParkedPage(parked, fitting.until, fitting.has_more)


def unpark(
    connection: connect.Connection,
    customer_id: str,
    name: str,
    positions: Sequence[int] | None,
    *,
    now: dt.datetime,
    max_unacknowledged: int = consumers.MAX_UNACKNOWLEDGED,
) -> Unparked:
    """Give parked dead letters back to their consumer: those at `positions`, or all for None.

    Return the positions of the unparked dead letters, and whether the call has left some of the requested ones parked. The
    number of leases of each dead letter begins at zero again. Positions without a parked dead letter are ignored. One call
    unparks at most MAX_UNPARKED dead letters, and fewer if the consumer would otherwise have more than `max_unacknowledged`
    dead letters without an ack. Raise RegistrationError if the consumer does not exist.
    """
    key: dict[str, Any] = {"customer_id": customer_id, "name": name}
    with connect.translated_errors(), connect.in_transaction(connection):
        consumers.locked(connection, key)
        [counted] = connection.execute(query("unacknowledged"), key).fetchall()
        room = consumers.room(MAX_UNPARKED, 0, counted["unacknowledged"], max_unacknowledged=max_unacknowledged)
        chosen = connection.execute(query("parked_positions"), key | {"positions": positions, "limit": room + 1}).fetchall()
        unparked = [row["position"] for row in chosen[:room]]
        connection.execute(query("unpark"), key | {"positions": unparked, "now": now})
    return Unparked(unparked, has_more=len(chosen) > room)
