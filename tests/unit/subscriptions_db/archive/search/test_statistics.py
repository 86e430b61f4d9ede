"""The hours of a bucket are added, whatever the lengths of their histograms."""

import datetime as dt
import random

import orjson

from subscriptions_db.archive.ingest.hourly_counts import HourCounts
from subscriptions_db.archive.search import statistics

START = dt.datetime(2026, 5, 10, tzinfo=dt.UTC)


def array(histogram):
    """Return a histogram as Postgres stores it: the array ends with the last bucket that is not empty."""
    return [histogram.get(number, 0) for number in range(max(histogram, default=-1) + 1)]


def stored(counts):
    """Return counts as the statement `statistics` returns them."""
    parts = [counts.error_classes, array(counts.durations), array(counts.latencies)]
    names = ("delivered", "dead_lettered", "skipped", "attempts")
    return {name: getattr(counts, name) for name in names} | {"parts": orjson.dumps(parts).decode()}


def hour(rng):
    """Return the counts of an hour, in some hours without any times."""
    histograms = ({rng.randrange(121): rng.randrange(1, 9) for _ in range(rng.randrange(5))} for _ in range(2))
    error_classes = {name: rng.randrange(1, 9) for name in rng.sample(["timeout", "connect", "server_error"], rng.randrange(3))}
    return HourCounts(*(rng.randrange(9) for _ in range(4)), error_classes, *histograms)


def test_the_hours_of_a_day_are_added():
    rng = random.Random(7)
    for hours in (1, 2, 24):
        counted, wanted = [hour(rng) for _ in range(hours)], HourCounts()
        for counts in counted:
            wanted.add(counts)
        assert statistics.bucket_of(START, [stored(counts) for counts in counted]) == (START, wanted)
