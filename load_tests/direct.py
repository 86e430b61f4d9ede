"""The direct lane at full speed, and its latency at a steady pace.

1. The topics are filled, then the job is started: so the platform sets the pace, not the publisher.
2. The first deliveries warm it up (the JVM compiles, connections are made); they are counted apart and shown.
3. CPU seconds and wall time count from the end of the warm-up to the last delivery.
4. Then events come at a steady pace, and the receiver measures how old each one is when it arrives.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from delivery import settings
from delivery.stages import topics
from fanout import publishing
from fanout.demo import reconcile
from load_tests import platform, receiver, usage

TENANTS = 100
EVENT_TYPES = [f"load.{number}" for number in range(10)]
PARTITIONS = 2
EVENT_BYTES = 450
FIRST_DELIVERY_TIMEOUT_S = 120
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
        stage.register(registry(scenario, customers.url))
        filled = list(events(scenario, scenario.warm_up + scenario.events, random.Random(scenario.seed), stage.config.source))
        topics.ensure(stage.config.kafka, [stage.config.source.topic_prefix + name for name in EVENT_TYPES], PARTITIONS)
        _publish(stage.config, filled)
        say(f"filled {len(EVENT_TYPES)} topics with {len(filled):,} events of {EVENT_BYTES} bytes")
        began = time.monotonic()
        with stage.job(chosen) as job:
            meter = usage.Meter(job.pid)

            def reached(count: int) -> Callable[[], bool]:
                return lambda: customers.count >= count

            stage.wait_until(reached(1), job, within_s=FIRST_DELIVERY_TIMEOUT_S, what="the first delivery")
            first_s = time.monotonic() - began
            say(f"first delivery after {first_s:.1f} s")
            stage.wait_until(reached(scenario.warm_up), job, within_s=120, what="the warm-up")
            warm_s, warm, warm_count = time.monotonic() - began, meter.read(), customers.count
            say(f"warm after {warm_s:.1f} s: JVM {warm.jvm_s:.1f} s, Python {warm.python_s:.1f} s of CPU")
            stage.wait_until(reached(len(filled)), job, within_s=180, what="the last delivery")
            took_s = time.monotonic() - began - warm_s
            spent, measured = meter.read().since(warm), customers.count - warm_count
            say(f"{measured:,} deliveries in {took_s:.1f} s")
            steady = list(_steady(scenario, stage.config, random.Random(scenario.seed + 1)))
            stage.wait_until(reached(len(filled) + len(steady)), job, within_s=IDLE_S, what="the steady deliveries")
            meter.read()
        report = customers.report()
    expected = {expected_id(scenario, event) for event in (*filled, *steady)}
    per_million = 1e6 / measured
    return {
        "scenario": "direct",
        "deliveries": measured,
        "deliveries_per_s": round(measured / took_s),
        "cpu_s_per_million": {
            "jvm": round(spent.jvm_s * per_million, 1),
            "python": round(spent.python_s * per_million, 1),
            "total": round((spent.jvm_s + spent.python_s) * per_million, 1),
        },
        "latency_ms": {"at_per_s": scenario.steady_per_s, **_percentiles(report.latencies_ms[len(filled) :])},
        "lost": len(expected - report.webhook_ids.keys()),
        "duplicates": sum(times - 1 for times in report.webhook_ids.values()),
        "unexpected": len(report.webhook_ids.keys() - expected),
        "unverified": report.unverified,
        "peak_rss_mb": {role: round(peak) for role, peak in meter.peak_mb().items()},
        "first_delivery_s": round(first_s, 1),
        "driver_python_cpu_s_per_million": round(spent.driver_s * per_million, 1),
        "warm_up": {
            "deliveries": warm_count,
            "wall_s": round(warm_s, 1),
            "cpu_s": {"jvm": round(warm.jvm_s, 1), "python": round(warm.python_s, 1)},
        },
        "settings": chosen,
        "receiver": {
            "cpu_s_per_million": round(report.cpu_s * 1e6 / sum(report.webhook_ids.values()), 1),
            "connections": report.connections,
        },
    }


def registry(scenario: Scenario, url: str) -> dict[str, Any]:
    """Return the manifest: each event is due to one endpoint, by its type and its tenant."""
    by_type = scenario.endpoints // len(EVENT_TYPES)
    return {
        "tenants": [{"id": f"t{number}"} for number in range(TENANTS)],
        "customers": [{"id": "load"}],
        "endpoints": [
            {"id": f"ep{number}", "customer": "load", "url": f"{url}/ep{number}", "signing_secrets": [receiver.SECRET]}
            for number in range(scenario.endpoints)
        ],
        "subscriptions": [
            {
                "id": f"s{number}",
                "endpoint": f"ep{number}",
                "event_type": EVENT_TYPES[number // by_type],
                "tenants": [f"t{tenant}" for tenant in range(TENANTS) if tenant % by_type == number % by_type],
            }
            for number in range(scenario.endpoints)
        ],
    }


@dataclass(frozen=True, slots=True)
class Event:
    """What was published, as far as it is needed to know what is due."""

    event_id: str
    type_number: int
    tenant: int
    message: publishing.Message


def events(scenario: Scenario, count: int, rng: random.Random, source: settings.Source) -> Iterator[Event]:
    """Yield `count` events of EVENT_BYTES bytes."""
    for number in range(count):
        type_number, tenant = rng.randrange(len(EVENT_TYPES)), rng.randrange(TENANTS)
        document = {
            "id": f"{scenario.seed:04d}-{rng.getrandbits(64):016x}-{number:08d}",
            "tenant_id": f"t{tenant}",
            "sent_at_ms": int(time.time() * 1000),
            "amount": rng.randint(1, 100_000),
            "note": "",
        }
        document["note"] = "x" * (EVENT_BYTES - len(orjson.dumps(document)))
        topic = source.topic_prefix + EVENT_TYPES[type_number]
        yield Event(str(document["id"]), type_number, tenant, publishing.Message(topic=topic, value=orjson.dumps(document)))


def expected_id(scenario: Scenario, event: Event) -> str:
    """Return the `webhook-id` under which the event is due, by the documented formula and a naive look at the registry."""
    by_type = scenario.endpoints // len(EVENT_TYPES)
    subscription = f"s{event.type_number * by_type + event.tenant % by_type}"
    return reconcile.webhook_id(event.message.topic, event.event_id, subscription)


def _publish(config: settings.Settings, made: list[Event]) -> None:
    publisher = publishing.Publisher(config.kafka)
    for event in made:
        publisher.publish(event.message)
    publisher.flush()


def _steady(scenario: Scenario, config: settings.Settings, rng: random.Random) -> Iterator[Event]:
    """Publish at a steady pace, ten times a second."""
    publisher = publishing.Publisher(config.kafka)
    began = time.monotonic()
    for tick in range(scenario.steady_s * 10):
        for event in events(scenario, scenario.steady_per_s // 10, rng, config.source):
            publisher.publish(event.message)
            yield event
        time.sleep(max(0.0, began + (tick + 1) / 10 - time.monotonic()))
    publisher.flush()


def _percentiles(latencies_ms: Any) -> dict[str, float]:
    cuts = statistics.quantiles(latencies_ms, n=100)
    return {"p50": round(cuts[49]), "p90": round(cuts[89]), "p99": round(cuts[98]), "max": round(max(latencies_ms))}
