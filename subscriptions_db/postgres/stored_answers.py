"""Delete stored answers to requests with an `Idempotency-Key` after a day.

Runs in the API, in requests with such a key, and in `fanout archive`. Row-level security shows a customer's request only the
answers of this customer. So `fanout archive` deletes the old answers of customers that no longer send a request with such a
key.
"""

from __future__ import annotations

from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query

MAX_DELETED = 1000
"""Maximum answers that one statement deletes, because a request waits for it."""
MAX_STATEMENTS = 50
"""Maximum statements of one maintenance run, because archiving waits for them."""


def delete_old(connection: connect.Connection, *, max_deleted: int = MAX_DELETED) -> int:
    """Delete the oldest answers older than a day that the session sees, at most `max_deleted`; return their number.

    Answers that another transaction has locked stay.
    """
    return connection.execute(query("delete_old_answers"), {"most": max_deleted}).rowcount


def delete_remaining(
    connection: connect.Connection, *, max_statements: int = MAX_STATEMENTS, max_deleted: int = MAX_DELETED
) -> None:
    """Delete the answers that are older than a day, at most `max_statements` times `max_deleted`.

    Each statement is a transaction of its own.
    """
    with connect.translated_errors():
        for _ in range(max_statements):
            if delete_old(connection, max_deleted=max_deleted) < max_deleted:
                return
