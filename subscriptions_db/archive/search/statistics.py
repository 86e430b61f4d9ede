"""Read the statistics of an endpoint or of a customer: counts and estimated percentiles by hour or by day.

Runs in the API and in `fanout` commands. The statistics are as new as the archive.
"""

from __future__ import annotations

import datetime as dt
import enum
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from subscriptions_db.archive.ingest import hourly_statistics
from subscriptions_db.archive.ingest.hourly_counts import Histogram, HourCounts
from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Granularity(enum.StrEnum):
    """The length of a bucket. A day is a day in UTC."""

    HOUR = "hour"
    DAY = "day"

    @property
    def length(self) -> dt.timedelta:
        """Return the length of a bucket."""
        return dt.timedelta(hours=1) if self is Granularity.HOUR else dt.timedelta(days=1)

    @property
    def longest(self) -> dt.timedelta:
        """Return the longest time range that the API and `fanout` commands accept."""
        return dt.timedelta(days=7 if self is Granularity.HOUR else 31)

    def floor(self, moment: dt.datetime) -> dt.datetime:
        """Return the beginning of the bucket of a moment."""
        return _EPOCH + (moment - _EPOCH) // self.length * self.length

    def ceiling(self, moment: dt.datetime) -> dt.datetime:
        """Return the end of the last bucket that begins before a moment."""
        return _EPOCH - (_EPOCH - moment) // self.length * self.length


class Bucket(NamedTuple):
    """The counts of one hour or day."""

    start: dt.datetime
    counts: HourCounts


class FoundStatistics(NamedTuple):
    """The counts of a time range."""

    since: dt.datetime
    """The beginning of the first bucket of the range."""
    until: dt.datetime
    """The end of the last bucket of the range."""
    total: HourCounts
    buckets: list[Bucket]
    """The oldest first. A bucket without counts is left out."""


def read(
    connection: connect.Connection,
    customer_id: str,
    endpoint_id: str | None,
    *,
    since: dt.datetime,
    until: dt.datetime,
    by: Granularity,
) -> FoundStatistics:
    """Return the statistics of an endpoint in whole hours or days. `endpoint_id` None: of the customer's endpoints together.

    The range begins with the bucket of `since`, and ends with the last bucket that begins before `until`.
    """
    first, end = by.floor(since), by.ceiling(until)
    named = hourly_statistics.ALL_ENDPOINTS if endpoint_id is None else endpoint_id
    wanted = {"customer_id": customer_id, "endpoint_id": named, "since": first, "until": end}
    with connect.translated_errors():
        rows = connection.execute(query("statistics"), wanted).fetchall()
    buckets = [bucket_of(start, list(of_it)) for start, of_it in itertools.groupby(rows, lambda row: by.floor(row["hour"]))]
    total = HourCounts()
    for bucket in buckets:
        total.add(bucket.counts)
    return FoundStatistics(first, end, total, buckets)


def bucket_of(start: dt.datetime, rows: Sequence[Mapping[str, Any]]) -> Bucket:
    """Return the sum of the stored hours of one bucket.

    Arrays are added column by column: for a month by day, this takes 3.3 ms of CPU in place of 8.8 ms for adding one histogram
    after another.
    """
    parts = [orjson.loads(row["parts"]) for row in rows]
    error_classes: Counter[str] = Counter()
    for classes, _, _ in parts:
        error_classes.update(classes)
    counts = HourCounts(
        delivered=sum(row["delivered"] for row in rows),
        dead_lettered=sum(row["dead_lettered"] for row in rows),
        skipped=sum(row["skipped"] for row in rows),
        attempts=sum(row["attempts"] for row in rows),
        error_classes=dict(error_classes),
        durations=_histogram([durations for _, durations, _ in parts]),
        latencies=_histogram([latencies for _, _, latencies in parts]),
    )
    return Bucket(start, counts)


def _histogram(arrays: Sequence[Sequence[int]]) -> Histogram:
    """Return the sum of stored arrays, which may have different lengths, as a histogram."""
    sums = arrays[0] if len(arrays) == 1 else map(sum, itertools.zip_longest(*arrays, fillvalue=0))
    return {number: count for number, count in enumerate(sums) if count}
