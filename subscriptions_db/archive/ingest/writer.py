"""Write what was read from the topics: each record exactly once, whatever dies when.

Runs in `fanout archive`. How far each partition is archived stands in the same transaction as the rows, and is locked first. So
a record that was written is passed over when it is read again, be it by a process that did not learn of its commit, or by a
second one. What Postgres refuses of one record does not hold up the others.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from delivery import errors
from subscriptions_db.archive.ingest import partitions, redrive_notes
from subscriptions_db.archive.ingest.archived_rows import AttemptRow, LetterRow, RedrivenRow, Taken
from subscriptions_db.archive.notifications import outbox
from subscriptions_db.archive.notifications.endpoint_health import Policy
from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query
from subscriptions_db.replays import progress
from subscriptions_db.replays.progress import Ended

log = logging.getLogger(__name__)

Place = tuple[str, int]
"""A topic and a partition of it."""


@dataclass(slots=True)
class Written:
    """What a call has written."""

    letters: int = 0
    attempts: int = 0
    expired: int = 0
    """Attempts of days that are kept no more, or that are not to come for long."""
    refused: int = 0
    """Records that Postgres does not take."""


class Kept(NamedTuple):
    """For how many days things are kept."""

    letters: int
    attempts: int


def offsets(connection: connect.Connection) -> dict[Place, int]:
    """Return the next offset of each partition that was archived before."""
    with connect.translating():
        rows = connection.execute(query("archive_offsets"))
        return {(row["topic"], row["partition"]): row["next_offset"] for row in rows}


def begin_anew(connection: connect.Connection, place: Place, stale: int) -> None:
    """Take note that a topic was made anew, and its offsets begin at zero again."""
    with connect.translating():
        wanted = {"topic": place[0], "partition": place[1], "next_offset": stale}
        connection.execute(query("begin_archive_offset_anew"), wanted)


def write(
    connection: connect.Connection, taken: Sequence[Taken], kept: Kept, *, now: dt.datetime, policy: Policy | None = None
) -> Written:
    """Write records, those of a partition in their order, and how far they reach. Returns when they are committed.

    By `policy` it is decided what customers are told of them; without one, nothing is.
    """
    try:
        return _write(connection, taken, kept, now, policy)
    except errors.RegistrationError:
        written = Written()
        for one in taken:
            _add(written, _write_alone(connection, one, kept, now, policy))
        return written


def _write_alone(connection: connect.Connection, one: Taken, kept: Kept, now: dt.datetime, policy: Policy | None) -> Written:
    try:
        return _write(connection, [one], kept, now, policy)
    except errors.RegistrationError as exc:
        log.warning("%s:%d:%d is left out of the archive: Postgres refuses it (%s)", one.topic, one.partition, one.offset, exc)
        return dataclasses.replace(_write(connection, [one.without_rows()], kept, now, policy), refused=1)


def _write(
    connection: connect.Connection, taken: Sequence[Taken], kept: Kept, now: dt.datetime, policy: Policy | None
) -> Written:
    today = partitions.of(now)
    with connect.translating(), connection.transaction():
        reached = _locked(connection, {(one.topic, one.partition) for one in taken})
        new = [one for one in taken if one.offset >= reached[one.topic, one.partition]]
        letters = [one for one in new if one.letter is not None]
        redriven = [note for one in new for note in one.redriven]
        attempts = [attempt for one in new for attempt in one.attempts]
        to_keep = [one for one in attempts if partitions.is_kept(partitions.of(one.started_at), today, kept.attempts)]
        if letters or redriven:
            _write_letters(connection, letters, redriven, now)
        if to_keep:
            _insert_attempts(connection, to_keep)
        if policy is not None:
            outbox.take(connection, [seen for one in new for seen in one.seen], policy)
        progress.add_ended(connection, _summed(one for taken in new for one in taken.ended))
        _reach(connection, {(one.topic, one.partition): one.offset + 1 for one in new})
    return Written(letters=len(letters), attempts=len(to_keep), expired=len(attempts) - len(to_keep))


def _locked(connection: connect.Connection, places: Iterable[Place]) -> dict[Place, int]:
    """Return how far these partitions are archived, and keep others from archiving them until the commit."""
    ordered = sorted(places)
    wanted = {"topics": [topic for topic, _ in ordered], "partitions": [number for _, number in ordered]}
    connection.execute(query("add_archive_offsets"), wanted)
    rows = connection.execute(query("lock_archive_offsets"), wanted)
    return {(row["topic"], row["partition"]): row["next_offset"] for row in rows}


def _write_letters(
    connection: connect.Connection, taken: Sequence[Taken], redriven: Sequence[RedrivenRow], now: dt.datetime
) -> None:
    [day] = [row["day"] for row in connection.execute(query("take_dead_letter_day"), {"today": partitions.of(now)})]
    if taken:
        partitions.make(connection, "dead_letters", day)
        connection.execute(query("insert_dead_letters"), _letter_columns(taken) | {"archived_at": now, "day": day})
    redrive_notes.settle(connection, [one.letter for one in taken if one.letter is not None], redriven, now=now)


def _insert_attempts(connection: connect.Connection, attempts: Sequence[AttemptRow]) -> None:
    for day in sorted({partitions.of(one.started_at) for one in attempts}):
        partitions.make(connection, "attempts", day)
    columns = map(list, zip(*attempts, strict=True))
    connection.execute(query("insert_attempts"), dict(zip(AttemptRow._fields, columns, strict=True)))


def _reach(connection: connect.Connection, reached: dict[Place, int]) -> None:
    wanted = {
        "topics": [topic for topic, _ in reached],
        "partitions": [number for _, number in reached],
        "next_offsets": list(reached.values()),
    }
    connection.execute(query("set_archive_offsets"), wanted)


def _summed(ended: Iterable[Ended]) -> list[Ended]:
    """Return one for each replay."""
    total: dict[str, Ended] = {}
    for replay_id, *counts in ended:
        before = total.get(replay_id, Ended(replay_id))
        total[replay_id] = Ended(replay_id, *(old + more for old, more in zip(before[1:], counts, strict=True)))
    return list(total.values())


def _letter_columns(taken: Sequence[Taken]) -> dict[str, list[Any]]:
    places: dict[str, list[Any]] = {
        "letter_topic": [one.topic for one in taken],
        "letter_partition": [one.partition for one in taken],
        "letter_offset": [one.offset for one in taken],
    }
    letters = [one.letter for one in taken]
    return {name: [getattr(letter, name) for letter in letters] for name in _LETTER_COLUMNS} | places


def _add(total: Written, more: Written) -> None:
    for field in dataclasses.fields(Written):
        setattr(total, field.name, getattr(total, field.name) + getattr(more, field.name))


_LETTER_COLUMNS = [field.name for field in dataclasses.fields(LetterRow)]
