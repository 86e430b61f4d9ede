"""Count deliveries and attempts in the topics, for each endpoint and hour, and add the counts to the statistics in Postgres.

Runs in `fanout archive`, in the transaction that writes the rows and the next offsets. So no record is counted twice, also
across crashes. A delivery that the platform repeats counts each time.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from psycopg.types.json import Jsonb

from delivery.webhooks.results import log_entries
from delivery.webhooks.results.log_entries import Attempted, BatchAttemptEntry
from delivery.webhooks.results.log_records import LogRecord
from subscriptions_db import disclosure
from subscriptions_db.archive.ingest import archived_rows, hourly_counts, partitions
from subscriptions_db.archive.ingest.archived_rows import CountsByHour, DeadLetterRow, HourOfEndpoint
from subscriptions_db.archive.ingest.hourly_counts import Histogram, HourCounts
from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query

HOUR_MS = 3_600_000
ALL_ENDPOINTS = ""
"""The endpoint id of the rows that count all endpoints of a customer together."""
MAX_DELETED = 50_000
"""Maximum rows that one maintenance run deletes, so that its transaction stays short."""


def of_log(record: LogRecord, at: dt.datetime) -> CountsByHour:
    """Return the counts of a record of the attempts topic. An attempt counts in the hour in which it started.

    A skipped delivery counts at the time of its record, `at`. A postponed delivery does not count, because it waits. A resend
    that brought an attempt forward does not count either. `of_dead_letter` counts dead letters. Raise RecordUnreadable if the
    registry cannot have the record's customer id or endpoint id.
    """
    customer_id, endpoint_id = archived_rows.registry_id(record.customer_id), archived_rows.registry_id(record.endpoint_id)
    found: dict[int, HourCounts] = {}
    for entry in record.entries:
        if isinstance(entry, log_entries.ATTEMPTED):
            hour = entry.started_at_ms // HOUR_MS
            if (counts := found.get(hour)) is None:
                counts = found[hour] = HourCounts()
            _count_attempt(counts, entry)
        elif isinstance(entry, log_entries.SKIPPED) and not archived_rows.is_brought_forward(entry):
            found.setdefault(_hour_of(at), HourCounts()).skipped += entry.count
    return {(customer_id, endpoint_id, hour): counts for hour, counts in found.items()}


def of_dead_letter(letter: DeadLetterRow) -> CountsByHour:
    """Return the count of a dead letter, in the hour in which it was dead-lettered."""
    return {(letter.customer_id, letter.endpoint_id, _hour_of(letter.dead_lettered_at)): HourCounts(dead_lettered=1)}


def _count_attempt(counts: HourCounts, entry: Attempted) -> None:
    counts.attempts += 1
    bucket = hourly_counts.bucket(entry.duration_ms)
    counts.durations[bucket] = counts.durations.get(bucket, 0) + 1
    if entry.error_class is not None:
        word = disclosure.word(entry.error_class) or ""
        counts.error_classes[word] = counts.error_classes.get(word, 0) + 1
        return
    if isinstance(entry, BatchAttemptEntry):
        counts.delivered += sum(1 for _ in entry.accepted()) if entry.rejected else entry.count
        appended_at_ms = entry.oldest_appended_at_ms
    else:
        counts.delivered += 1
        appended_at_ms = entry.appended_at_ms
    if not entry.replay:  # a replay follows long after its event, which would distort the latencies
        bucket = hourly_counts.bucket(entry.started_at_ms + entry.duration_ms - appended_at_ms)
        counts.latencies[bucket] = counts.latencies.get(bucket, 0) + 1


def add(connection: connect.Connection, counted: Iterable[CountsByHour], *, today: dt.date, retention_days: int) -> None:
    """Add counts to the statistics of their endpoints and customers.

    Hours that are older than `retention_days`, or more than partitions.AHEAD days after `today`, are left out. The caller has
    locked the stored offsets of the records' partitions, and commits the next offsets in the same transaction.
    """
    end = today + dt.timedelta(days=partitions.AHEAD + 1)
    summed = _summed(counted, _first_hour(partitions.oldest(today, retention_days)), _first_hour(end))
    if summed:
        connection.execute(query("add_statistics"), _columns(summed))


def delete_old(connection: connect.Connection, before: dt.date) -> None:
    """Delete the statistics of the hours before a day, at most MAX_DELETED rows of them."""
    with connect.translated_errors():
        moment = dt.datetime.combine(before, dt.time(), dt.UTC)
        connection.execute(query("delete_old_statistics"), {"before": moment, "most": MAX_DELETED})


def histogram_text(histogram: Histogram) -> str:
    """Return a histogram as the text of a Postgres array, which ends with the last bucket that is not empty."""
    return "{" + ",".join(str(histogram.get(number, 0)) for number in range(max(histogram, default=-1) + 1)) + "}"


def _summed(counted: Iterable[CountsByHour], first: int, end: int) -> dict[HourOfEndpoint, HourCounts]:
    summed: dict[HourOfEndpoint, HourCounts] = {}
    for by_hour in counted:
        for (customer_id, endpoint_id, hour), counts in by_hour.items():
            if first <= hour < end:
                summed.setdefault((customer_id, endpoint_id, hour), HourCounts()).add(counts)
    for (customer_id, _, hour), counts in list(summed.items()):
        summed.setdefault((customer_id, ALL_ENDPOINTS, hour), HourCounts()).add(counts)
    return summed


def _columns(summed: Mapping[HourOfEndpoint, HourCounts]) -> dict[str, Sequence[Any]]:
    # Sorted, because two processes that lock the same rows in different orders would wait for each other.
    rows = sorted(summed.items(), key=lambda item: item[0])
    return {
        "customer_ids": [customer_id for (customer_id, _, _), _ in rows],
        "endpoint_ids": [endpoint_id for (_, endpoint_id, _), _ in rows],
        "hours": [dt.datetime.fromtimestamp(hour * 3600, dt.UTC) for (_, _, hour), _ in rows],
        "delivered": [counts.delivered for _, counts in rows],
        "dead_lettered": [counts.dead_lettered for _, counts in rows],
        "skipped": [counts.skipped for _, counts in rows],
        "attempts": [counts.attempts for _, counts in rows],
        "error_classes": [Jsonb(counts.error_classes) for _, counts in rows],
        "durations": [histogram_text(counts.durations) for _, counts in rows],
        "latencies": [histogram_text(counts.latencies) for _, counts in rows],
    }


def _hour_of(moment: dt.datetime) -> int:
    return int(moment.timestamp()) // 3600


def _first_hour(day: dt.date) -> int:
    return (day - dt.date(1970, 1, 1)).days * 24
