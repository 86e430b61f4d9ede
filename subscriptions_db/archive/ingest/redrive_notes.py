"""Apply redrive notes: entries of the attempts topic that name a dead letter which was enqueued in the retry lane again.

Runs in `fanout archive`, in the transaction that writes the rows. A note sets its archived dead letter, and earlier ones of the
same delivery, to the state `redriven`. A note that arrives before its dead letter is stored until the dead letter arrives.
"""

from __future__ import annotations

import collections
import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from delivery.webhooks.state import chunking
from subscriptions_db.archive.ingest import archived_rows
from subscriptions_db.archive.ingest.archived_rows import DeadLetterRow, RedrivenRow
from subscriptions_db.postgres import audit_entries, connect
from subscriptions_db.postgres.sql import query

MAX_READ_BYTES = 4 * 1024 * 1024
"""Maximum bytes of dead letters in memory at a time. A producer that uses an id again makes thousands of dead letters with one
`webhook-id`. A single larger dead letter is read alone."""


class _Note(NamedTuple):
    """A stored note. The fields are those of RedrivenRow. In a note of an older version the last three fields are None."""

    customer_id: str
    endpoint_id: str
    webhook_id: str
    dead_lettered_at: dt.datetime
    topic: str | None
    partition: int | None
    offset: int | None

    @property
    def delivery(self) -> tuple[str | int | None, ...]:
        """Return the fields that the notes of one delivery have in common: all except the time."""
        return self.customer_id, self.endpoint_id, self.webhook_id, self.topic, self.partition, self.offset


_NAMES = _Note._fields


def settle(
    connection: connect.Connection,
    new: Sequence[DeadLetterRow],
    redriven: Sequence[RedrivenRow],
    *,
    now: dt.datetime,
    max_read_bytes: int = MAX_READ_BYTES,
) -> None:
    """Store new notes, and set the dead letters to which notes apply to the state `redriven`. Delete notes that are done.

    A note applies to the dead letter that it names, and to earlier ones of the same delivery. The note is done once the named
    dead letter is archived. `new` are the dead letters that this transaction has archived. `redriven` are the notes in the
    records of this transaction. Dead letters are read in chunks of at most `max_read_bytes`; a larger dead letter is read
    alone. Write an audit entry for each customer whose dead letters changed.

    The caller has locked the row of `dead_letter_day`. Without the lock, a transaction with a dead letter and a concurrent
    transaction with its note would not see each other.
    """
    if redriven:
        connection.execute(query("put_redrive_notes"), _columns(redriven) | {"now": now})
    ids = {letter.webhook_id for letter in new} | {note.webhook_id for note in redriven}
    notes = {_Note(**row) for row in connection.execute(query("redrive_notes_about"), {"webhook_ids": list(ids)})}
    if not notes:  # the usual case, without a query of the dead letters
        return
    marked, done = _applied(notes, _letters(connection, {note.webhook_id for note in notes}, max_read_bytes))
    connection.execute(query("mark_redriven"), {"positions": list(marked), "now": now})
    _write_audit_entries(connection, collections.Counter(marked.values()))
    connection.execute(query("delete_settled_notes"), _columns(note for note in done if note.topic is not None))
    connection.execute(query("delete_settled_notes_without_place"), _columns(note for note in done if note.topic is None))


def _letters(connection: connect.Connection, webhook_ids: Iterable[str], max_read_bytes: int) -> Iterator[dict[str, Any]]:
    """Lock the dead letters with these `webhook-id`s to which notes may apply, and yield a row of each.

    A row has the columns of the statement `dead_letters_with_notes`, and the record as `letter`. Records are read in chunks of
    at most `max_read_bytes`; a larger record is read alone.
    """
    found = connection.execute(query("dead_letters_with_notes"), {"webhook_ids": list(webhook_ids)}).fetchall()
    for chunk in chunking.chunks(found, lambda row: row["bytes"], max_read_bytes):
        positions = [row["position"] for row in chunk]
        asked = {"positions": positions, "first": positions[0], "last": positions[-1]}
        letters = {row["position"]: row["letter"] for row in connection.execute(query("letters_at"), asked)}
        for row in chunk:
            yield row | {"letter": letters[row["position"]]}


def _applied(notes: set[_Note], letters: Iterable[dict[str, Any]]) -> tuple[dict[int, str], set[_Note]]:
    """Return position → customer of the dead letters that become `redriven`, and the notes that are done.

    The notes are looked up by delivery. There may be thousands of notes and of dead letters, too many to compare each pair.
    """
    until: dict[tuple[str | int | None, ...], dt.datetime] = {}
    for note in notes:
        until[note.delivery] = max(note.dead_lettered_at, until.get(note.delivery, note.dead_lettered_at))
    marked: dict[int, str] = {}
    done: set[_Note] = set()
    for letter in letters:
        delivery = (letter["customer_id"], letter["endpoint_id"], letter["webhook_id"])
        own = _Note(*delivery, letter["dead_lettered_at"], *archived_rows.event_place(letter["letter"]))
        for naming in (own, own._replace(topic=None, partition=None, offset=None)):
            latest = until.get(naming.delivery)
            if letter["state"] != "redriven" and latest is not None and naming.dead_lettered_at <= latest:
                marked[letter["position"]] = naming.customer_id
            if naming in notes:
                done.add(naming)
    return marked, done


def _columns(notes: Iterable[RedrivenRow | _Note]) -> dict[str, Any]:
    rows = list(notes)
    return {name: [getattr(note, name) for note in rows] for name in _NAMES}


def _write_audit_entries(connection: connect.Connection, redriven: collections.Counter[str]) -> None:
    """Write an audit entry for each customer with dead letters that notes have set to `redriven`.

    `redriven` is customer → number of these dead letters. The actor of the entry is `command`. For a redrive by the API,
    `redriven` has only earlier dead letters of the same delivery. The requested dead letter was set to `redriven` before its
    note arrived, and the API has written an audit entry about it already.
    """
    entries = [
        audit_entries.entry(
            audit_entries.COMMAND, "redrive", "dead_letters", customer_id, customer_id=customer_id, after={"count": count}
        )
        for customer_id, count in redriven.items()
    ]
    audit_entries.note_many(connection, entries)


def forget(connection: connect.Connection, before: dt.date) -> None:
    """Delete the notes that were stored before a day. The dead letters that these notes name are not in the archive.

    Kafka deleted these dead letters before the archive read them, or the archive left them out as unreadable. Or their
    partitions of the archive were dropped before the notes arrived.
    """
    with connect.translated_errors():
        connection.execute(query("delete_old_notes"), {"before": before})
