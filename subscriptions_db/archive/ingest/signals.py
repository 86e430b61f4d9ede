"""Derive signals about the health of endpoints (endpoint_health.py) from records of the attempts and dead-letter topics. Pure.

Runs in `fanout archive`. A postponed or dead-lettered operational event gives no signal: otherwise each operational event could
cause another one, without end. The attempts of an operational event give signals. A postponed batch gives a signal even if it
has operational events, because the events of a batch are not examined. An attempt that failed by a fault of the platform
(LocalFailure) gives no signal.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

from delivery import errors
from delivery.registry_model import PLATFORM
from delivery.webhooks.results import log_entries
from delivery.webhooks.results.log_entries import BatchPostponedEntry, Entry, PostponedEntry
from delivery.webhooks.results.log_records import LogRecord
from subscriptions_db import disclosure
from subscriptions_db.archive.ingest.archived_rows import DeadLetterRow
from subscriptions_db.archive.notifications.endpoint_health import Signal, SignalKind


def log_signals(record: LogRecord, at: dt.datetime) -> list[Signal]:
    """Return the signals of a record of the attempts topic. Consecutive signals of one kind are merged into one.

    The merged signal has the reason of the last merged signal. `at` is the time at which the record was written.
    """
    signals: list[Signal] = []
    for kind, times, reason in _signals(record.entries):
        if signals and signals[-1].kind is kind:
            signals[-1] = signals[-1]._replace(times=signals[-1].times + times, reason=reason)
        else:
            signals.append(Signal(record.endpoint_id, record.customer_id, kind, at, times, reason))
    return signals


def dead_letter_signals(letter: DeadLetterRow, at: dt.datetime) -> list[Signal]:
    """Return the signal of a dead letter, or none for an operational event. `at` is the time of its record."""
    if letter.tenant_id == PLATFORM:
        return []
    return [Signal(letter.endpoint_id, letter.customer_id, SignalKind.DEAD_LETTER, at, reason=letter.reason)]


def _signals(entries: list[Entry]) -> Iterator[tuple[SignalKind, int, str | None]]:
    for entry in entries:
        if isinstance(entry, log_entries.ATTEMPTED):
            if entry.error_class is None:
                yield SignalKind.ACCEPTED, 1, None
            elif entry.error_class != errors.LocalFailure.error_class:
                yield SignalKind.FAILED, 1, disclosure.word(entry.error_class)
        elif isinstance(entry, BatchPostponedEntry) or (isinstance(entry, PostponedEntry) and entry.tenant_id != PLATFORM):
            yield SignalKind.POSTPONED, entry.count, disclosure.word(entry.reason)
