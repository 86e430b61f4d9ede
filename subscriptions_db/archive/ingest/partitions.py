"""Create and drop the daily partitions of the archive.

Runs in `fanout archive`. A partition of a table has the rows of a day in UTC. To drop a partition is cheap, whatever its size.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Literal

import psycopg

from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query

ArchiveTable = Literal["dead_letters", "attempts"]
AHEAD = 2
"""Days whose partitions are created in advance, in case the process is down or clocks differ."""


def day_of(moment: dt.datetime) -> dt.date:
    """Return the day of a moment, in UTC."""
    return moment.astimezone(dt.UTC).date()


def oldest(today: dt.date, retention_days: int) -> dt.date:
    """Return the oldest day to keep, so that every row is kept for at least `retention_days` whole days."""
    return today - dt.timedelta(days=retention_days)


def is_kept(day: dt.date, today: dt.date, retention_days: int) -> bool:
    """Return True if rows of a day are archived: the day is within the retention, and at most AHEAD days after today.

    So a wrong clock creates no partitions of later days.
    """
    return oldest(today, retention_days) <= day <= today + dt.timedelta(days=AHEAD)


def coming(today: dt.date) -> Iterator[dt.date]:
    """Yield today and the next AHEAD days, whose partitions are created in advance."""
    for number in range(AHEAD + 1):
        yield today + dt.timedelta(days=number)


def create(connection: connect.Connection, kind: ArchiveTable, day: dt.date) -> bool:
    """Create the partition of a day if it is missing; return True if it was created."""
    with connect.translated_errors():
        row = connection.execute(query("create_archive_day"), {"kind": kind, "day": day}).fetchone()
    return bool(row and row["made"])


def drop(connection: connect.Connection, kind: ArchiveTable, before: dt.date) -> list[str]:
    """Drop the partitions before a day, and return their names.

    If another transaction keeps the table or one of these partitions locked for a second, drop none and return []. The caller
    tries again later. The wait is short, because a waiting lock request blocks all later readers.
    """
    with connect.translated_errors():
        try:
            with connection.transaction():
                connection.execute(query("set_short_lock_timeout"))
                rows = connection.execute(query("drop_archive_days"), {"kind": kind, "before": before})
                return [row["dropped"] for row in rows]
        except psycopg.errors.LockNotAvailable:
            return []
