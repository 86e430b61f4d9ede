"""Compute the figures of a load test. Pure."""

from __future__ import annotations

import bisect
import datetime as dt
import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from fanout.reconcile import accounting
from load_tests.harness import receiver, usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Time and CPU for a backlog: right after the start, and once the platform was warm."""

    first_s: float
    """Until the first delivery, from the start of the job."""
    warm_s: float
    warm: usage.Usage
    warm_count: int
    took_s: float
    spent: usage.Usage
    count: int
    """Events that were delivered after the warm-up."""

    def document(self) -> dict[str, Any]:
        """Return it for machines, CPU by the million events."""
        return {
            "deliveries": self.count,
            "deliveries_per_s": round(self.count / self.took_s),
            "cpu_s_per_million": self.spent.per_million(self.count),
            "first_delivery_s": round(self.first_s, 1),
            "driver_python_cpu_s_per_million": round(self.spent.driver_s * 1e6 / self.count, 1),
            "warm_up": {
                "deliveries": self.warm_count,
                "wall_s": round(self.warm_s, 1),
                "cpu_s": {"jvm": round(self.warm.jvm_s, 1), "python": round(self.warm.python_s, 1)},
            },
        }


class Request(NamedTuple):
    """One that came in: a single event, or a batch."""

    endpoint: int
    numbers: Sequence[int]
    ages_ms: Sequence[float]


class MicroBatch(NamedTuple):
    """One that was committed."""

    ended_at_s: float
    """Since the epoch."""
    records: int
    took_ms: int


def micro_batches(log: Iterable[bytes], lane: str) -> Iterator[MicroBatch]:
    """Yield those that a lane has committed, by the lines of the job's log in JSON."""
    for line in log:
        if b'"micro-batch committed"' in line and (entry := orjson.loads(line))["lane"] == lane:
            ended_at_s = dt.datetime.fromisoformat(entry["at"]).timestamp()
            yield MicroBatch(ended_at_s, entry["records"], entry["duration_ms"])


def requests(report: receiver.Report) -> Iterator[Request]:
    """Yield the requests in the order of their arrival."""
    ends = itertools.accumulate(report.requests, initial=0)
    for first, end in itertools.pairwise(ends):
        if first < end:
            yield Request(report.endpoints[first], report.numbers[first:end], report.ages_ms[first:end])


def requests_between(report: receiver.Report, first: int, end: int) -> int:
    """Return how many requests brought the events from the `first` to the `end` of all that arrived."""
    starts = list(itertools.accumulate(report.requests, initial=0))[:-1]
    return sum(first <= start < end for start in starts)


def delivered(report: receiver.Report, due: Sequence[int]) -> dict[str, int]:
    """Return the numbers of lost, repeated, wrongly addressed and unverified deliveries.

    `due` has the endpoint of each event, by its number.
    """
    times, unexpected = [0] * len(due), 0
    for number, endpoint in zip(report.numbers, report.endpoints, strict=True):
        if number < len(due) and due[number] == endpoint:
            times[number] += 1
        else:
            unexpected += 1
    lost = times.count(0)
    return {
        "lost": lost,
        "duplicates": sum(times) - (len(times) - lost),
        "unexpected": unexpected,
        "unverified": report.unverified,
    }


def overtook(report: receiver.Report, endpoints: Collection[int]) -> int:
    """Return how many earlier events of its endpoint one of these endpoints' events came before, at most."""
    arrived: dict[int, list[int]] = {endpoint: [] for endpoint in endpoints}
    for number, endpoint in zip(report.numbers, report.endpoints, strict=True):
        if endpoint in arrived:
            arrived[endpoint].append(number)
    return max((_overtook(list(dict.fromkeys(numbers))) for numbers in arrived.values()), default=0)


def _overtook(numbers: Sequence[int]) -> int:
    """Return the most numbers smaller than one that come after it."""
    ranks = {number: rank for rank, number in enumerate(sorted(numbers))}
    before: list[int] = []  # sorted
    most = 0
    for number in numbers:
        smaller = bisect.bisect_left(before, number)
        most = max(most, ranks[number] - smaller)
        before.insert(smaller, number)
    return most


def reconciled(account: accounting.Account, report: receiver.Report) -> dict[str, Any]:
    """Return what the topics say themselves, and whether the receiver says the same."""
    lanes = account.lanes.values()
    delivered = sum(lane.counts.delivered for lane in lanes)
    return {
        "holds": account.holds and delivered == len(set(report.numbers)),
        "delivered": delivered,
        "pending": sum(lane.counts.pending for lane in lanes),
        "dead_lettered": sum(lane.counts.dead_lettered for lane in lanes),
        "repeated": sum(lane.counts.repeated for lane in lanes),
        "findings": dict(account.findings.by_kind),
    }


def poison(published: Counter[str], rejected: Counter[str]) -> dict[str, Any]:
    """Return what became of records that are no events, by why they are to be rejected."""
    return {
        "poison": {"published": dict(published), "rejected": dict(sorted(rejected.items()))},
        "not_rejected": (published - rejected).total(),
    }


def of_receiver(report: receiver.Report) -> dict[str, Any]:
    """Return what the receiver took, which no other figure counts."""
    per_million = 1e6 / len(report.numbers)
    return {"cpu_s_per_million": round(report.cpu_s * per_million, 1), "connections": report.connections}


def latency_ms(report: receiver.Report, numbers: range, at: Callable[[int], bool] = lambda _: True) -> dict[str, int]:
    """Return how old the events with these numbers were when they arrived, at some endpoints."""
    arrived = zip(report.numbers, report.endpoints, report.ages_ms, strict=True)
    return percentiles(age for number, endpoint, age in arrived if number in numbers and at(endpoint))


def ratios(before: Mapping[str, float], after: Mapping[str, float], *names: str) -> dict[str, float]:
    """Return by how much some figures have grown."""
    return {name: round(after[name] / before[name], 2) for name in names}


def percentiles(values: Iterable[float]) -> dict[str, int]:
    """Return p50, p90, p99 and the largest, in whole numbers."""
    return {name: round(value) for name, value in cuts(values).items()}


def cuts(values: Iterable[float]) -> dict[str, float]:
    """Return p50, p90, p99 and the largest."""
    known = list(values)
    if len(known) < 2:
        return dict.fromkeys(("p50", "p90", "p99", "max"), sum(known))
    found = statistics.quantiles(known, n=100, method="inclusive")
    return {"p50": found[49], "p90": found[89], "p99": found[98], "max": max(known)}
