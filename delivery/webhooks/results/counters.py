"""Count the results of a task for the driver's metrics. The driver adds the counters of all tasks.

Runs in the executors and on the driver. Pure. Counters stay small after a million records, because labels come from closed
sets, and destinations and customers are a bounded sample of digests (`outage_detection.Reachability`). Counters name no tenant,
endpoint or URL.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from delivery.model import Attempt, OutcomeKind
from delivery.webhooks.results.task_results import Results
from delivery.webhooks.scheduling import outage_detection
from delivery.webhooks.sending.batch_payload import REJECTED

NONE = "none"
"""Label for a success, which has neither a reason nor an error class."""
LATENCY_BUCKETS_S = (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, math.inf)
"""Upper bounds of the latency histogram, in seconds. Dense around the length of a micro-batch (0.3–5 s), and wide enough for a
backlog."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Counts of the results of one task, or of several tasks. `a + b` has the counts of both."""

    records: int = 0
    """Records that a fast lane has handled, by its offset receipts."""
    deliveries: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Deliveries, by outcome and reason. The reason of an accepted delivery is NONE."""
    rejected: Counter[str] = field(default_factory=Counter)
    """Rejected records, by reason."""
    batches: Counter[str] = field(default_factory=Counter)
    """Batches with an attempt in the task, by the reason for which they were sent (LeaveReason)."""
    attempts: Counter[str] = field(default_factory=Counter)
    """Attempts, by error class. The error class of an accepted attempt is NONE."""
    retries: int = 0
    """Attempts that were not the first of their delivery."""
    latencies: Counter[float] = field(default_factory=Counter)
    """Accepted deliveries, by the bucket (LATENCY_BUCKETS_S) of their latency: the time from Kafka's append to the response."""
    latency_sum_s: float = 0.0
    """Sum of the latencies of accepted deliveries, in seconds."""
    most_in_flight: int = 0
    """Most requests in flight at the same time from one lane in one worker process. `a + b` has the larger number."""
    reach: outage_detection.Reachability = outage_detection.NOTHING_ASKED
    """Destinations of the requests, and which of them responded."""
    cpu_s: float = 0.0
    """CPU seconds that the worker processes used for this task or these tasks."""
    waited_for_hosts: int = 0
    """Waits of requests for the limits of their host (`delivery.webhooks.scheduling.host_limits`)."""
    clock_ahead_s: float = 0.0
    """Seconds by which a worker's clock is ahead of the driver's; negative: behind. `a + b` has the value further from 0."""
    own_delay_s: float = 0.0
    """Seconds in which the worker processes waited for their own machines (delivery.webhooks.scheduling.endpoint_clock)."""
    reused_ids: int = 0
    """Events that were due to a subscription, and had the source and id of an earlier event but another payload. An estimate,
    without the events that were rejected for their reused id (`delivery.webhooks.routing.seen_ids`)."""
    invalid_times: int = 0
    """Events whose time was no RFC 3339 time, and was replaced by the time at which Kafka appended the record."""
    taken_apart: int = 0
    """Events of batch records that were written as records of their own."""

    def __add__(self, other: Counters) -> Counters:
        return Counters(
            records=self.records + other.records,
            deliveries=self.deliveries + other.deliveries,
            rejected=self.rejected + other.rejected,
            batches=self.batches + other.batches,
            attempts=self.attempts + other.attempts,
            retries=self.retries + other.retries,
            latencies=self.latencies + other.latencies,
            latency_sum_s=self.latency_sum_s + other.latency_sum_s,
            most_in_flight=max(self.most_in_flight, other.most_in_flight),
            reach=self.reach + other.reach,
            cpu_s=self.cpu_s + other.cpu_s,
            waited_for_hosts=self.waited_for_hosts + other.waited_for_hosts,
            clock_ahead_s=max(self.clock_ahead_s, other.clock_ahead_s, key=abs),
            own_delay_s=self.own_delay_s + other.own_delay_s,
            reused_ids=self.reused_ids + other.reused_ids,
            invalid_times=self.invalid_times + other.invalid_times,
            taken_apart=self.taken_apart + other.taken_apart,
        )


def count(results: Results, *, cpu_s: float) -> Counters:
    """Return the counts of `results`. `cpu_s` is the CPU time of this worker process since the last count, in seconds."""
    # One pass, the usual case first: the loop runs for every delivery.
    deliveries: Counter[tuple[str, str]] = Counter()
    attempts: Counter[str] = Counter()
    waits_ms: list[float] = []
    retries = 0
    for outcome in results.outcomes:
        if outcome.kind is OutcomeKind.DELIVERED:
            waits_ms.append(_ended_at_ms(outcome.attempts) - outcome.delivery.event.record.appended_at_ms)
        else:
            deliveries[outcome.kind.value, outcome.reason or NONE] += 1
        for attempt in outcome.attempts:
            attempts[attempt.error_class or NONE] += 1
            retries += attempt.number > 1
    for batch, rejected in results.batches:
        events = batch.delivery.events
        if batch.kind is OutcomeKind.DELIVERED:
            ended_at_ms = _ended_at_ms(batch.attempts)
            waits_ms += [ended_at_ms - event.appended_at_ms for place, event in enumerate(events) if place not in rejected]
            if rejected:
                deliveries[OutcomeKind.DEAD_LETTERED.value, REJECTED] += len(rejected)
        else:
            deliveries[batch.kind.value, batch.reason or NONE] += len(events)
        for attempt in batch.attempts:
            attempts[attempt.error_class or NONE] += 1
            retries += attempt.number > 1
    if waits_ms:
        deliveries[OutcomeKind.DELIVERED.value, NONE] = len(waits_ms)
    latencies, latency_sum_s = _in_buckets(waits_ms)
    return Counters(
        records=sum(receipt.records for receipt in results.receipts),
        deliveries=deliveries,
        rejected=Counter(rejection.reason for rejection in results.rejections),
        batches=Counter(batch.delivery.left_by.value for batch, _ in results.batches if batch.attempts),
        attempts=attempts,
        retries=retries,
        latencies=latencies,
        latency_sum_s=latency_sum_s,
        most_in_flight=results.most_in_flight,
        reach=results.reach,
        cpu_s=cpu_s,
        waited_for_hosts=results.waited_for_hosts,
        clock_ahead_s=results.clock_ahead_s,
        own_delay_s=results.own_delay_s,
        reused_ids=results.reused_ids,
        invalid_times=results.invalid_times,
        taken_apart=sum(batch.events for batch in results.batch_records),
    )


def _ended_at_ms(attempts: Sequence[Attempt]) -> float:
    return attempts[-1].started_at_ms + attempts[-1].duration_ms


def _in_buckets(waits_ms: list[float]) -> tuple[Counter[float], float]:
    latencies: Counter[float] = Counter()
    sum_s = 0.0
    for wait_ms in waits_ms:
        latency_s = wait_ms / 1000 if wait_ms > 0 else 0.0  # negative if the clock that stamped the append is ahead of ours
        latencies[LATENCY_BUCKETS_S[bisect.bisect_left(LATENCY_BUCKETS_S, latency_s)]] += 1
        sum_s += latency_s
    return latencies, sum_s
