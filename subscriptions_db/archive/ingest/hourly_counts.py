"""Define the counts of the deliveries of one hour, merge such counts, and estimate percentiles from histograms. Pure.

Runs in `fanout archive`, in the API and in `fanout` commands. A histogram has four buckets for each doubling of a time. So a
percentile is an estimate, at most 10 % off the exact time, between 1 ms and 12 days.
"""

from __future__ import annotations

import bisect
import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

BUCKETS_OF_A_DOUBLING = 4
DOUBLINGS = 30
"""Doublings from the first bound, 1 ms, to the last, 2³⁰ ms (12 days). Longer times are in the last bucket."""
BOUNDS_MS = tuple(2.0 ** (number / BUCKETS_OF_A_DOUBLING) for number in range(DOUBLINGS * BUCKETS_OF_A_DOUBLING + 1))
"""Upper bounds of the buckets, inclusive. The first bucket has all times up to 1 ms. Stored histograms have these buckets, so
the bounds must not change."""
_MIDDLES_MS = (1.0, *map(math.sqrt, map(operator.mul, BOUNDS_MS, BOUNDS_MS[1:])))
"""Estimates for the times in each bucket: 1 ms for the first bucket, the geometric middle for the others."""

Histogram = dict[int, int]
"""Number of a bucket → number of times in it."""
_Key = TypeVar("_Key")


@dataclass(slots=True)
class HourCounts:
    """Counts of deliveries and attempts in one hour, or their sum over several hours."""

    delivered: int = 0
    """Deliveries that the endpoint accepted. In a batch, each accepted event counts."""
    dead_lettered: int = 0
    skipped: int = 0
    attempts: int = 0
    """Requests. A request with a batch counts once."""
    error_classes: dict[str, int] = field(default_factory=dict)
    """Error class → number of failed attempts."""
    durations: Histogram = field(default_factory=dict)
    """Durations of the attempts."""
    latencies: Histogram = field(default_factory=dict)
    """Times from Kafka's append to the response, of accepted attempts without replays. A batch counts with its oldest event."""

    def add(self, other: HourCounts) -> None:
        """Add the counts of another hour, or of another record."""
        self.delivered += other.delivered
        self.dead_lettered += other.dead_lettered
        self.skipped += other.skipped
        self.attempts += other.attempts
        _add(self.error_classes, other.error_classes)
        _add(self.durations, other.durations)
        _add(self.latencies, other.latencies)


def bucket(time_ms: float) -> int:
    """Return the number of the bucket of a time in milliseconds."""
    return min(bisect.bisect_left(BOUNDS_MS, time_ms), len(BOUNDS_MS) - 1)


def percentile_ms(histogram: Histogram, share: float) -> float | None:
    """Estimate a percentile of the times in a histogram, in ms. `share` is between 0 and 1, such as 0.99.

    None: the histogram is empty. The estimate is the geometric middle of the bucket with the nearest rank, or 1 ms for
    the first bucket.
    """
    rank = math.ceil(share * sum(histogram.values()))
    for number in sorted(histogram):
        rank -= histogram[number]
        if rank <= 0:
            return _MIDDLES_MS[number]
    return None


def _add(total: dict[_Key, int], more: Mapping[_Key, int]) -> None:
    for key, count in more.items():
        total[key] = total.get(key, 0) + count
