"""Take note of redrives by whoever made them: the log says which letters were handed over, and such a letter waits no longer.

Runs in `fanout archive`, in the transaction that writes what was read. A note may come before its letter, and waits for it.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
from collections.abc import Sequence

from subscriptions_db.archive.ingest.archived_rows import LetterRow, RedrivenRow
from subscriptions_db.postgres import audit, connect
from subscriptions_db.postgres.sql import query


def settle(
    connection: connect.Connection, new: Sequence[LetterRow], redriven: Sequence[RedrivenRow], *, now: dt.datetime
) -> None:
    """Mark what is noted, now or before, of new letters and of old ones.

    The caller has the row of `dead_letter_day`. Without it, one who writes a letter and one who writes its note could each see
    nothing of the other.
    """
    if redriven:
        columns = {name: [getattr(one, name) for one in redriven] for name in _NAMES}
        connection.execute(query("note_redrives"), columns | {"now": now})
    ids = {one.webhook_id for one in new} | {one.webhook_id for one in redriven}
    noted = [row["webhook_id"] for row in connection.execute(query("noted_webhook_ids"), {"webhook_ids": list(ids)})]
    if not noted:  # as nearly always: nothing was looked for among the letters
        return
    found = connection.execute(query("noted_dead_letters"), {"webhook_ids": noted}).fetchall()
    connection.execute(query("redriven_dead_letters"), {"positions": [row["position"] for row in found], "now": now})
    _tell_audit_log(connection, collections.Counter(row["customer_id"] for row in found))
    connection.execute(query("forget_settled_notes"), {"webhook_ids": noted})


def _tell_audit_log(connection: connect.Connection, redriven: collections.Counter[str]) -> None:
    """Note how many letters of whom a command redrove. What was asked for over HTTP was noted then, and is no news here."""
    told = [
        audit.entry(audit.COMMAND, "redrive", "dead_letters", customer_id, customer_id=customer_id, after={"count": count})
        for customer_id, count in redriven.items()
    ]
    audit.note_all(connection, told)


def forget(connection: connect.Connection, before: dt.date) -> None:
    """Forget the notes of letters that never came: they are kept no more, or were left out."""
    with connect.translating():
        connection.execute(query("forget_old_notes"), {"before": before})


_NAMES = [field.name for field in dataclasses.fields(RedrivenRow)]
