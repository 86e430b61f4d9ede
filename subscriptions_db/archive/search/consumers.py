"""Let pollers of one customer share its dead letters: lease, acknowledge, give back, seek.

Runs wherever customers poll; each function in the caller's transaction, if there is one. A letter is given to one poller at a
time, and again when its lease is over without an acknowledgement: at least once, for each consumer on its own.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from delivery import errors
from subscriptions_db import answer_size
from subscriptions_db.archive.search import archived_dead_letters
from subscriptions_db.archive.search.archived_dead_letters import Archived
from subscriptions_db.archive.search.cursor import Receipt
from subscriptions_db.archive.search.selection import Selection
from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query

MAX_LEASE_S = 43_200.0
MAX_UNACKNOWLEDGED = 10_000
"""A consumer that acknowledges nothing gets no more than these, again and again."""
_BEGINNING = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """Some pollers who share the work, and what they ask for."""

    name: str
    selection: Selection
    read_until: int
    created_at: dt.datetime
    unacknowledged: int


class Leased(NamedTuple):
    """A letter that a poller has for a while."""

    letter: Archived
    receipt: Receipt
    times: int
    """How often it was given to a poller of this consumer, this time included."""
    until: dt.datetime


class Polled(NamedTuple):
    """What a poll has given."""

    leased: list[Leased]
    has_more: bool
    """Whether to poll on at once."""


def lease_end(now: dt.datetime, lease_s: float) -> dt.datetime:
    """Return when a lease that is asked for is over; at once where it is for no time at all."""
    return now + dt.timedelta(seconds=min(max(lease_s, 0.0), MAX_LEASE_S))


def room(limit: int, again: int, unacknowledged: int) -> int:
    """Return how many letters a poll may give that nobody had yet, beside those that are given again."""
    return max(0, min(limit - again, MAX_UNACKNOWLEDGED - unacknowledged))


def create(
    connection: connect.Connection, customer_id: str, name: str, selection: Selection, *, after: int = _BEGINNING
) -> bool:
    """Make a consumer that begins behind a position; False where there is one with this name, which stays as it is.

    What it asks for is its own for good: a letter that it has passed over would never come back to another selection.
    """
    if selection.since is not None or selection.until is not None:
        raise errors.RegistrationError("since", "a consumer asks for no time: seek to one instead")
    wanted = _of(customer_id, name) | selection.parameters() | {"type": selection.event_type, "read_until": after}
    with connect.translating():
        return connection.execute(query("put_consumer"), wanted).rowcount == 1


def consumers(connection: connect.Connection, customer_id: str, name: str | None = None) -> list[Consumer]:
    """Return a customer's consumers, or the one with this name."""
    with connect.translating():
        found = connection.execute(query("consumers"), {"customer_id": customer_id, "name": name})
        return [_consumer(row) for row in found]


def delete(connection: connect.Connection, customer_id: str, name: str) -> bool:
    """Forget a consumer and its leases; tell whether there was one. No letter changes."""
    with connect.translating():
        return connection.execute(query("delete_consumer"), _of(customer_id, name)).rowcount == 1


def lease(
    connection: connect.Connection, customer_id: str, name: str, *, limit: int, lease_s: float, now: dt.datetime
) -> Polled:
    """Give letters to a poller, at most `limit` and as many as fit into an answer.

    First those whose lease is over, then those that nobody had.

    What is discarded, redriven or dropped meanwhile is given no more.
    """
    of = _of(customer_id, name)
    until, token = lease_end(now, lease_s), uuid.uuid4()
    with connect.translating(), connect.together(connection):
        consumer = _locked(connection, of)
        taken = {"token": token, "until": until, "now": now}
        ended = [row["position"] for row in connection.execute(query("leases_that_are_over"), of | taken | {"limit": limit})]
        sizes = archived_dead_letters.sizes(connection, customer_id, ended)
        fits = answer_size.count(sizes)
        [held] = connection.execute(query("lease_again"), of | taken | {"positions": ended[:fits]}).fetchall()
        times = dict(zip(held["positions"], held["times"], strict=True))
        again = archived_dead_letters.waiting(connection, customer_id, held["positions"])
        if gone := list(times.keys() - {letter.position for letter in again}):
            connection.execute(query("forget_leases"), of | {"positions": gone})
        unacknowledged = held["unacknowledged"] - len(gone)
        left = room(limit, len(again), unacknowledged) if fits == len(ended) else 0
        new, has_more = _new(connection, of, consumer, left, taken, held=sum(sizes))
    given = sorted([*again, *new], key=lambda letter: letter.position)
    leased = [Leased(letter, Receipt(letter.position, token), times.get(letter.position, 1), until) for letter in given]
    return Polled(leased, has_more or fits < len(ended) or len(times) == limit)


def acknowledge(connection: connect.Connection, customer_id: str, name: str, receipts: Sequence[Receipt]) -> list[int]:
    """Take letters as handled; return which. Missing: what another poller has by now, or was acknowledged before."""
    return _give(connection, "acknowledge", _of(customer_id, name), receipts)


def give_back(
    connection: connect.Connection,
    customer_id: str,
    name: str,
    receipts: Sequence[Receipt],
    *,
    now: dt.datetime,
    wait_s: float = 0,
) -> list[int]:
    """Let letters be given again after `wait_s`, to whoever polls; return which. Missing ones as for `acknowledge`."""
    return _give(connection, "give_back", _of(customer_id, name) | {"until": lease_end(now, wait_s)}, receipts)


def seek(connection: connect.Connection, customer_id: str, name: str, *, after: int) -> None:
    """Go on behind this position, forwards or backwards. What pollers have now is forgotten, and acknowledges nothing."""
    of = _of(customer_id, name)
    with connect.translating(), connect.together(connection):
        _locked(connection, of)
        connection.execute(query("forget_leases"), of | {"positions": None})
        connection.execute(query("set_read_until"), of | {"read_until": after})


def position_before(connection: connect.Connection, customer_id: str, since: dt.datetime) -> int:
    """Return behind which position the letters are that were archived since a time: for `seek`."""
    with connect.translating():
        first = connection.execute(query("first_dead_letter_since"), {"customer_id": customer_id, "since": since}).fetchone()
        if first is not None and first["position"] is not None:
            return int(first["position"]) - 1
        return end(connection, customer_id)


def end(connection: connect.Connection, customer_id: str) -> int:
    """Return the position of the newest letter that waits: what is archived from now on is behind it."""
    with connect.translating():
        last = connection.execute(query("last_dead_letter"), {"customer_id": customer_id}).fetchone()
    return int(last["position"]) if last is not None and last["position"] is not None else _BEGINNING


def _new(
    connection: connect.Connection,
    of: dict[str, Any],
    consumer: dict[str, Any],
    limit: int,
    taken: dict[str, Any],
    *,
    held: int,
) -> tuple[list[Archived], bool]:
    """Lease letters that nobody had, and pass over what is not asked for."""
    if not limit:
        return [], False
    after, selection = consumer["read_until"], _selection(consumer)
    found = archived_dead_letters.find_fitting(connection, of["customer_id"], selection, after=after, limit=limit, held=held)
    if found.until != after:
        connection.execute(query("lease"), of | taken | {"positions": found.positions, "read_until": found.until})
    return archived_dead_letters.waiting(connection, of["customer_id"], found.positions), found.has_more


def _give(connection: connect.Connection, how: str, of: dict[str, Any], receipts: Sequence[Receipt]) -> list[int]:
    told = {"positions": [one.position for one in receipts], "tokens": [one.token for one in receipts]}
    with connect.translating():
        return sorted(row["position"] for row in connection.execute(query(how), of | told))


def _locked(connection: connect.Connection, of: dict[str, Any]) -> dict[str, Any]:
    found = connection.execute(query("lock_consumer"), of).fetchone()
    if found is None:
        raise errors.RegistrationError("consumer", "there is no such consumer")
    return found


def _of(customer_id: str, name: str) -> dict[str, Any]:
    return {"customer_id": customer_id, "name": name}


def _selection(row: dict[str, Any]) -> Selection:
    return Selection(**{name: row[name] for name in ("endpoint_id", "event_type", "tenant_id", "reason")})


def _consumer(row: dict[str, Any]) -> Consumer:
    facts = {name: row[name] for name in ("name", "read_until", "created_at", "unacknowledged")}
    return Consumer(selection=_selection(row), **facts)
