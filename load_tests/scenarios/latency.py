"""Publish single events to a topic of the real-time lane, and measure the time until each request arrives.

Each rate lasts some minutes, in which several micro-batches of the lane end. The time of an event starts when the Kafka client
gets the event; the client sends it at once. Then the driver or a worker is killed several times under load, at random moments
as in `crash`: is anything lost, and how much is sent twice? A killed driver is started again; Spark replaces a killed worker.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import SecretStr

from load_tests.harness import figures, receiver, stage, traffic
from load_tests.scenarios import crash

TOPIC = 0
"""Number of the event type whose topic the real-time lane reads. The topic has two partitions."""
SETTINGS: Mapping[str, str] = {
    "source.realtime_pattern": rf"events\.{traffic.EVENT_TYPES[TOPIC].replace('.', '[.]')}",
    "realtime.batch_s": "60",
    "spark.master": "local[4,4]",
    "logs.format": "json",
}
BOUNDS_MS: Mapping[int, Mapping[str, float]] = {
    50: {"p50": 4, "p99": 15},
    200: {"p50": 4, "p99": 15},
    1000: {"p99": 50},
}
"""Upper bounds of the latency in ms, by the rate in events a second."""
ROLES = ("driver", "worker")
"""Processes of the job that are killed."""
NEAR_S = 1.0
"""Seconds before and after the commit of a micro-batch. An event published in this time met the end of a micro-batch."""
LAST_S = 120
"""Seconds within which all published events must arrive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyScenario:
    """Parameters of the scenario."""

    rates: Sequence[int] = (50, 200, 1000)
    """Events a second, one rate after another."""
    seconds: int = 180
    """Measured seconds of each rate."""
    settle_s: int = 20
    """Seconds of each rate before its measurement."""
    endpoints: int = 10
    kills: int = 3
    """Number of kills after the rates."""
    kills_per_s: int = 200
    """Events a second while the job is killed."""
    lanes: str = "realtime"
    seed: int = 1


def run(scenario: LatencyScenario, terms: stage.Terms) -> dict[str, Any]:
    """Run the scenario, and return its figures."""
    chosen = {**SETTINGS, **terms.overrides}
    spans: dict[int, tuple[range, list[float]]] = {}
    registered = traffic.Customers(endpoints=scenario.endpoints)
    with terms.stage(registered, seed=scenario.seed) as (servers, customers, _):
        at_once = {**servers.config.kafka.librdkafka_options, "linger.ms": SecretStr("0")}
        kafka = servers.config.kafka.model_copy(update={"librdkafka_options": at_once})
        config = servers.config.model_copy(update={"kafka": kafka})
        sent = traffic.Traffic(registered, config, scenario.seed, traffic.TOPICS)
        with servers.job(scenario.lanes, chosen) as job:
            job.wait_until_ready()
            for rate in scenario.rates:
                terms.say(f"{rate} events/s …")
                sent.publish_evenly(rate, scenario.settle_s, types=[TOPIC])
                with terms.profiled(f"{rate}-per-s", job, customers):
                    spans[rate] = sent.publish_evenly(rate, scenario.seconds, types=[TOPIC])
            job.wait_until(lambda: customers.count >= len(sent.due), within_s=LAST_S, goal="the last delivery")
            commits = [micro_batch.ended_at_s for micro_batch in job.micro_batches("realtime")]
        roles = _kill(scenario, stage.Stage(servers, customers, sent), chosen, terms)
        report = customers.report()
        reconciled = figures.reconciled(servers.account(), report)
    rates = {str(rate): _cuts(report, numbers) for rate, (numbers, _) in spans.items()}
    outcome = figures.delivered(report, sent.due)
    return {
        "scenario": "latency",
        "rates": rates,
        "boundaries": {str(rate): _boundaries(report, span, commits) for rate, span in spans.items()},
        "beyond": list(_beyond(rates)),
        "killed": roles,
        "deliveries": len(report.numbers),
        **outcome,
        "reconciled": reconciled,
        "settings": chosen,
        "seed": scenario.seed,
    }


def _kill(scenario: LatencyScenario, on: stage.Stage, chosen: Mapping[str, str], terms: stage.Terms) -> list[str]:
    """Run the job under load, and kill its driver or a worker `scenario.kills` times, each chosen at random.

    A job that ends is started again; no other job may run. Meanwhile publish `scenario.kills_per_s` events a second. Then wait
    until all events arrive. Return the killed roles, in order.
    """
    rng = random.Random(scenario.seed)
    roles = [rng.choice(ROLES) for _ in range(scenario.kills)]
    servers, customers, sent = on
    left, enough = list(roles), threading.Event()

    def publish() -> None:
        while not enough.is_set():
            sent.publish_evenly(scenario.kills_per_s, 1, types=[TOPIC])

    publisher = threading.Thread(target=publish, name="publisher")
    publisher.start()
    try:
        while left:
            with servers.job(scenario.lanes, chosen) as job:
                while left and not job.has_ended():
                    crash.kill_at_work(job, left.pop(0), customers, rng, terms.say)
        enough.set()
        publisher.join()
        with servers.job(scenario.lanes, chosen) as job:
            job.wait_until(lambda: customers.count >= len(sent.due), within_s=LAST_S, goal="the last delivery")
    finally:
        enough.set()
        publisher.join()
    return roles


def _cuts(report: receiver.ReceiverReport, numbers: range) -> dict[str, float]:
    ages = (age for number, age in zip(report.numbers, report.ages_ms, strict=True) if number in numbers)
    return {name: round(value, 1) for name, value in figures.cuts(ages).items()}


def _boundaries(
    report: receiver.ReceiverReport, span: tuple[range, Sequence[float]], commits: Iterable[float]
) -> dict[str, Any]:
    """Return latencies in ms: `longest_ms`, the longest near each commit, and `without`, percentiles of all other events.

    An event is near a commit if it was published at most NEAR_S seconds before or after the commit of a micro-batch.
    `longest_ms` leaves out commits without such an event.
    """
    numbers, sent_at = span
    ages = {number: age for number, age in zip(report.numbers, report.ages_ms, strict=True) if number in numbers}
    longest, near = [], set[int]()
    for ended_at_s in commits:
        met = {
            number
            for number, at in zip(numbers, sent_at, strict=True)
            if number in ages and ended_at_s - NEAR_S <= at <= ended_at_s + NEAR_S
        }
        if met:
            longest.append(round(max(ages[number] for number in met)))
            near |= met
    others = {name: round(value, 1) for name, value in figures.cuts(ages[number] for number in ages.keys() - near).items()}
    return {"longest_ms": longest, "without": others}


def _beyond(rates: Mapping[str, Mapping[str, float]]) -> Iterable[str]:
    """Yield a text for each figure above its bound in BOUNDS_MS."""
    for rate, found in rates.items():
        for name, most in BOUNDS_MS.get(int(rate), {}).items():
            if found[name] > most:
                yield f"{rate}/s: {name} {found[name]} ms, at most {most:.0f}"
