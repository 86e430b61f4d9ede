"""Compute the figures of a load test from the receiver's report, the job's log and the account of the topics. Pure."""

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
    """Time and CPU in which the job delivered a backlog: during the warm-up, and after it."""

    first_s: float
    """Seconds from the start of the job to the first delivery."""
    warm_s: float
    """Seconds from the start of the job to the end of the warm-up."""
    warm: usage.Usage
    """CPU of the job until the end of the warm-up."""
    warm_count: int
    """Events that were delivered during the warm-up."""
    took_s: float
    """Seconds from the end of the warm-up to the last delivery."""
    spent: usage.Usage
    """CPU of the job in `took_s`."""
    count: int
    """Events that were delivered in `took_s`."""

    def document(self) -> dict[str, Any]:
        """Return the throughput as JSON values, with the CPU seconds of a million events."""
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
    """One request that arrived at the receiver, with a single event or a batch."""

    endpoint: int
    numbers: Sequence[int]
    """Numbers of the events in the request."""
    ages_ms: Sequence[float]
    """Age of each event at the arrival, in the order of `numbers`."""


class MicroBatch(NamedTuple):
    """One committed micro-batch of a lane, from the job's log."""

    ended_at_s: float
    """Time of the commit, seconds since the epoch."""
    records: int
    took_ms: int


def micro_batches(log: Iterable[bytes], lane: str) -> Iterator[MicroBatch]:
    """Yield the committed micro-batches of a lane from the lines of the job's log (`logs.format` json)."""
    for line in log:
        if b'"micro-batch committed"' in line and (entry := orjson.loads(line))["lane"] == lane:
            ended_at_s = dt.datetime.fromisoformat(entry["at"]).timestamp()
            yield MicroBatch(ended_at_s, entry["records"], entry["duration_ms"])


def requests(report: receiver.ReceiverReport) -> Iterator[Request]:
    """Yield the requests of a report in the order of arrival, except requests without an event."""
    ends = itertools.accumulate(report.requests, initial=0)
    for first, end in itertools.pairwise(ends):
        if first < end:
            yield Request(report.endpoints[first], report.numbers[first:end], report.ages_ms[first:end])


def requests_between(report: receiver.ReceiverReport, first: int, end: int) -> int:
    """Return the number of requests whose first event is among the arrivals `first` to `end` - 1, counted from 0."""
    starts = list(itertools.accumulate(report.requests, initial=0))[:-1]
    return sum(first <= start < end for start in starts)


def delivered(report: receiver.ReceiverReport, due: Sequence[int], fan_out: Sequence[int] | None = None) -> dict[str, Any]:
    """Compare the arrivals with the deliveries that were due, and return the figures below.

    1. `lost`: due deliveries that did not arrive.
    2. `duplicates`: arrivals of a due delivery after its first arrival. `duplicates_share`: their share of the due deliveries.
    3. `unexpected`: arrivals at an endpoint to which the event is not due.
    4. `unverified`: requests with a wrong signature. The events of such requests count in the other figures too.

    `due` has the endpoint of each event, by the event's number. `fan_out` has the number of endpoints of each event; None: each
    event has one endpoint. The endpoints of an event have consecutive numbers, from the endpoint in `due` on.
    """
    starts = list(itertools.accumulate(itertools.repeat(1, len(due)) if fan_out is None else fan_out, initial=0))
    times, unexpected = [0] * starts[-1], 0
    for number, endpoint in zip(report.numbers, report.endpoints, strict=True):
        if number < len(due) and 0 <= (index := endpoint - due[number]) < starts[number + 1] - starts[number]:
            times[starts[number] + index] += 1
        else:
            unexpected += 1
    lost = times.count(0)
    duplicates = sum(times) - (len(times) - lost)
    return {
        "lost": lost,
        "duplicates": duplicates,
        "duplicates_share": round(duplicates / max(1, len(times)), 5),
        "unexpected": unexpected,
        "unverified": report.unverified,
    }


def overtook(report: receiver.ReceiverReport, endpoints: Collection[int]) -> int:
    """Return the largest number of events that one event overtook.

    An event overtakes each event for the same endpoint that was published before it and arrives after it. Only the first
    arrival of each event counts. `endpoints` are the endpoints to examine.
    """
    arrived: dict[int, list[int]] = {endpoint: [] for endpoint in endpoints}
    for number, endpoint in zip(report.numbers, report.endpoints, strict=True):
        if endpoint in arrived:
            arrived[endpoint].append(number)
    return max((_overtook(list(dict.fromkeys(numbers))) for numbers in arrived.values()), default=0)


def _overtook(numbers: Sequence[int]) -> int:
    """Return the largest count, over all numbers, of smaller numbers that come later in the sequence."""
    ranks = {number: rank for rank, number in enumerate(sorted(numbers))}
    before: list[int] = []  # sorted
    most = 0
    for number in numbers:
        smaller = bisect.bisect_left(before, number)
        most = max(most, ranks[number] - smaller)
        before.insert(smaller, number)
    return most


def reconciled(account: accounting.Account, report: receiver.ReceiverReport) -> dict[str, Any]:
    """Return the numbers of deliveries by outcome, and `findings` by kind, as the topics say.

    The outcomes are `delivered`, `pending`, `dead_lettered` and `repeated`. `holds` is True if the topics have no
    contradiction, and the receiver got as many different deliveries as `delivered`.
    """
    lanes = account.lanes.values()
    delivered = sum(lane.counts.delivered for lane in lanes)
    return {
        "holds": account.holds and delivered == len(set(zip(report.numbers, report.endpoints, strict=True))),
        "delivered": delivered,
        "pending": sum(lane.counts.pending for lane in lanes),
        "dead_lettered": sum(lane.counts.dead_lettered for lane in lanes),
        "repeated": sum(lane.counts.repeated for lane in lanes),
        "findings": dict(account.findings.by_kind),
    }


def poison(published: Counter[str], rejected: Counter[str]) -> dict[str, Any]:
    """Return `poison`, the numbers of published and rejected poison records by reject reason, and the total `not_rejected`."""
    return {
        "poison": {"published": dict(published), "rejected": dict(sorted(rejected.items()))},
        "not_rejected": (published - rejected).total(),
    }


def of_receiver(report: receiver.ReceiverReport) -> dict[str, Any]:
    """Return `cpu_s_per_million`, the CPU seconds of the receiver for a million events, and its number of `connections`."""
    per_million = 1e6 / len(report.numbers)
    return {"cpu_s_per_million": round(report.cpu_s * per_million, 1), "connections": report.connections}


def latency_ms(report: receiver.ReceiverReport, numbers: range, at: Callable[[int], bool] = lambda _: True) -> dict[str, int]:
    """Return `percentiles` of the ages of events at their arrival, in ms.

    Only events in `numbers` count, and only arrivals at endpoints for which `at` returns True.
    """
    arrived = zip(report.numbers, report.endpoints, report.ages_ms, strict=True)
    return percentiles(age for number, endpoint, age in arrived if number in numbers and at(endpoint))


def ratios(before: Mapping[str, float], after: Mapping[str, float], *names: str) -> dict[str, float]:
    """Return the figures `names` of `after`, each divided by the same figure of `before`."""
    return {name: round(after[name] / before[name], 2) for name in names}


def percentiles(values: Iterable[float]) -> dict[str, int]:
    """Return `p50`, `p90`, `p99` and `max` of the values, rounded to whole numbers; all 0 without a value."""
    return {name: round(value) for name, value in cuts(values).items()}


def cuts(values: Iterable[float]) -> dict[str, float]:
    """Return `p50`, `p90`, `p99` and `max` of the values; all 0 without a value."""
    known = list(values)
    if len(known) < 2:
        return dict.fromkeys(("p50", "p90", "p99", "max"), sum(known))
    found = statistics.quantiles(known, n=100, method="inclusive")
    return {"p50": found[49], "p90": found[89], "p99": found[98], "max": max(known)}
