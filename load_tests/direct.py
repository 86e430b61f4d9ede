"""The direct lane at full speed, and its latency at a steady pace.

1. The topics are filled, then the job is started: so the platform sets the pace, not the publisher.
2. The first deliveries warm it up (the JVM compiles, connections are made); they are counted apart and shown.
3. CPU seconds and wall time count from the end of the warm-up to the last delivery.
4. Then events come at a steady pace, and the receiver measures how old each one is when it arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from load_tests import figures, platform, receiver, traffic

SETTINGS = {"spark.master": "local[1,4]", "spark.parallelism": "1", "source.max_events_per_batch": "50000"}
"""Of the job, for two cores that broker and receiver share with it: one worker, so that the JVM has the other core (two workers
take more CPU for each delivery), and micro-batches as large as a backlog is worth."""
IDLE_S = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """How much of what."""

    events: int = 100_000
    """Events that are measured."""
    warm_up: int = 100_000
    """Events before those."""
    endpoints: int = 100
    steady_per_s: int = 1_000
    steady_s: int = 15
    seed: int = 1


def run(
    scenario: Scenario, say: Callable[[str], None], *, folder: Path | None = None, overrides: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run it, with settings of the job (`area.field`) replaced by `overrides`, and return the figures."""
    chosen = SETTINGS | dict(overrides or {})
    say("starting Kafka, Postgres and the receiver …")
    with platform.started(folder) as stage, receiver.Receiver() as customers:
        registered = traffic.Customers(endpoints=scenario.endpoints)
        stage.register(registered.registry(customers.url))
        sent = traffic.Traffic(registered, stage.config, scenario.seed)
        filled = sent.publish(scenario.warm_up + scenario.events)
        say(f"filled {len(traffic.EVENT_TYPES)} topics with {len(filled):,} events of {traffic.EVENT_BYTES} bytes")
        with stage.job("direct", chosen) as job:
            throughput = job.work_off(customers, scenario.warm_up, len(filled), say)
            sent.publish_steadily(scenario.steady_per_s, scenario.steady_s)
            job.wait_until(lambda: customers.count >= len(sent.due), within_s=IDLE_S, what="the steady deliveries")
            job.meter.read()
        report = customers.report()
    steady = [age for number, age in zip(report.numbers, report.ages_ms, strict=True) if number >= len(filled)]
    return {
        "scenario": "direct",
        **throughput.document(),
        "latency_ms": {"at_per_s": scenario.steady_per_s, **figures.percentiles(steady)},
        **figures.delivered(report, sent.due),
        "peak_rss_mb": {role: round(peak) for role, peak in job.meter.peak_mb().items()},
        "settings": chosen,
        "receiver": figures.of_receiver(report),
    }
