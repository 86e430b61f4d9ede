"""Find archived dead letters, show them, discard them, ask for their redrive.

Runs wherever customers or operators ask; each function in the caller's transaction, if there is one. The customer is named in
every statement, and the tables' policies say the same once more.
"""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from subscriptions_db import answer_size
from subscriptions_db.archive.ingest import archived_rows
from subscriptions_db.archive.search import cursor
from subscriptions_db.archive.search.selection import Selection
from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query

MAX_LOOKED_AT = 5000
"""So many letters are looked at in one call; where what is asked for is rare, the next call goes on behind them."""


class State(enum.StrEnum):
    """What has become of a letter in the archive. Acknowledging is each consumer's own, and changes no letter."""

    WAITING = "waiting"
    REDRIVING = "redriving"
    """Asked for; `fanout archive` hands it over next."""
    REDRIVEN = "redriven"
    DISCARDED = "discarded"


_FROM = {State.DISCARDED: [State.WAITING], State.REDRIVING: [State.WAITING, State.DISCARDED]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """A dead letter as the archive has it."""

    position: int
    archived_at: dt.datetime
    state: State
    state_since: dt.datetime
    customer_id: str
    payload: bytes
    """The event's content, byte for byte as its producer wrote it."""
    letter: bytes
    """All else of the record of the topic."""

    @property
    def cursor(self) -> str:
        """Return the cursor behind it."""
        return cursor.of_position(self.position)

    def document(self) -> dict[str, Any]:
        """Return all of it for machines; the payload in base64, as the topic has it."""
        said = {"letter": self.position, "state": self.state, "archived_at": self.archived_at, "state_since": self.state_since}
        document: dict[str, Any] = orjson.loads(self.written())
        return said | document

    def written(self) -> bytes:
        """Return it as a record of the dead-letter topic."""
        return archived_rows.written(self.letter, self.payload)


class Page(NamedTuple):
    """Some letters in the order of the archive, and how to go on."""

    letters: list[Archived]
    until: int
    """Up to this position nothing was left out, and nothing will ever come: what becomes visible later is behind it."""
    has_more: bool
    """Whether to ask on at once. Else what comes next has still to be archived."""


def browse(connection: connect.Connection, customer_id: str, selection: Selection, *, after: int, limit: int) -> Page:
    """Return the letters behind a position that wait and are asked for, as many as fit into an answer.

    A page may be empty and have more behind it.
    """
    found = find_fitting(connection, customer_id, selection, after=after, limit=limit)
    return Page(waiting(connection, customer_id, found.positions), found.until, found.has_more)


def get(connection: connect.Connection, customer_id: str, position: int) -> Archived | None:
    """Return a letter, whatever has become of it; None where the customer has none there."""
    with connect.translating():
        row = connection.execute(query("dead_letters_at"), _at(customer_id, [position]), binary=True).fetchone()
    return None if row is None else _archived(row)


def discard(connection: connect.Connection, customer_id: str, positions: Sequence[int], *, now: dt.datetime) -> list[int]:
    """Let letters wait no longer, for no consumer; return which were waiting. They stay in the archive for its retention."""
    return _mark(connection, customer_id, positions, State.DISCARDED, now)


def redrive(connection: connect.Connection, customer_id: str, positions: Sequence[int], *, now: dt.datetime) -> list[int]:
    """Ask for letters to be delivered again; return which were waiting or discarded. `fanout archive` hands them over."""
    return _mark(connection, customer_id, positions, State.REDRIVING, now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked:
    """How many letters were marked, and how to go on."""

    count: int
    until: int
    has_more: bool


def mark_all(
    connection: connect.Connection,
    customer_id: str,
    selection: Selection,
    state: State,
    *,
    after: int,
    limit: int,
    now: dt.datetime,
) -> Marked:
    """Discard or redrive at most `limit` of the waiting letters that are asked for, as `browse` gives them."""
    found = find(connection, customer_id, selection, after=after, limit=limit)
    marked = _mark(connection, customer_id, found.positions, state, now)
    return Marked(count=len(marked), until=found.until, has_more=found.has_more)


class Found(NamedTuple):
    """As Page, less the letters."""

    positions: list[int]
    until: int
    has_more: bool


def find(connection: connect.Connection, customer_id: str, selection: Selection, *, after: int, limit: int) -> Found:
    """Return where the letters of a page are."""
    asked = {"customer_id": customer_id, "after": after, "limit": limit, "most": MAX_LOOKED_AT}
    with connect.translating():
        row = connection.execute(query("dead_letters_after"), asked | selection.parameters()).fetchone()
    return page(row or {}, after=after)


def find_fitting(
    connection: connect.Connection, customer_id: str, selection: Selection, *, after: int, limit: int, held: int = 0
) -> Found:
    """As `find`, but no more letters than fit into an answer that holds `held` bytes already."""
    found = find(connection, customer_id, selection, after=after, limit=limit)
    positions = found.positions[: answer_size.count(sizes(connection, customer_id, found.positions), held=held)]
    if len(positions) == len(found.positions):
        return found
    return Found(positions, positions[-1] if positions else after, has_more=True)


def sizes(connection: connect.Connection, customer_id: str, positions: Sequence[int]) -> list[int]:
    """Return how many bytes each of these letters takes in an answer, in the order of the positions; 0 for one that is gone."""
    if not positions:
        return []
    with connect.translating():
        found = connection.execute(query("dead_letter_sizes"), _at(customer_id, positions)).fetchall()
    known = {row["position"]: int(row["size"]) for row in found}
    return [known.get(position, 0) for position in positions]


def page(row: dict[str, Any], *, after: int) -> Found:
    """Return what an answer of `dead_letters_after` says.

    1. The page is full: what was looked at ends with its last letter.
    2. All was looked at, or as many as may be: there may be more only in the second case.
    """
    if row["looked_at"] is None:
        return Found(row["positions"], row["positions"][-1], has_more=True)
    count, last = row["looked_at"]
    return Found(row["positions"], after if last is None else last, has_more=count == MAX_LOOKED_AT)


def waiting(connection: connect.Connection, customer_id: str, positions: Sequence[int]) -> list[Archived]:
    """Return those letters that still wait, in their order."""
    if not positions:
        return []
    with connect.translating():
        found = connection.execute(query("waiting_dead_letters_at"), _at(customer_id, positions), binary=True)
        return [_archived(row) for row in found]


def _mark(
    connection: connect.Connection, customer_id: str, positions: Sequence[int], state: State, now: dt.datetime
) -> list[int]:
    if not positions:
        return []
    asked = _at(customer_id, positions) | {"state": state, "now": now, "from_states": _FROM[state]}
    with connect.translating():
        marked = connection.execute(query("mark_dead_letters"), asked)
        return sorted(row["position"] for row in marked)


def _at(customer_id: str, positions: Sequence[int]) -> dict[str, Any]:
    """Return places as the statements have them: with their bounds, by which Postgres knows the partitions."""
    return {"customer_id": customer_id, "positions": list(positions), "first": min(positions), "last": max(positions)}


def _archived(row: dict[str, Any]) -> Archived:
    return Archived(**row | {"state": State(row["state"])})
