"""Search and read archived dead letters, discard them, and request their redrive.

Runs in the API, in the caller's transaction. Every statement names the customer, and row-level security enforces the same.
"""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import orjson

from delivery.payload_form import Opaque, PayloadForm
from delivery.webhooks.events import opaque
from subscriptions_db import answer_size
from subscriptions_db.archive.search.selection import DeadLetterSearch
from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query

MAX_LOOKED_AT = 5000
"""Maximum dead letters that one call examines. If few of them match, the caller's next call continues beyond them."""


Among = Literal["letters_after", "letters_before", "parked_after", "parked_before"]
"""The statements that examine dead letters: the waiting ones of a customer, or the parked ones of a consumer."""


class LetterState(enum.StrEnum):
    """The state of an archived dead letter. Acks belong to consumers and do not change the state."""

    WAITING = "waiting"
    """Consumers can lease the dead letter."""
    REDRIVING = "redriving"
    """A redrive was requested. `fanout archive` enqueues the dead letter in the retry lane next."""
    REDRIVEN = "redriven"
    DISCARDED = "discarded"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedDeadLetter:
    """A dead letter in the archive."""

    position: int
    archived_at: dt.datetime
    state: LetterState
    state_since: dt.datetime
    customer_id: str
    payload: bytes
    """The event's payload as it stands in a JSON body, byte for byte. An opaque payload is a JSON string."""
    letter: bytes
    """The record of the dead-letter topic without the payload, and with the error classes that customers see
    (disclosure.py)."""

    def payload_bytes(self) -> bytes:
        """Return the payload as its producer wrote it, also if it is not JSON; `null` if the event has no payload.

        A compressed value is decompressed. A value of a schema registry is its decoded JSON, unless the endpoint wanted the
        original payload.
        """
        record = orjson.loads(self.letter)
        if "payload_form" not in record:
            return self.payload
        return opaque.as_bytes(self.payload, Opaque(PayloadForm(record["payload_form"]), record.get("datacontenttype", "")))


class LetterPage(NamedTuple):
    """A page of dead letters by position in the archive, the earliest archived first."""

    letters: list[ArchivedDeadLetter]
    until: int
    """The page has all matches from its start to this position. Dead letters that are archived later have higher positions."""
    has_more: bool
    """True: there may be more matches beyond `until`: later ones for `browse`, earlier ones for `browse_back`. False: there are
    none."""


def browse(
    connection: connect.Connection, customer_id: str, selection: DeadLetterSearch, *, after: int, limit: int
) -> LetterPage:
    """Return the matching waiting dead letters after a position, at most `limit` and as many as fit into an answer.

    The page may be empty although later dead letters match: `has_more` says so.
    """
    found = find_fitting(connection, customer_id, selection, after=after, limit=limit)
    return LetterPage(waiting(connection, customer_id, found.positions), found.until, found.has_more)


def browse_back(
    connection: connect.Connection, customer_id: str, selection: DeadLetterSearch, *, before: int, limit: int
) -> LetterPage:
    """Return the matching waiting dead letters before a position, in the order of the archive.

    The page has the nearest ones, at most `limit` and as many as fit into an answer. The page may be empty although earlier
    dead letters match: `has_more` says so.
    """
    found = nearest(connection, customer_id, selection, "letters_before", before, limit=limit)
    fitting = fitting_letters(connection, customer_id, found, place=before)
    return LetterPage(waiting(connection, customer_id, fitting.positions), fitting.until, fitting.has_more)


def get(connection: connect.Connection, customer_id: str, position: int) -> ArchivedDeadLetter | None:
    """Return a dead letter in any state; None if the customer has none at the position."""
    with connect.translated_errors():
        row = connection.execute(query("dead_letters_at"), _at(customer_id, [position]), binary=True).fetchone()
    return None if row is None else _archived(row)


def discard(connection: connect.Connection, customer_id: str, positions: Sequence[int], *, now: dt.datetime) -> list[int]:
    """Discard waiting dead letters for all consumers, and return their positions. The archive keeps discarded dead letters."""
    return _mark(connection, customer_id, positions, LetterState.DISCARDED, now, from_states=[LetterState.WAITING])


def redrive(connection: connect.Connection, customer_id: str, positions: Sequence[int], *, now: dt.datetime) -> list[int]:
    """Request the redrive of waiting or discarded dead letters; return the positions of those whose state this call changed.

    `fanout archive` enqueues them in the retry lane (redrive_requests.py).
    """
    taken = [LetterState.WAITING, LetterState.DISCARDED]
    return _mark(connection, customer_id, positions, LetterState.REDRIVING, now, from_states=taken)


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkResult:
    """The result of `mark_all`, and where to continue."""

    count: int
    """Dead letters that the call has discarded, or whose redrive it has requested."""
    until: int
    """The call has handled all matches up to this position. The next call continues after it."""
    has_more: bool
    """True: there may be more matches after `until`. False: all waiting dead letters after the start were examined."""


def mark_all(
    connection: connect.Connection,
    customer_id: str,
    selection: DeadLetterSearch,
    state: LetterState,
    *,
    after: int,
    limit: int,
    now: dt.datetime,
) -> MarkResult:
    """Discard the first matching waiting dead letters after a position, at most `limit`, or request their redrive.

    `state` decides: DISCARDED or REDRIVING. A call examines at most MAX_LOOKED_AT dead letters. A dead letter that leaves
    the state `waiting` between the search and the change is left out. So a redrive of many takes no dead letter that was
    discarded meanwhile.
    """
    found = find(connection, customer_id, selection, after=after, limit=limit)
    marked = _mark(connection, customer_id, found.positions, state, now, from_states=[LetterState.WAITING])
    return MarkResult(count=len(marked), until=found.until, has_more=found.has_more)


class FoundLetters(NamedTuple):
    """The positions of the matches on one page of a search.

    A search begins at the caller's position and goes to later or to earlier positions. The page has the order of the search.
    """

    positions: list[int]
    until: int
    """The page has all matches from the caller's position to this one."""
    has_more: bool
    """True: there may be more matches beyond `until`. False: there are none."""


def find(
    connection: connect.Connection,
    customer_id: str,
    selection: DeadLetterSearch,
    *,
    after: int,
    limit: int,
    most: int = MAX_LOOKED_AT,
) -> FoundLetters:
    """Return the positions of at most `limit` matches among the next `most` waiting dead letters after a position."""
    return nearest(connection, customer_id, selection, "letters_after", after, limit=limit, most=most)


def nearest(
    connection: connect.Connection,
    customer_id: str,
    selection: DeadLetterSearch,
    among: Among,
    place: int,
    *,
    limit: int,
    consumer: str | None = None,
    most: int = MAX_LOOKED_AT,
) -> FoundLetters:
    """Search dead letters before or after the position `place`; return the positions of the first matches.

    At most `most` dead letters are examined, the nearest to `place` first. At most `limit` positions are returned. `among`
    decides two things: whether the search goes before or after `place`, and whether it examines waiting dead letters or those
    that are parked for `consumer`.
    """
    asked = {"customer_id": customer_id, "name": consumer, "place": place, "limit": limit, "most": most}
    asked |= selection.parameters()
    side = "before" if among.endswith("before") else "after"
    looked_at, judged, matching = query(among), query("judged_letters"), query("matching_letters")
    found = "with looked_at as materialized (" + looked_at + "), judged as (" + judged + ")"
    with connect.translated_errors():
        row = connection.execute(
            found + ", matching as materialized (" + matching + ")" + query(f"page_{side}"), asked
        ).fetchone()
    return page(row or {}, place=place, most=most)


def find_fitting(
    connection: connect.Connection, customer_id: str, selection: DeadLetterSearch, *, after: int, limit: int, held: int = 0
) -> FoundLetters:
    """Return the first positions that `find` returns, as many as fit into an answer that has `held` bytes already."""
    found = find(connection, customer_id, selection, after=after, limit=limit)
    return fitting_letters(connection, customer_id, found, place=after, held=held)


def fitting_letters(
    connection: connect.Connection, customer_id: str, found: FoundLetters, *, place: int, held: int = 0
) -> FoundLetters:
    """Return the page `found`, cut behind the last dead letter that fits into an answer that has `held` bytes already.

    If `held` is 0, the page keeps at least one dead letter, of any size. `place` is where the search for the page began.
    """
    positions = found.positions[: answer_size.count(sizes(connection, customer_id, found.positions), held=held)]
    if len(positions) == len(found.positions):
        return found
    return FoundLetters(positions, positions[-1] if positions else place, has_more=True)


def sizes(connection: connect.Connection, customer_id: str, positions: Sequence[int]) -> list[int]:
    """Return about how many bytes each dead letter takes in an API answer, in the order of the positions. 0: no dead letter."""
    if not positions:
        return []
    with connect.translated_errors():
        found = connection.execute(query("dead_letter_sizes"), _at(customer_id, positions)).fetchall()
    known = {row["position"]: int(row["size"]) for row in found}
    return [known.get(position, 0) for position in positions]


def page(row: dict[str, Any], *, place: int, most: int) -> FoundLetters:
    """Return the page that a row of the statement `page_after` or `page_before` describes.

    `place` is the archive position after or before which the search began.
    1. The page has as many matches as were asked for: there may be more beyond the last of them.
    2. The page has fewer matches, and fewer than `most` dead letters were examined: no dead letters are left to examine, so
       there are no more matches.
    3. The page has fewer matches, and `most` dead letters were examined: there may be more matches.
    """
    if row["looked_at"] is None:
        return FoundLetters(row["positions"], row["positions"][-1], has_more=True)
    count, last = row["looked_at"]
    return FoundLetters(row["positions"], place if last is None else last, has_more=count == most)


def waiting(connection: connect.Connection, customer_id: str, positions: Sequence[int]) -> list[ArchivedDeadLetter]:
    """Return a customer's dead letters at these positions, if their state is still `waiting`, sorted by position."""
    if not positions:
        return []
    with connect.translated_errors():
        found = connection.execute(query("waiting_dead_letters_at"), _at(customer_id, positions), binary=True)
        return [_archived(row) for row in found]


def _mark(
    connection: connect.Connection,
    customer_id: str,
    positions: Sequence[int],
    state: LetterState,
    now: dt.datetime,
    *,
    from_states: Sequence[LetterState],
) -> list[int]:
    """Give a state to the dead letters at these positions that are in one of `from_states`; return their positions."""
    if not positions:
        return []
    asked = _at(customer_id, positions) | {"state": state, "now": now, "from_states": list(from_states)}
    with connect.translated_errors():
        marked = connection.execute(query("mark_dead_letters"), asked)
        return sorted(row["position"] for row in marked)


def _at(customer_id: str, positions: Sequence[int]) -> dict[str, Any]:
    """Return the parameters of a statement about these positions. `first` and `last` let Postgres skip other partitions."""
    return {"customer_id": customer_id, "positions": list(positions), "first": min(positions), "last": max(positions)}


def _archived(row: dict[str, Any]) -> ArchivedDeadLetter:
    return ArchivedDeadLetter(**row | {"state": LetterState(row["state"])})
