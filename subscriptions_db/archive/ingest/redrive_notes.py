"""Apply redrive notes: entries of the attempts topic that name a dead letter which was enqueued in the retry lane again.

Runs in `fanout archive`, in the transaction that writes the rows. A note sets its archived dead letter, and earlier ones of the
same delivery, to the state `redriven`. A note that arrives before its dead letter is stored until the dead letter arrives.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
from collections.abc import Sequence
from typing import Any

from subscriptions_db.archive.ingest import archived_rows
from subscriptions_db.archive.ingest.archived_rows import DeadLetterRow, RedrivenRow
from subscriptions_db.postgres import audit, connect
from subscriptions_db.postgres.sql import query


def settle(
    connection: connect.Connection, new: Sequence[DeadLetterRow], redriven: Sequence[RedrivenRow], *, now: dt.datetime
) -> None:
    """Store new notes, and set the dead letters to which notes apply to the state `redriven`. Delete notes that are done.

    A note applies to the dead letter that it names, and to earlier ones of the same delivery. The note is done once the named
    dead letter is archived. `new` are the dead letters that this transaction has archived, and `redriven` its notes. Write an
    audit entry for each customer whose dead letters changed.

    The caller has locked the row of `dead_letter_day`. Without the lock, a transaction with a dead letter and a concurrent
    transaction with its note would not see each other.
    """
    if redriven:
        columns: dict[str, Any] = {name: [getattr(note, name) for note in redriven] for name in _NAMES}
        connection.execute(query("put_redrive_notes"), columns | {"now": now})
    ids = {letter.webhook_id for letter in new} | {note.webhook_id for note in redriven}
    noted = [row["webhook_id"] for row in connection.execute(query("webhook_ids_with_notes"), {"webhook_ids": list(ids)})]
    if not noted:  # the usual case, without a query of the dead letters
        return
    pairs = connection.execute(query("dead_letters_with_notes"), {"webhook_ids": noted}).fetchall()
    applying = [pair for pair in pairs if _is_same_event(pair)]
    marked = {pair["position"]: pair["customer_id"] for pair in applying if pair["state"] != "redriven"}
    connection.execute(query("mark_redriven"), {"positions": list(marked), "now": now})
    _write_audit_entries(connection, collections.Counter(marked.values()))
    done = [pair for pair in applying if pair["has_same_time"]]
    connection.execute(query("delete_settled_notes"), {name: [pair[name] for pair in done] for name in _NAMES})


def _is_same_event(pair: dict[str, Any]) -> bool:
    """Return True if a note is about the event of a dead letter. The note of an older version has no place of its event."""
    noted = (pair["topic"], pair["partition"], pair["offset"])
    return noted == (None, None, None) or noted == archived_rows.event_place(pair["letter"])


def _write_audit_entries(connection: connect.Connection, redriven: collections.Counter[str]) -> None:
    """Write an audit entry for each customer whose dead letters a command redrove.

    The API writes the audit entry of a redrive when it takes the request.
    """
    entries = [
        audit.entry(audit.COMMAND, "redrive", "dead_letters", customer_id, customer_id=customer_id, after={"count": count})
        for customer_id, count in redriven.items()
    ]
    audit.note_many(connection, entries)


def forget(connection: connect.Connection, before: dt.date) -> None:
    """Delete the notes stored before a day. Their dead letters never arrived: they have expired, or were left out."""
    with connect.translated_errors():
        connection.execute(query("delete_old_notes"), {"before": before})


_NAMES = [field.name for field in dataclasses.fields(RedrivenRow)]
