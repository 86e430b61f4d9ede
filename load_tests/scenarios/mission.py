"""Measure the platform at the size of its mission: hundreds of topics, thousands of endpoints, three lanes, steady paces.

1. The registry has 30,000 tenants and 10,000 endpoints by default. Three of ten endpoints take batches. A third of the
   subscriptions names departments (sub-tenants). The other subscriptions name tenants, except one subscription, which takes a
   whole event type.
2. The job starts and warms up. Then nothing is published for a while. The usage of the job in this time is the cost of the
   topics.
3. Events come at several paces in turn. For each pace the receiver measures the age of each event at its arrival.

The events of tenants and event types are distributed by Zipf's law. Each event is due to one endpoint.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import typer

from load_tests.harness import event_types, figures, platform, receiver, stage, traffic, usage

SETTINGS = {
    "spark.master": "local[6,4]",
    "batch.shards": "2",
    "retry.shards": "2",
    "delivery.max_connections": "3000",
    "logs.format": "json",
}
"""Settings of the job: two task slots for each lane, so that no lane waits for another, and a log that lists micro-batches.
`delivery.max_connections` times six workers leaves the receiver, one process for all endpoints, below 20,000 open files."""
LANES = "direct,batch,retry"
WHOLE_TYPE = "audit.everything"
"""Event type of which endpoint 0 gets all events, of every tenant."""
DEPARTMENTS = 3
"""Departments (sub-tenants) of each tenant."""
BATCH = {"mode": "batch", "batch": {"max_events": 100, "max_wait_s": 5}}
BATCH_OF_TEN = 3
"""Endpoints of ten that take batches."""
IDLE_S = 120
"""Seconds within which all published events must arrive."""


@dataclass(frozen=True, kw_only=True)
class MissionPopulation:
    """The population of the scenario `mission`. Each event is due to one endpoint, by its event type and tenant."""

    topics: int
    tenants: int
    endpoints: int

    def __post_init__(self) -> None:
        if self.tenants < self.endpoints:
            raise typer.BadParameter(
                f"each endpoint needs a tenant: --tenants must be at least {self.endpoints}, as --endpoints is. Nothing was "
                "started"
            )

    @cached_property
    def event_types(self) -> Sequence[str]:
        """Return the names of all event types. The first is rare, and endpoint 0 subscribes to all its events."""
        return [WHOLE_TYPE, *event_types.named(self.topics - 1)]

    def endpoint_of(self, type_number: int, tenant: int) -> int:
        """Return the endpoint to which events of this event type and tenant are due."""
        return tenant % self.endpoints if type_number else 0

    def draw(self, rng: random.Random, types: Sequence[int], hot: float) -> traffic.Drawn:
        """Draw an event by Zipf's law. `types` and `hot` are ignored."""
        del types, hot
        type_number = len(self.event_types) - 1 - _drawn(rng, self._type_weights)
        tenant = _drawn(rng, self._tenant_weights)
        return traffic.Drawn(type_number, tenant, self.endpoint_of(type_number, tenant), rng.randint(1, DEPARTMENTS))

    def is_batch(self, endpoint: int) -> bool:
        """Return True if an endpoint takes batches."""
        return endpoint % 10 >= 10 - BATCH_OF_TEN

    def registry(self, url: str) -> dict[str, Any]:
        """Return the manifest, with the URL of every endpoint below `url`."""
        departments = [str(number) for number in range(1, DEPARTMENTS + 1)]
        return {
            "tenants": [{"id": f"t{number}", "sub_tenants": departments} for number in range(self.tenants)],
            "customers": [{"id": f"c{number}"} for number in range(self.endpoints)],
            "endpoints": [
                {
                    "id": f"ep{number}",
                    "customer": f"c{number}",
                    "url": f"{url}/ep{number}",
                    "signing_secrets": [receiver.SECRET],
                    **(BATCH if self.is_batch(number) else {}),
                }
                for number in range(self.endpoints)
            ],
            "subscriptions": [
                {"id": "whole", "endpoint": "ep0", "event_type": WHOLE_TYPE, "everything": True},
                *(
                    {"id": f"s{n}", "endpoint": f"ep{n}", "event_type": f"{event_types.PREFIX}*", **self._scope(n)}
                    for n in range(self.endpoints)
                ),
            ],
        }

    def _scope(self, endpoint: int) -> dict[str, Any]:
        tenants = [f"t{number}" for number in range(endpoint, self.tenants, self.endpoints)]
        if endpoint % 3:
            return {"tenants": tenants}
        return {"sub_tenants": {tenant: [str(number) for number in range(1, DEPARTMENTS + 1)] for tenant in tenants}}

    @cached_property
    def _type_weights(self) -> Sequence[float]:
        return _zipf(self.topics)

    @cached_property
    def _tenant_weights(self) -> Sequence[float]:
        return _zipf(self.tenants)


def _zipf(count: int) -> list[float]:
    """Return the cumulative weights of 1, 1/2, 1/3 and so on."""
    return list(itertools.accumulate(1 / rank for rank in range(1, count + 1)))


def _drawn(rng: random.Random, cumulative: Sequence[float]) -> int:
    """Return a random index, by these cumulative weights."""
    return bisect.bisect_left(cumulative, rng.random() * cumulative[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class MissionScenario:
    """Parameters of the scenario."""

    topics: int = 500
    tenants: int = 30_000
    endpoints: int = 10_000
    per_s: Sequence[int] = field(default=(200, 1_000))
    """Paces in turn, in events a second."""
    warm_up: int = 20_000
    """Events of the warm-up."""
    settle_s: int = 20
    """Seconds of each pace before its measurement."""
    seconds: int = 40
    """Measured seconds of each pace."""
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pace:
    """Measurement of one pace."""

    per_s: int
    numbers: range
    """Numbers of the measured events."""
    took_s: float
    """Seconds of the measurement."""
    used: usage.Usage
    """CPU of the job in `took_s`."""
    micro_batches_ms: Mapping[str, Sequence[int]]
    """Durations in ms of the micro-batches that ended during the measurement, by lane."""

    def document(self, report: receiver.ReceiverReport, population: MissionPopulation) -> dict[str, Any]:
        """Return the measurement as JSON values. Cores are CPU seconds a second."""
        used, is_batch = self.used, population.is_batch
        return {
            "per_s": self.per_s,
            "cores": {
                "jvm": round(used.jvm_s / self.took_s, 2),
                "driver": round(used.driver_s / self.took_s, 2),
                "workers": round(used.workers_s / self.took_s, 2),
            },
            "direct_latency_ms": figures.latency_ms(report, self.numbers, lambda endpoint: not is_batch(endpoint)),
            "batch_age_ms": figures.latency_ms(report, self.numbers, is_batch),
            "micro_batches_ms": {
                lane: {"count": len(took), **figures.percentiles(took)} for lane, took in self.micro_batches_ms.items()
            },
        }


def _paced(
    sent: traffic.Traffic,
    job: platform.Job,
    per_s: int,
    scenario: MissionScenario,
    measured: contextlib.AbstractContextManager[None],
) -> _Pace:
    """Publish at a pace, for `settle_s` without and then for `seconds` with measurement; return the measurement.

    `measured` is a context that is open during the measurement.
    """
    sent.publish_steadily(per_s, scenario.settle_s)
    with measured:
        before, began_s = job.meter.read(), time.time()
        numbers = sent.publish_steadily(per_s, scenario.seconds)
        used, ended_s = job.meter.read().since(before), time.time()
    micro_batches_ms = {
        lane: [batch.took_ms for batch in job.micro_batches(lane) if began_s <= batch.ended_at_s <= ended_s]
        for lane in LANES.split(",")
    }
    return _Pace(per_s=per_s, numbers=numbers, took_s=ended_s - began_s, used=used, micro_batches_ms=micro_batches_ms)


def run(scenario: MissionScenario, terms: stage.Terms) -> dict[str, Any]:
    """Run the scenario, and return its figures."""
    chosen = {**SETTINGS, **terms.overrides}
    population = MissionPopulation(topics=scenario.topics, tenants=scenario.tenants, endpoints=scenario.endpoints)
    registering_s = time.monotonic()
    with terms.stage(population, seed=scenario.seed, topics=traffic.Topics(partitions=1)) as (servers, customers, sent):
        terms.say(f"registered, with {scenario.topics} topics, after {time.monotonic() - registering_s:.0f} s")
        with servers.job(LANES, chosen) as job:
            ready_s = job.wait_until_ready()
            terms.say(f"ready after {ready_s:.1f} s")
            sent.publish(scenario.warm_up)
            job.wait_until(lambda: customers.count >= len(sent.due), within_s=IDLE_S, goal="the warm-up")
            paces = []
            for per_s in (0, *scenario.per_s):
                measured = terms.profiled(f"{per_s}-per-s", job, customers)
                paces.append(_paced(sent, job, per_s, scenario, measured))
                job.wait_until(
                    lambda: customers.count >= len(sent.due), within_s=IDLE_S, goal=f"all events at {per_s} a second"
                )
                terms.say(f"all events at {per_s} a second have arrived")
            job.meter.read()
        report = customers.report()
        reconciled = figures.reconciled(servers.account(), report)
    return {
        "scenario": "mission",
        "shape": {"topics": scenario.topics, "tenants": scenario.tenants, "endpoints": scenario.endpoints},
        "ready_s": round(ready_s, 1),
        "paces": [pace.document(report, population) for pace in paces],
        **figures.delivered(report, sent.due),
        "reconciled": reconciled,
        "peak_rss_mb": {role: round(peak) for role, peak in job.meter.peak_mb().items()},
        "settings": chosen,
    }
