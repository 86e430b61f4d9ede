"""What records of the topics say of an endpoint's condition. Pure.

Runs in `fanout archive`. Of deliveries of operational events only attempts count: a backlog or dead letters of nothing else
would be told by one more of them, each time, without end.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

from delivery import errors
from delivery.model import PLATFORM
from delivery.webhooks.results import log_entries
from delivery.webhooks.results.log_entries import BatchPostponedEntry, Entry, PostponedEntry
from delivery.webhooks.results.log_records import LogRecord
from subscriptions_db import disclosure
from subscriptions_db.archive.ingest.archived_rows import LetterRow
from subscriptions_db.archive.notifications.endpoint_health import Seen, Sign


def of_log(record: LogRecord, at: dt.datetime) -> list[Seen]:
    """Return the signs in a record of the log, written `at`: those of one kind in a row as one."""
    signs: list[Seen] = []
    for sign, times, reason in _signs(record.entries):
        if signs and signs[-1].sign is sign:
            signs[-1] = signs[-1]._replace(times=signs[-1].times + times, reason=reason)
        else:
            signs.append(Seen(record.endpoint_id, record.customer_id, sign, at, times, reason))
    return signs


def of_letter(letter: LetterRow, at: dt.datetime) -> list[Seen]:
    """Return the sign that a dead letter is, written `at`."""
    if letter.tenant_id == PLATFORM:
        return []
    return [Seen(letter.endpoint_id, letter.customer_id, Sign.DEAD_LETTER, at, reason=letter.reason)]


def _signs(entries: list[Entry]) -> Iterator[tuple[Sign, int, str | None]]:
    for entry in entries:
        if isinstance(entry, log_entries.ATTEMPTED):
            if entry.error_class is None:
                yield Sign.ACCEPTED, 1, None
            elif entry.error_class != errors.LocalFailure.error_class:
                yield Sign.FAILED, 1, disclosure.word(entry.error_class)
        elif isinstance(entry, BatchPostponedEntry) or (isinstance(entry, PostponedEntry) and entry.tenant_id != PLATFORM):
            yield Sign.POSTPONED, entry.count, disclosure.word(entry.reason)
