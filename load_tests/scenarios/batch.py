"""Measure the batch lane: its first batch, its throughput, and the waiting times of events.

1. The job starts without events. After `/readyz` answers, some events come: how long until the first batch?
2. The job is stopped, the topics are filled, and the job starts again. So the platform sets the pace, not the publisher.
   CPU seconds and wall time are measured from the end of the warm-up to the last delivery.
3. Events come at a steady pace. The receiver measures the age of the events of each batch. The first seconds are reported
   separately, because the JVM still compiles.
4. If `hot` is above 0, step 3 is repeated, and this share of the events is due to one endpoint. Do events for other endpoints
   wait longer?
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from load_tests.harness import figures, platform, stage, traffic

SETTINGS = {
    "spark.master": "local[2,4]",
    "spark.parallelism": "2",
    "batch.max_events_per_micro_batch": "400000",
    "batch.shards": "2",
}
"""Settings of the job, for two cores that it shares with broker and receiver. With this number of events in a micro-batch,
10,000 endpoints get 40 events in each request when the lane is behind (docs/adr/0030-more-at-a-time.md)."""
IDLE_S = 30
"""Seconds, besides `max_wait_s`, within which all published events must arrive."""
COLD_EVENTS = 100
"""Number of events of step 1. They are the first events after the job is ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchScenario:
    """Parameters of the scenario."""

    events: int = 800_000
    """Measured events. The default fills whole micro-batches, because requests start only when a micro-batch is collected."""
    warm_up: int = 800_000
    """Events of the warm-up, also whole micro-batches."""
    endpoints: int = 1_000
    max_events: int = 1_000
    """Most events of a batch."""
    max_wait_s: float = 1.0
    """Seconds that an event may wait for its batch."""
    steady_per_s: int = 5_000
    settle_s: int = 60
    """Seconds of the steady pace before its measurement."""
    steady_s: int = 15
    hot: float = 0.0
    """Share of the events of step 4 that are due to one endpoint. 0: step 4 is left out."""
    seed: int = 1


def run(scenario: BatchScenario, terms: stage.Terms) -> dict[str, Any]:
    """Run the scenario, and return its figures."""
    chosen = {**SETTINGS, **terms.overrides}
    bounds = {"max_events": scenario.max_events, "max_wait_s": scenario.max_wait_s}
    registered = traffic.Customers(endpoints=scenario.endpoints, fields={"mode": "batch", "batch": bounds})
    with terms.stage(registered, seed=scenario.seed) as (servers, customers, sent):
        patience_s = IDLE_S + scenario.max_wait_s

        def wait_for_all(job: platform.Job, goal: str) -> float:
            return job.wait_until(lambda: customers.count >= len(sent.due), within_s=patience_s, goal=goal)

        with servers.job("batch", chosen) as job:
            ready_s = job.wait_until_ready()
            terms.say(f"ready after {ready_s:.1f} s")
            sent.publish(COLD_EVENTS)
            cold_s = job.wait_until(lambda: customers.count > 0, within_s=patience_s, goal="the first batch") - ready_s
            terms.say(f"first batch {cold_s:.1f} s later")
            wait_for_all(job, "the first events")
        filled = sent.publish(scenario.warm_up + scenario.events)
        terms.say(f"filled {len(traffic.EVENT_TYPES)} topics with {len(filled):,} events of {traffic.EVENT_BYTES} bytes")
        with servers.job("batch", chosen) as job:
            throughput = job.work_off(
                customers, scenario.warm_up, filled.stop, terms.say, lambda: terms.profiled("full-speed", job, customers)
            )
            phases = {"settling": sent.publish_steadily(scenario.steady_per_s, scenario.settle_s)}
            wait_for_all(job, "the first steady deliveries")
            phases["even"] = sent.publish_steadily(scenario.steady_per_s, scenario.steady_s)
            wait_for_all(job, "the steady deliveries")
            if scenario.hot:
                phases["hot"] = sent.publish_steadily(scenario.steady_per_s, scenario.steady_s, hot=scenario.hot)
                wait_for_all(job, "the deliveries with a hot endpoint")
            job.meter.read()
        report = customers.report()
        reconciled = figures.reconciled(servers.account(), report)
    requests = list(figures.requests(report))
    settling, even, hot = phases["settling"], phases["even"], phases.get("hot", range(0))
    return {
        "scenario": "batch",
        "events": throughput.count,
        **throughput.document(),
        "events_per_s": round(throughput.count / throughput.took_s),
        "batches": figures.requests_between(report, filled.stop - throughput.count, filled.stop),
        "first_batch_s": round(cold_s, 1),
        "ready_s": round(ready_s, 1),
        "latency_ms": {
            "at_per_s": scenario.steady_per_s,
            **figures.percentiles(age for request in _in(requests, even) for age in request.ages_ms),
        },
        "waiting_ms": {"max_wait": round(scenario.max_wait_s * 1000), **_longest_waits(_in(requests, even))},
        "waiting_ms_while_settling": {"seconds": scenario.settle_s, **_longest_waits(_in(requests, settling))},
        "hot": {
            "share": scenario.hot,
            "waiting_ms": _longest_waits(request for request in _in(requests, hot) if traffic.is_hot(request.endpoint)),
            "waiting_ms_of_others": _longest_waits(
                request for request in _in(requests, hot) if traffic.is_other(request.endpoint)
            ),
        }
        if hot
        else None,
        **figures.delivered(report, sent.due),
        "reconciled": reconciled,
        "peak_rss_mb": {role: round(peak) for role, peak in job.meter.peak_mb().items()},
        "settings": chosen,
        "receiver": figures.of_receiver(report),
    }


def _in(requests: Iterable[figures.Request], phase: range) -> Sequence[figures.Request]:
    """Return the requests with events of a phase, a range of event numbers. No request has events of two phases."""
    return [request for request in requests if request.numbers[0] in phase]


def _longest_waits(requests: Iterable[figures.Request]) -> dict[str, int]:
    """Return p50, p90, p99 and max, in ms, of the age of each batch's oldest event at its arrival.

    This age includes the event's wait for its batch, which `max_wait_s` bounds.
    """
    return figures.percentiles(max(request.ages_ms) for request in requests)
