"""Keep the archive's days: make those that come, drop those that are kept long enough.

Runs in `fanout archive`. A day is a partition, in UTC: to drop one costs nothing, whatever it holds.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Literal

import psycopg

from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query

Kind = Literal["dead_letters", "attempts"]
AHEAD = 2
"""So many days are there before they begin, for a process that is away, and for clocks that differ."""


def of(moment: dt.datetime) -> dt.date:
    """Return the day that a moment belongs to."""
    return moment.astimezone(dt.UTC).date()


def oldest(today: dt.date, retention_days: int) -> dt.date:
    """Return the oldest day that is kept: what came on it is kept for at least so many whole days."""
    return today - dt.timedelta(days=retention_days)


def is_kept(day: dt.date, today: dt.date, retention_days: int) -> bool:
    """Tell whether there is a place for what belongs to a day. None is made for clocks that are far ahead."""
    return oldest(today, retention_days) <= day <= today + dt.timedelta(days=AHEAD)


def coming(today: dt.date) -> Iterator[dt.date]:
    """Yield today and the days that are made ahead."""
    for number in range(AHEAD + 1):
        yield today + dt.timedelta(days=number)


def make(connection: connect.Connection, kind: Kind, day: dt.date) -> bool:
    """Make a day if it is missing; tell whether it was."""
    with connect.translating():
        row = connection.execute(query("make_archive_day"), {"kind": kind, "day": day}).fetchone()
    return bool(row and row["made"])


def drop(connection: connect.Connection, kind: Kind, before: dt.date) -> list[str]:
    """Drop the days before one, and return their names. Where pollers are in the way, none is: the next call does it.

    A lock that is waited for holds up everybody who comes later, so it is not waited for long.
    """
    with connect.translating():
        try:
            with connection.transaction():
                connection.execute(query("do_not_wait_long"))
                rows = connection.execute(query("drop_archive_days"), {"kind": kind, "before": before})
                return [row["dropped"] for row in rows]
        except psycopg.errors.LockNotAvailable:
            return []
