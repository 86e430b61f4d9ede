"""Publish events one by one to a topic of the real-time lane: how long does each take until its request has arrived?

Each rate is kept for some minutes, in which batches end. An event's time runs from when it was handed to the Kafka client,
which sends it at once. Then the job is killed again and again under load, as in `crash`: what is lost, how much comes twice?
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
"""The event type of which the topic is the lane's. It has two partitions."""
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
"""The most that a rate's figures may be."""
ROLES = ("driver", "worker")
NEAR_S = 1.0
"""Seconds before the commit of a batch in which what was published has met the boundary."""
LAST_S = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """How much of what."""

    rates: Sequence[int] = (50, 200, 1000)
    seconds: int = 180
    settle_s: int = 20
    endpoints: int = 10
    kills: int = 3
    kills_per_s: int = 200
    lanes: str = "realtime"
    seed: int = 1


def run(scenario: Scenario, terms: stage.Terms) -> dict[str, Any]:
    """Run it and return the figures."""
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
                spans[rate] = sent.publish_evenly(rate, scenario.seconds, types=[TOPIC])
            job.wait_until(lambda: customers.count >= len(sent.due), within_s=LAST_S, what="the last delivery")
            commits = [one.ended_at_s for one in job.micro_batches("realtime")]
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
        "duplicates_share": round(outcome["duplicates"] / len(report.numbers), 5),
        "reconciled": reconciled,
        "settings": chosen,
        "seed": scenario.seed,
    }


def _kill(scenario: Scenario, on: stage.Stage, chosen: Mapping[str, str], terms: stage.Terms) -> list[str]:
    """Kill the job while it delivers, and let the next start deliver the rest; return what was killed."""
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
            job.wait_until(lambda: customers.count >= len(sent.due), within_s=LAST_S, what="the last delivery")
    finally:
        enough.set()
        publisher.join()
    return roles


def _cuts(report: receiver.Report, numbers: range) -> dict[str, float]:
    ages = (age for number, age in zip(report.numbers, report.ages_ms, strict=True) if number in numbers)
    return {name: round(value, 1) for name, value in figures.cuts(ages).items()}


def _boundaries(report: receiver.Report, span: tuple[range, Sequence[float]], commits: Iterable[float]) -> dict[str, Any]:
    """Return how long the longest event took that met each end of a batch, and what the others took."""
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
    for rate, found in rates.items():
        for name, most in BOUNDS_MS.get(int(rate), {}).items():
            if found[name] > most:
                yield f"{rate}/s: {name} {found[name]} ms, at most {most:.0f}"
