"""Delete stored answers to requests with an `Idempotency-Key` after a day.

Runs in the API, in requests with such a key, and in `fanout archive`. Row-level security shows a request the answers of its own
customer only. So `fanout archive` deletes the answers of customers that send no such request any more.
"""

from __future__ import annotations

from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query

MAX_DELETED = 1000
"""Maximum answers that one statement deletes, because a request waits for it."""
MAX_STATEMENTS = 50
"""Maximum statements of one maintenance run, because archiving waits for them."""


def delete_old(connection: connect.Connection) -> int:
    """Delete the oldest answers that are older than a day, at most MAX_DELETED; return their number.

    Answers that another transaction has locked stay.
    """
    return connection.execute(query("delete_old_answers"), {"most": MAX_DELETED}).rowcount


def delete_remaining(connection: connect.Connection) -> None:
    """Delete the answers that are older than a day, in a transaction for each MAX_DELETED, at most MAX_STATEMENTS of them."""
    with connect.translated_errors():
        for _ in range(MAX_STATEMENTS):
            if delete_old(connection) < MAX_DELETED:
                return
