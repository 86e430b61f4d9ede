"""Give the letters whose redrive was asked for to who hands them over, and take note that they were.

Runs in `fanout archive`. Asking changes the archive only, so that whoever asks needs no Kafka, and no answer waits for it.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator
from typing import NamedTuple

from subscriptions_db.archive.ingest import archived_rows
from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query

MAX_LETTERS, MAX_BYTES = 1000, 16 * 1024 * 1024
"""Of one turn."""


class Asked(NamedTuple):
    """A letter to hand over, and where it is in its topic."""

    written: bytes
    topic: str
    partition: int
    offset: int


@contextlib.contextmanager
def turn(connection: connect.Connection, *, now: dt.datetime) -> Iterator[list[Asked]]:
    """Yield letters in their order, to be handed over inside; they are redriven when that has ended well.

    A process that dies in between hands them over again, with the same `webhook-id`s.
    """
    with connect.translating(), connection.transaction():
        found = connection.execute(query("redriving_dead_letters"), {"limit": MAX_LETTERS, "bytes": MAX_BYTES}).fetchall()
        yield [
            Asked(
                archived_rows.written(row["letter"], row["payload"]),
                row["letter_topic"],
                row["letter_partition"],
                row["letter_offset"],
            )
            for row in found
        ]
        if found:
            connection.execute(query("redriven_dead_letters"), {"positions": [row["position"] for row in found], "now": now})
