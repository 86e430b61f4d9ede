"""Compute figures over time from the publisher's marks, the receiver's report and the samples. Pure.

All times `at_s` are seconds on the clock of the sampler.
"""

from __future__ import annotations

import array
import bisect
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from load_tests.harness import figures, receiver
from load_tests.scenarios.at_scale.churn import Change
from load_tests.scenarios.at_scale.sampling import Sample

BUCKETS = 240
"""Largest number of points in a plot."""


class Mark(NamedTuple):
    """A moment of publishing: the events from `number` on were published after `at_s`."""

    at_s: float
    number: int


def first_ages_ms(report: receiver.ReceiverReport, count: int) -> array.array[float]:
    """Return the age of each event at its first arrival, by the event's number; NaN for an event that did not arrive."""
    ages = array.array("d", [math.nan]) * count
    for number, age_ms in zip(report.numbers, report.ages_ms, strict=True):
        if number < count and math.isnan(ages[number]):
            ages[number] = age_ms
    return ages


def percentiles_ms(ages: Sequence[float], numbers: Iterable[int], is_counted: Callable[[int], bool]) -> dict[str, int]:
    """Return p50, p90, p99 and max, in ms, of the ages of the arrived events `numbers` for which `is_counted` is True."""
    return figures.percentiles(ages[number] for number in numbers if is_counted(number) and not math.isnan(ages[number]))


def latency(
    marks: Sequence[Mark], ages: Sequence[float], due: Sequence[int], is_counted: Callable[[int], bool], bucket_s: float
) -> list[dict[str, float]]:
    """Return a row of latency percentiles, in ms, for each `bucket_s` seconds of publishing.

    `ages` and `due` have the age and the endpoint of each event, by the event's number. A row counts the events that arrived,
    at endpoints for which `is_counted` is True. Events before the first mark do not count. Seconds without a counted event have
    no row. A row has `at_s` (begin of the seconds), `count`, `p50`, `p90`, `p99` and `max`.
    """
    starts = [mark.number for mark in marks]
    buckets: dict[int, list[float]] = {}
    for number, age_ms in enumerate(ages):
        if not math.isnan(age_ms) and starts and number >= starts[0] and is_counted(due[number]):
            at_s = marks[bisect.bisect_right(starts, number) - 1].at_s
            buckets.setdefault(int(at_s / bucket_s), []).append(age_ms)
    return [
        {"at_s": round(bucket * bucket_s, 1), "count": len(found), **figures.percentiles(found)}
        for bucket, found in sorted(buckets.items())
    ]


def bucket_s(samples: Sequence[Sample]) -> float:
    """Return the seconds that one point of a plot covers, at least 1."""
    return max(1.0, (samples[-1].at_s - samples[0].at_s) / BUCKETS) if samples else 1.0


def cores(samples: Sequence[Sample], every_s: float) -> list[dict[str, Any]]:
    """Return rows of cores (CPU seconds a second) by process, each between two samples at least `every_s` apart.

    `at_s` is the time of the later sample.
    """
    rows, before = [], samples[0] if samples else None
    for sample in samples:
        if before is not None and (took_s := sample.at_s - before.at_s) >= every_s:
            used = {role: round((sample.cpu_s[role] - before.cpu_s[role]) / took_s, 3) for role in sample.cpu_s}
            rows.append({"at_s": round(sample.at_s, 1), **used})
            before = sample
    return rows


def recovered_s(samples: Sequence[Sample], from_s: float, threshold: float) -> float:
    """Return the seconds after `from_s` until no later sample has more than `threshold` undelivered events."""
    late = [sample.at_s for sample in samples if sample.at_s >= from_s and sample.undelivered > threshold]
    return round(late[-1] - from_s, 1) if late else 0.0


def behind_s(samples: Sequence[Sample], changes: Sequence[Change]) -> dict[str, float]:
    """Return p50, p90, p99 and max, over the samples, of the seconds by which the job's registry is behind.

    A sample's delay is the age of the oldest committed change that the job does not route by, or 0. Samples before the first
    and after the last change do not count.
    """
    revisions = [change.revision for change in changes]
    found = []
    for sample in samples:
        first = bisect.bisect_right(revisions, sample.revision)
        if changes and changes[0].at_s <= sample.at_s <= changes[-1].at_s:
            found.append(max(0.0, sample.at_s - changes[first].at_s) if first < len(changes) else 0.0)
    return {name: round(value, 2) for name, value in figures.cuts(found).items()}


def growth(samples: Sequence[Sample], latency_rows: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return each figure's mean over the last quarter of the samples or rows, divided by its mean over the second quarter.

    The figures are `memory_mb`, `files` and `threads` by process, and `latency_ms` by percentile (`p50`, `p99`).
    NaN: there are too few samples, or the mean of the second quarter is 0. The first quarter is left out, because caches fill
    and the JVM's heap grows to its size.
    """
    return {
        **{
            group: {
                role: _grown([float(getattr(sample, group).get(role, 0)) for sample in samples]) for role in _roles(samples)
            }
            for group in ("memory_mb", "files", "threads")
        },
        "latency_ms": {name: _grown([row[name] for row in latency_rows]) for name in ("p50", "p99")},
    }


def _roles(samples: Sequence[Sample]) -> list[str]:
    return sorted({role for sample in samples for role in sample.memory_mb})


def _grown(values: Sequence[float]) -> float:
    quarter = len(values) // 4
    if not quarter:
        return math.nan
    before = statistics.fmean(values[quarter : 2 * quarter])
    return round(statistics.fmean(values[-quarter:]) / before, 3) if before else math.nan
