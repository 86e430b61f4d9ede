"""Take up replays one after the other, and keep how far each is.

Runs in `fanout archive`. What is handed over while a replay is `held` is written down when that ends well: a process that dies
in between hands the same piece over again, with the same `webhook-id`s.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query
from subscriptions_db.replays.requests import Replay, State


class Place(NamedTuple):
    """How far a replay is in a partition: before its end there is something to read."""

    topic: str
    partition: int
    next_offset: int
    end_offset: int


class Ended(NamedTuple):
    """How many deliveries of a replay have ended, and how."""

    replay_id: str
    delivered: int = 0
    dead_lettered: int = 0
    skipped: int = 0


def under_way(connection: connect.Connection, *, after: int, max_pending: int) -> list[Replay]:
    """Return the replays that may go on, those behind a number first: all are asked in turn.

    Left out is of what `max_pending` deliveries were handed over that have not ended.
    """
    with connect.translating():
        rows = connection.execute(query("replays_under_way"), {"after": after, "max_pending": max_pending})
        return [Replay.from_row(row) for row in rows]


@contextlib.contextmanager
def held(connection: connect.Connection, replay: Replay) -> Iterator[Replay | None]:
    """Yield a replay as it is now, held until the end; None: it has ended, or somebody else has it."""
    with connect.translating(), connection.transaction():
        row = connection.execute(query("hold_replay"), {"replay_id": replay.replay_id}).fetchone()
        yield None if row is None else Replay.from_row(row)


def begin(connection: connect.Connection, replay: Replay, places: Sequence[Place], *, is_whole: bool, now: dt.datetime) -> None:
    """Keep what there is to read."""
    columns = {name: [getattr(place, name) for place in places] for name in Place._fields}
    connection.execute(query("put_replay_places"), columns | {"replay_id": replay.replay_id})
    connection.execute(query("begin_replay"), {"replay_id": replay.replay_id, "is_whole": is_whole, "now": now})


def place(connection: connect.Connection, replay: Replay) -> Place | None:
    """Return where to read on; None: nowhere."""
    row = connection.execute(query("replay_place"), {"replay_id": replay.replay_id}).fetchone()
    return None if row is None else Place(**row)


def reach(
    connection: connect.Connection, replay: Replay, reached: Place, *, is_lost: bool, records: int, handed_over: int
) -> None:
    """Keep that a place is read up to an offset, and that Kafka has what was due of it."""
    connection.execute(query("reach_replay_place"), reached._asdict() | {"replay_id": replay.replay_id})
    count(connection, replay, is_lost=is_lost, records=records, handed_over=handed_over)


def count(connection: connect.Connection, replay: Replay, *, is_lost: bool, records: int, handed_over: int) -> None:
    """Count what was looked at and handed over. `is_lost`: Kafka holds no more of something that was asked for."""
    counted = {"records": records, "handed_over": handed_over, "is_lost": is_lost}
    connection.execute(query("count_replayed"), counted | {"replay_id": replay.replay_id})


def end(connection: connect.Connection, replay: Replay, state: State, *, now: dt.datetime, reason: str | None = None) -> None:
    """Say how a replay has ended, and forget how far it was."""
    asked = {"replay_id": replay.replay_id, "state": state, "reason": reason, "now": now}
    connection.execute(query("end_replay"), asked)
    connection.execute(query("forget_replay_places"), asked)


def add_ended(connection: connect.Connection, ended: Iterable[Ended]) -> None:
    """Count what has become of deliveries, in the caller's transaction, which makes it exactly once."""
    rows = sorted(ended)
    if rows:
        columns = {name: [getattr(row, name) for row in rows] for name in Ended._fields}
        connection.execute(query("add_ended_of_replays"), columns)


def forget(connection: connect.Connection, *, before: dt.datetime) -> int:
    """Forget replays that ended before then; return how many."""
    with connect.translating():
        return connection.execute(query("forget_replays"), {"before": before}).rowcount
