"""Ask for deliveries again: all of a time, or one; see how far that is, and cancel it.

Runs wherever customers or operators ask; each function in the caller's transaction. `fanout archive` carries it out.
"""

from __future__ import annotations

import datetime as dt
import enum
import secrets
from dataclasses import dataclass
from typing import Any

from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query


class State(enum.StrEnum):
    """How far a replay is."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    """All is handed over. What becomes of it goes on being counted."""
    FAILED = "failed"
    CANCELLED = "cancelled"


UNDER_WAY = frozenset({State.WAITING, State.RUNNING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A time of an endpoint: what Kafka took at `since` or later and before `until`."""

    since: dt.datetime
    until: dt.datetime
    event_types: list[str] | None = None
    """Exact types, or prefix wildcards such as `order.*`. None: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class One:
    """One delivery, and where its event is."""

    webhook_id: str
    subscription_id: str
    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What was asked for, and how far it is."""

    replay_id: str
    number: int
    customer_id: str
    endpoint_id: str
    asked: Range | One
    state: State
    reason: str | None
    """Why it failed."""
    is_whole: bool
    """False: Kafka may hold no more of all that was asked for."""
    created_at: dt.datetime
    state_since: dt.datetime
    records: int
    """That were looked at, whoever they were due to."""
    handed_over: int
    """Deliveries that the retry lane got."""
    delivered: int
    dead_lettered: int
    skipped: int

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Replay:
        """Return what a row of `replays` says."""
        asked: Range | One
        of_range = {name: row.pop(name) for name in ("since", "until", "event_types")}
        of_one = {name: row.pop(name) for name in ("webhook_id", "subscription_id", "topic", "partition", "offset")}
        asked = Range(**of_range) if of_one["webhook_id"] is None else One(**of_one)
        return cls(asked=asked, **row | {"state": State(row["state"])})


def ask(connection: connect.Connection, customer_id: str, endpoint_id: str, asked: Range | One) -> Replay | None:
    """Ask for a replay; None where the same delivery, or another time of this endpoint, is being replayed already."""
    fields = {field: getattr(asked, field, None) for kind in (Range, One) for field in kind.__dataclass_fields__}
    whose = {"replay_id": f"rpl_{secrets.token_hex(12)}", "customer_id": customer_id, "endpoint_id": endpoint_id}
    with connect.translating():
        row = connection.execute(query("ask_for_replay"), fields | whose).fetchone()
    return None if row is None else Replay.from_row(row)


def count_under_way(connection: connect.Connection, customer_id: str) -> int:
    """Return how many of a customer's replays have not ended."""
    with connect.translating():
        [row] = connection.execute(query("count_replays_under_way"), {"customer_id": customer_id}).fetchall()
    return int(row["count"])


def get(connection: connect.Connection, customer_id: str, replay_id: str) -> Replay | None:
    """Return a customer's replay; None where there is none of this id."""
    with connect.translating():
        row = connection.execute(query("replay"), {"customer_id": customer_id, "replay_id": replay_id}).fetchone()
    return None if row is None else Replay.from_row(row)


def page(connection: connect.Connection, customer_id: str, *, endpoint_id: str | None, before: int, limit: int) -> list[Replay]:
    """Return a customer's replays of lower numbers, the newest first."""
    asked = {"customer_id": customer_id, "endpoint_id": endpoint_id, "before": before, "limit": limit}
    with connect.translating():
        return [Replay.from_row(row) for row in connection.execute(query("page_of_replays"), asked)]


def any_(connection: connect.Connection, replay_id: str) -> Replay | None:
    """Return the replay with this id, of any customer; None where there is none."""
    with connect.translating():
        row = connection.execute(query("any_replay"), {"replay_id": replay_id}).fetchone()
    return None if row is None else Replay.from_row(row)


def newest(connection: connect.Connection, *, endpoint_id: str | None, limit: int) -> list[Replay]:
    """Return replays of all customers, the newest first."""
    with connect.translating():
        found = connection.execute(query("newest_replays"), {"endpoint_id": endpoint_id, "limit": limit})
        return [Replay.from_row(row) for row in found]


def cancel(connection: connect.Connection, customer_id: str, replay_id: str, *, now: dt.datetime) -> bool:
    """Hand nothing more over; tell whether it had not ended. What is handed over is delivered."""
    asked = {"customer_id": customer_id, "replay_id": replay_id, "now": now}
    with connect.translating():
        return connection.execute(query("cancel_replay"), asked).rowcount == 1
