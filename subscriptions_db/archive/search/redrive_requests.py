"""Claim the dead letters whose redrive was requested, and set them to the state `redriven` once they are enqueued.

Runs in `fanout archive`. A request changes the archive only, so the API needs no Kafka, and does not wait for Kafka.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Collection, Iterator
from typing import NamedTuple

from subscriptions_db.archive.ingest import archived_rows
from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query

MAX_LETTERS, MAX_BYTES = 1000, 16 * 1024 * 1024
"""Maximum dead letters of one page, and their maximum total bytes. A single larger dead letter is a page of its own."""


class RedriveRequest(NamedTuple):
    """A dead letter to enqueue, and its position in the archive."""

    position: int
    letter: bytes
    payload: bytes

    def record(self) -> bytes:
        """Return the record of the dead-letter topic.

        Raise TypeError or ValueError if the archived dead letter does not have the form that the archive writes.
        """
        return archived_rows.topic_record(self.letter, self.payload)


@contextlib.contextmanager
def claim_page(
    connection: connect.Connection, *, now: dt.datetime, in_turn: bool = False, max_bytes: int = MAX_BYTES
) -> Iterator[list[RedriveRequest]]:
    """Lock and yield the oldest requests that no other process has locked, at most MAX_LETTERS, in the order of the archive.

    With `in_turn`, choose the oldest request of each customer, then the second oldest of each customer, and so on. This choice
    reads all requests, in about 0.4 s for 200,000.

    The yielded dead letters have at most `max_bytes` together, or are a single larger one. The caller enqueues the dead letters
    in its `with` block. If the block ends without an error, the dead letters become `redriven`.

    After a crash before the commit, the next process enqueues the same dead letters again, with the same `webhook-id`s.
    """
    with connect.translated_errors(), connection.transaction():
        bounds = {"limit": MAX_LETTERS, "bytes": max_bytes}
        found = connection.execute(query("redrive_requests_in_turn"), bounds).fetchall() if in_turn else []
        found = found or connection.execute(query("redrive_requests"), bounds).fetchall()
        yield [RedriveRequest(row["position"], row["letter"], row["payload"]) for row in found]
        if found:
            connection.execute(query("mark_redriven"), {"positions": [row["position"] for row in found], "now": now})


def max_ages_s(connection: connect.Connection, endpoint_ids: Collection[str]) -> dict[tuple[str, str], float]:
    """Return `retry.max_age_s` of the endpoints that have a value of their own, by endpoint and customer."""
    with connect.translated_errors():
        rows = connection.execute(query("max_ages"), {"endpoint_ids": list(endpoint_ids)}).fetchall()
    return {(row["endpoint_id"], row["customer_id"]): row["retry_max_age_s"] for row in rows}
