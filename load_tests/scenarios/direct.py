"""Measure the throughput of the direct lane at full speed, and its latency at a steady pace.

1. Throughput. The topics are filled before the job starts, so that the platform sets the pace, not the publisher. The first
   deliveries warm the job up: the JVM compiles, connections open. The warm-up has its own figures. CPU seconds and wall time
   are measured from the end of the warm-up to the last delivery.
2. Latency. When the backlog of step 1 is delivered, further events come at a steady pace. The receiver measures the age of each
   further event at its arrival.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from load_tests.harness import figures, stage, traffic

SETTINGS = {"spark.master": "local[1,4]", "spark.parallelism": "1", "source.max_events_per_batch": "50000"}
"""Settings of the job, for two cores that it shares with broker and receiver. One worker leaves the other core to the JVM; two
workers take more CPU for each delivery. Micro-batches are large, because the job has a backlog."""
IDLE_S = 30
"""Seconds within which the events of the steady pace must arrive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectScenario:
    """Parameters of the scenario."""

    events: int = 100_000
    """Measured events."""
    warm_up: int = 100_000
    """Events of the warm-up."""
    endpoints: int = 100
    steady_per_s: int = 1_000
    """Events a second of the steady pace."""
    steady_s: int = 15
    seed: int = 1


def run(scenario: DirectScenario, terms: stage.Terms) -> dict[str, Any]:
    """Run the scenario, and return its figures."""
    chosen = {**SETTINGS, **terms.overrides}
    with terms.stage(traffic.Customers(endpoints=scenario.endpoints), seed=scenario.seed) as (servers, customers, sent):
        filled = sent.publish(scenario.warm_up + scenario.events)
        terms.say(f"filled {len(traffic.EVENT_TYPES)} topics with {len(filled):,} events of {traffic.EVENT_BYTES} bytes")
        with servers.job("direct", chosen) as job:
            throughput = job.work_off(
                customers, scenario.warm_up, len(filled), terms.say, lambda: terms.profiled("full-speed", job, customers)
            )
            sent.publish_steadily(scenario.steady_per_s, scenario.steady_s)
            job.wait_until(lambda: customers.count >= len(sent.due), within_s=IDLE_S, goal="the steady deliveries")
            job.meter.read()
        report = customers.report()
        reconciled = figures.reconciled(servers.account(), report)
    steady = [age for number, age in zip(report.numbers, report.ages_ms, strict=True) if number >= len(filled)]
    return {
        "scenario": "direct",
        **throughput.document(),
        "latency_ms": {"at_per_s": scenario.steady_per_s, **figures.percentiles(steady)},
        **figures.delivered(report, sent.due),
        "reconciled": reconciled,
        "peak_rss_mb": {role: round(peak) for role, peak in job.meter.peak_mb().items()},
        "settings": chosen,
        "receiver": figures.of_receiver(report),
    }
