"""The counts of a record, by endpoint and hour, and the percentiles that are estimated from a histogram."""

import datetime as dt
import random

import pytest

from delivery import errors
from delivery.webhooks.results.log_entries import (
    AttemptEntry,
    BatchAttemptEntry,
    BatchSkippedEntry,
    DeadLetteredEntry,
    PostponedEntry,
    RedrivenEntry,
    SkippedEntry,
)
from subscriptions_db.archive.ingest import hourly_counts, hourly_statistics
from subscriptions_db.archive.ingest.hourly_counts import HourCounts
from subscriptions_db.archive.search.statistics import Granularity
from tests.support import archive, records

AT = dt.datetime.fromtimestamp(1_700_000_000, dt.UTC)  # 800 s after the beginning of its hour
HOUR = 1_700_000_000 // 3600
OFFSETS = {"s1": {"events.order.created": {"0": [7, 8, 9]}}}
REJECTED = {"s1": {"events.order.created": {"0": [8]}}}
OF_12_MS, OF_112_MS = hourly_counts.bucket(12.5), hourly_counts.bucket(112.5)


@pytest.mark.parametrize(
    ("entry", "counted"),
    [
        (
            records.entry(AttemptEntry, status=200),
            HourCounts(delivered=1, attempts=1, durations={OF_12_MS: 1}, latencies={OF_112_MS: 1}),
        ),
        (
            records.entry(AttemptEntry, status=200, replay="rpl_1"),
            HourCounts(delivered=1, attempts=1, durations={OF_12_MS: 1}),
        ),
        (
            records.entry(AttemptEntry, error_class="address_blocked"),
            HourCounts(attempts=1, error_classes={"dns": 1}, durations={OF_12_MS: 1}),
        ),
        (
            records.entry(BatchAttemptEntry, status=200, count=3, offsets=OFFSETS),
            HourCounts(delivered=3, attempts=1, durations={OF_12_MS: 1}, latencies={OF_112_MS: 1}),
        ),
        (
            records.entry(BatchAttemptEntry, status=200, count=3, offsets=OFFSETS, rejected=REJECTED),
            HourCounts(delivered=2, attempts=1, durations={OF_12_MS: 1}, latencies={OF_112_MS: 1}),
        ),
        (records.entry(SkippedEntry), HourCounts(skipped=1)),
        (records.entry(BatchSkippedEntry, count=3), HourCounts(skipped=3)),
    ],
)
def test_an_entry_counts_for_its_endpoint(entry, counted):
    assert hourly_statistics.of_log(records.log(entry), AT) == {("c1", "ep1", HOUR): counted}


@pytest.mark.parametrize("kind", [PostponedEntry, DeadLetteredEntry, RedrivenEntry])
def test_what_waits_or_has_a_dead_letter_does_not_count(kind):
    assert hourly_statistics.of_log(records.log(records.entry(kind)), AT) == {}


def test_an_attempt_counts_in_the_hour_in_which_it_started():
    attempts = [records.entry(AttemptEntry, status=200, started_at_ms=1_700_000_000_000 + 1_500_000 * n) for n in range(3)]
    found = hourly_statistics.of_log(records.log(*attempts), AT)
    assert {hour - HOUR: counts.attempts for (_, _, hour), counts in found.items()} == {0: 2, 1: 1}


def test_a_dead_letter_counts_in_the_hour_in_which_it_was_given_up():
    row = archive.letter_row(archive.letter(dead_lettered_at=AT))
    assert hourly_statistics.of_dead_letter(row) == {("c1", "ep1", HOUR): HourCounts(dead_lettered=1)}


def test_a_record_of_no_registry_id_is_unreadable():
    with pytest.raises(errors.RecordUnreadable):
        hourly_statistics.of_log(records.log(endpoint_id="no id"), AT)


def test_a_percentile_is_at_most_ten_percent_off():
    rng = random.Random(7)
    for _ in range(50):
        scale = rng.uniform(0, 6)
        times = sorted(max(1.0, rng.lognormvariate(scale, 1)) for _ in range(rng.randrange(1, 300)))
        histogram = {}
        for time_ms in times:
            number = hourly_counts.bucket(time_ms)
            histogram[number] = histogram.get(number, 0) + 1
        for share in (0.5, 0.9, 0.99):
            true_ms = times[-int(-share * len(times) // 1) - 1]
            assert hourly_counts.percentile_ms(histogram, share) == pytest.approx(true_ms, rel=0.1)


@pytest.mark.parametrize(
    ("time_ms", "estimate_ms"), [(-1, 1), (0, 1), (1, 1), (1.1, 2**0.125), (2**30, 2**29.875), (2.0**40, 2**29.875)]
)
def test_every_time_has_a_bucket(time_ms, estimate_ms):
    found = hourly_counts.percentile_ms({hourly_counts.bucket(time_ms): 3}, 0.99)
    assert found == pytest.approx(estimate_ms)


def test_no_times_have_no_percentile():
    assert hourly_counts.percentile_ms({}, 0.5) is None


def test_an_array_ends_with_the_last_bucket_that_is_not_empty():
    assert [hourly_statistics.histogram_text(histogram) for histogram in ({}, {0: 2}, {3: 1, 1: 5})] == [
        "{}",
        "{2}",
        "{0,5,0,1}",
    ]


def test_a_range_is_widened_to_whole_buckets():
    moment = dt.datetime(2026, 5, 10, 13, 30, tzinfo=dt.UTC)
    hour = dt.datetime(2026, 5, 10, 13, tzinfo=dt.UTC)
    assert (Granularity.HOUR.floor(moment), Granularity.HOUR.ceiling(moment)) == (hour, hour.replace(hour=14))
    assert (Granularity.HOUR.floor(hour), Granularity.HOUR.ceiling(hour)) == (hour, hour)
    assert (Granularity.DAY.floor(hour), Granularity.DAY.ceiling(hour)) == (hour.replace(hour=0), hour.replace(day=11, hour=0))
