"""Write records to the archive exactly once, also across crashes.

Runs in `fanout archive`. Each transaction writes the rows and the next offset of each partition together. So a record that is
read a second time, after a crash or by a second process, is skipped. A record that Postgres refuses is left out and does not
block other records.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from psycopg.types.json import Jsonb

from delivery import errors
from subscriptions_db.archive.ingest import hourly_statistics, partitions, redrive_notes
from subscriptions_db.archive.ingest.archived_rows import ArchivedRecord, AttemptRow, DeadLetterRow, RedrivenRow
from subscriptions_db.archive.notifications import outbox
from subscriptions_db.archive.notifications.endpoint_health import Policy
from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query
from subscriptions_db.replays import progress
from subscriptions_db.replays.progress import ReplayCounts

log = logging.getLogger(__name__)

TopicPartition = tuple[str, int]
"""Topic and partition number."""


@dataclass(slots=True)
class Written:
    """The result of one `write`: numbers of rows that were written or left out, and of refused records."""

    letters: int = 0
    attempts: int = 0
    expired: int = 0
    """Attempts left out because their day is past its retention, or too far ahead."""
    refused: int = 0
    """Records left out because Postgres refuses them."""


class Retention(NamedTuple):
    """Days for which rows of each table are kept."""

    letters: int
    attempts: int
    statistics: int = 0
    """0: no statistics are written."""


def offsets(connection: connect.Connection) -> dict[TopicPartition, int]:
    """Return the next offset of each archived partition."""
    with connect.translated_errors():
        rows = connection.execute(query("archive_offsets"))
        return {(row["topic"], row["partition"]): row["next_offset"] for row in rows}


def restart_partition(connection: connect.Connection, place: TopicPartition, stale: int, first: int) -> None:
    """Set a partition's next offset to `first`, the offset of its first record, because its topic was created again.

    Also increment its incarnation, which distinguishes the new records from archived ones with the same offsets. `stale` is the
    next offset that the caller has read from Postgres. If another process has changed the next offset since, nothing happens.
    Raise RegistryUnavailable if Postgres is unavailable.
    """
    _move(connection, "restart_archive_offset", place, stale, first)


def skip_lost(connection: connect.Connection, place: TopicPartition, stale: int, first: int) -> None:
    """Set a partition's next offset to `first`, because Kafka has deleted the records before it.

    So the next start does not report the same loss again. `stale` and the errors are as in `restart_partition`.
    """
    _move(connection, "skip_archive_offset", place, stale, first)


def _move(connection: connect.Connection, name: str, place: TopicPartition, stale: int, first: int) -> None:
    with connect.translated_errors():
        wanted = {"topic": place[0], "partition": place[1], "next_offset": stale, "first": first}
        connection.execute(query(name), wanted)


def write(
    connection: connect.Connection,
    taken: Sequence[ArchivedRecord],
    kept: Retention,
    *,
    now: dt.datetime,
    policy: Policy | None = None,
) -> Written:
    """Write records and the new offsets in one transaction; return the numbers of rows.

    `taken` has the records of each partition in order. Records that are archived already are skipped. If Postgres refuses a
    record, each record is written in a transaction of its own, and the refused ones are left out. `policy` decides which
    operational events follow from the records. None: no event follows, and the health of endpoints stays unchanged. Raise
    RegistryUnavailable if Postgres is unavailable, and RegistryOutdated if a table is missing.
    """
    try:
        return _write(connection, taken, kept, now, policy)
    except errors.RegistrationError:  # Postgres refuses a value of some record
        written = Written()
        for record in taken:
            _add(written, _write_alone(connection, record, kept, now, policy))
        return written


def _write_alone(
    connection: connect.Connection, record: ArchivedRecord, kept: Retention, now: dt.datetime, policy: Policy | None
) -> Written:
    try:
        return _write(connection, [record], kept, now, policy)
    except errors.RegistrationError as exc:
        place = (record.topic, record.partition, record.offset)
        log.warning(
            "record %s:%d:%d is left out of the archive, because Postgres refuses it (%s). Archiving continues, and deliveries "
            "do not depend on it. The topic keeps the record for the topic's retention. Inform the maintainers of the platform",
            *place, str(exc).partition(". ")[0],
        )  # fmt: skip
        return dataclasses.replace(_write(connection, [record.without_rows()], kept, now, policy), refused=1)


def _write(
    connection: connect.Connection, taken: Sequence[ArchivedRecord], kept: Retention, now: dt.datetime, policy: Policy | None
) -> Written:
    today = partitions.day_of(now)
    with connect.translated_errors(), connection.transaction():
        stored_offsets = _locked(connection, {(record.topic, record.partition) for record in taken})
        new = [record for record in taken if record.offset >= stored_offsets[record.topic, record.partition]]
        letters = [record for record in new if record.letter is not None]
        redriven = [note for record in new for note in record.redriven]
        attempts = [attempt for record in new for attempt in record.attempts]
        to_keep = [row for row in attempts if partitions.is_kept(partitions.day_of(row.started_at), today, kept.attempts)]
        if letters or redriven:
            _write_letters(connection, letters, redriven, now)
        if to_keep:
            _insert_attempts(connection, to_keep)
        if policy is not None:
            outbox.record(connection, [signal for record in new for signal in record.signals], policy)
        progress.add_counts(connection, _summed(counts for record in new for counts in record.replay_counts))
        if kept.statistics:
            counted = (record.statistics for record in new)
            hourly_statistics.add(connection, counted, today=today, retention_days=kept.statistics)
        _store_offsets(connection, {(record.topic, record.partition): record.offset + 1 for record in new})
    return Written(letters=len(letters), attempts=len(to_keep), expired=len(attempts) - len(to_keep))


def _locked(connection: connect.Connection, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Lock the stored next offsets of these partitions until the commit, and return them. A new partition gets 0."""
    ordered = sorted(places)
    wanted = {"topics": [topic for topic, _ in ordered], "partitions": [number for _, number in ordered]}
    connection.execute(query("add_archive_offsets"), wanted)
    rows = connection.execute(query("lock_archive_offsets"), wanted)
    return {(row["topic"], row["partition"]): row["next_offset"] for row in rows}


def _write_letters(
    connection: connect.Connection, taken: Sequence[ArchivedRecord], redriven: Sequence[RedrivenRow], now: dt.datetime
) -> None:
    # The lock makes positions visible in their order, and keeps a dead letter and its note from missing each other.
    [day] = [row["day"] for row in connection.execute(query("lock_dead_letter_day"), {"today": partitions.day_of(now)})]
    if taken:
        partitions.create(connection, "dead_letters", day)
        connection.execute(query("insert_dead_letters"), _letter_columns(taken) | {"archived_at": now, "day": day})
    redrive_notes.settle(connection, [record.letter for record in taken if record.letter is not None], redriven, now=now)


def _insert_attempts(connection: connect.Connection, attempts: Sequence[AttemptRow]) -> None:
    for day in sorted({partitions.day_of(row.started_at) for row in attempts}):
        partitions.create(connection, "attempts", day)
    columns = dict(zip(AttemptRow._fields, map(list, zip(*attempts, strict=True)), strict=True))
    columns["response_headers"] = [None if headers is None else Jsonb(headers) for headers in columns["response_headers"]]
    connection.execute(query("insert_attempts"), columns)


def _store_offsets(connection: connect.Connection, next_offsets: dict[TopicPartition, int]) -> None:
    wanted = {
        "topics": [topic for topic, _ in next_offsets],
        "partitions": [number for _, number in next_offsets],
        "next_offsets": list(next_offsets.values()),
    }
    connection.execute(query("set_archive_offsets"), wanted)


def _summed(ended: Iterable[ReplayCounts]) -> list[ReplayCounts]:
    """Return the sum of the counts of each replay."""
    total: dict[str, ReplayCounts] = {}
    for replay_id, *counts in ended:
        before = total.get(replay_id, ReplayCounts(replay_id))
        total[replay_id] = ReplayCounts(replay_id, *(old + more for old, more in zip(before[1:], counts, strict=True)))
    return list(total.values())


def _letter_columns(taken: Sequence[ArchivedRecord]) -> dict[str, list[Any]]:
    places: dict[str, list[Any]] = {
        "letter_topic": [record.topic for record in taken],
        "letter_partition": [record.partition for record in taken],
        "letter_offset": [record.offset for record in taken],
    }
    letters = [record.letter for record in taken]
    return {name: [getattr(letter, name) for letter in letters] for name in _LETTER_COLUMNS} | places


def _add(total: Written, more: Written) -> None:
    for field in dataclasses.fields(Written):
        setattr(total, field.name, getattr(total, field.name) + getattr(more, field.name))


_LETTER_COLUMNS = [field.name for field in dataclasses.fields(DeadLetterRow)]
