"""Count what came of some records, in a form that merges: what a worker tells the driver for the metrics.

Runs in the executors, merged on the driver. Must not import pyspark or psycopg. Pure. Keys come from closed sets only, so a
tally stays as small after a million records as after ten: nothing here names a tenant, an endpoint or a URL.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter
from dataclasses import dataclass, field

from delivery.model import OutcomeKind
from delivery.webhooks.lane import Results

NONE = "none"
"""The label of what has no reason or error class: a success."""
LATENCY_BUCKETS_S = (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, math.inf)
"""Upper bounds. Dense where a micro-batch ends (0.3–5 s), and far enough to see a backlog worked off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Numbers about some records. `a + b` is the tally of both."""

    deliveries: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By outcome and reason."""
    rejected: Counter[str] = field(default_factory=Counter)
    """Records, by reason."""
    attempts: Counter[str] = field(default_factory=Counter)
    """By error class."""
    retries: int = 0
    """Those of the attempts that were not a delivery's first."""
    latencies: Counter[float] = field(default_factory=Counter)
    """Accepted deliveries, by the upper bound of the time from Kafka's append to the response."""
    latency_sum_s: float = 0.0
    most_in_flight: int = 0
    """Requests under way at once in one worker process; of two tallies the larger."""
    cpu_s: float = 0.0
    """CPU time of the worker processes."""

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            deliveries=self.deliveries + other.deliveries,
            rejected=self.rejected + other.rejected,
            attempts=self.attempts + other.attempts,
            retries=self.retries + other.retries,
            latencies=self.latencies + other.latencies,
            latency_sum_s=self.latency_sum_s + other.latency_sum_s,
            most_in_flight=max(self.most_in_flight, other.most_in_flight),
            cpu_s=self.cpu_s + other.cpu_s,
        )


def of(results: Results, *, cpu_s: float) -> Tally:
    """Return the tally of `results`. One pass, with the usual case first: this runs for every delivery."""
    deliveries: Counter[tuple[str, str]] = Counter()
    attempts: Counter[str] = Counter()
    latencies: Counter[float] = Counter()
    latency_sum_s, retries = 0.0, 0
    for outcome in results.outcomes:
        if outcome.kind is OutcomeKind.DELIVERED:
            last = outcome.attempts[-1]
            latency_s = (last.started_at_ms + last.duration_ms - outcome.delivery.event.record.appended_at_ms) / 1000
            if latency_s < 0:
                latency_s = 0.0  # the append was stamped by a clock that is ahead of ours
            latencies[LATENCY_BUCKETS_S[bisect.bisect_left(LATENCY_BUCKETS_S, latency_s)]] += 1
            latency_sum_s += latency_s
        else:
            deliveries[outcome.kind.value, outcome.reason or NONE] += 1
        for attempt in outcome.attempts:
            attempts[attempt.error_class or NONE] += 1
            retries += attempt.number > 1
    if latencies:
        deliveries[OutcomeKind.DELIVERED.value, NONE] = latencies.total()
    return Tally(
        deliveries=deliveries,
        rejected=Counter(rejection.reason for rejection in results.rejections),
        attempts=attempts,
        retries=retries,
        latencies=latencies,
        latency_sum_s=latency_sum_s,
        most_in_flight=results.most_in_flight,
        cpu_s=cpu_s,
    )
