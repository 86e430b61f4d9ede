"""Measure a worker without Spark: CPU µs of a delivery from a record to the rows of its results.

Run: `python -m tests.benchmarks.worker [--json FILE]`. A task of the direct lane gets its records from memory and posts to the
load tests' receiver, with the load test's events and registry: neither Spark nor Kafka has a part in what it takes. Each
`--variant` is `in_flight` or `in_flight:collected_every`; the variants take turns round by round, because the machine's
speed drifts. The collector's time is read from its own callbacks.
"""

from __future__ import annotations

import argparse
import gc
import random
import resource
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import orjson
import pyspark.worker  # noqa: F401  # what Spark's Python worker has loaded

from delivery.model import Record
from delivery.registry_model import SigningKey
from delivery.secret import Secret
from delivery.stages.tasks import task_context
from delivery.webhooks.events import parsing
from delivery.webhooks.http import guard
from delivery.webhooks.lanes import gc_tuning, worker_plan
from delivery.webhooks.results import counters, topic_rows
from delivery.webhooks.routing import registries
from delivery.webhooks.scheduling import limits
from delivery.webhooks.state import pickling
from load_tests.harness import receiver, traffic
from tests.support import assignments, builders, sinks

CHUNK_RECORDS = 1_000
CUSTOMERS = traffic.Customers(endpoints=100)
TOPICS = topic_rows.Topics(attempts="attempts", dead_letters="dead", rejected="rejected", retries="retries")
OPEN = guard.Guard(allow_networks=("127.0.0.0/8",), allow_http=True, allow_ports=())


@dataclass(frozen=True)
class InMemory:
    """A broadcast variable as a task sees it, without Spark."""

    value: bytes


def source(url: str) -> registries.BroadcastSource:
    """Return the registry of the load test, with `url` in the place of its customers."""
    document = CUSTOMERS.registry(url)
    key = SigningKey(secret=Secret(receiver.KEY))
    endpoints = [builders.endpoint(row["id"], url=row["url"], signing_keys=(key,)) for row in document["endpoints"]]
    subscriptions = [
        builders.subscription(
            row["id"], endpoint_id=row["endpoint"], event_type=row["event_type"], scope=builders.scope(*row["tenants"])
        )
        for row in document["subscriptions"]
    ]
    snapshot = builders.snapshot(*endpoints, *subscriptions, tenants=tuple(row["id"] for row in document["tenants"]))
    return registries.BroadcastSource(base_id="base", broadcast=InMemory(pickling.packed(snapshot)), delta=None)


def chunks(count: int) -> list[list[Record]]:
    """Return the load test's events in chunks, as a task reads them."""
    rng, made, now_ms = random.Random(1), [], int(time.time() * 1000)
    for number in range(count):
        document = {"id": f"e{number}", "tenant_id": f"t{rng.randrange(CUSTOMERS.tenants)}", "note": "x" * 400}
        made.append(Record(f"events.{rng.choice(traffic.EVENT_TYPES)}", 0, number, now_ms, orjson.dumps(document)))
    return [made[first : first + CHUNK_RECORDS] for first in range(0, count, CHUNK_RECORDS)]


class Collector:
    """The CPU seconds of this process's garbage collector."""

    def __init__(self) -> None:
        self.spent_s = self._began = 0.0
        gc.callbacks.append(self)

    def __call__(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.thread_time()
        else:
            self.spent_s += time.thread_time() - self._began


@dataclass
class Variant:
    """A way to deliver, and the µs of a delivery in each round."""

    text: str

    def __post_init__(self) -> None:
        in_flight, _, collected_every = self.text.partition(":")
        self.bounds = limits.Limits(max_in_flight=int(in_flight))
        self.collected_every = int(collected_every or gc_tuning.COLLECTION_THRESHOLD)
        self.rounds: list[dict[str, float]] = []

    def figures(self) -> dict[str, float]:
        """Return the median of each figure, and the best round's CPU."""
        medians = {name: round(statistics.median(figures[name] for figures in self.rounds), 1) for name in self.rounds[0]}
        return medians | {"best_cpu_us": round(min(figures["cpu_us"] for figures in self.rounds), 1)}


def measure(
    variant: Variant, given: list[list[Record]], registry: registries.BroadcastSource, collector: Collector
) -> dict[str, float]:
    """Deliver all of `given` once; return µs for each delivery."""
    plan = worker_plan.Plan(topics=TOPICS, guard=OPEN, layout=parsing.Layout(), limits=variant.bounds)
    task_context.shared_worker(plan)  # it sets the collector's threshold, which the variant then replaces
    gc.set_threshold(variant.collected_every)
    counted: list[counters.Counters] = []
    tools = task_context.Tools(
        plan=plan, observe=lambda results: counted.append(counters.count(results, cpu_s=0.0)), sink=sinks.Nowhere()
    )
    before, collected_s, task_s = resource.getrusage(resource.RUSAGE_SELF), collector.spent_s, time.thread_time()
    list(assignments.task(tools, registry, given))
    after, task_s = resource.getrusage(resource.RUSAGE_SELF), time.thread_time() - task_s
    count = sum(map(len, given))
    if sum(counted, counters.Counters()).deliveries["delivered", counters.NONE] != count:
        raise RuntimeError(f"not all were delivered: {counted}")
    user_s, system_s = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    spent_s = {
        "cpu_us": user_s + system_s,
        "user_us": user_s,
        "system_us": system_s,
        "task_thread_us": task_s,
        "collector_us": collector.spent_s - collected_s,
    }
    return {name: seconds / count * 1e6 for name, seconds in spent_s.items()}


def main() -> None:
    """Measure and print a row per variant; also as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--events", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--variant", action="append", help="256, 64, 256:700, …")
    arguments = parser.parse_args()
    variants = [Variant(text) for text in arguments.variant or ["256"]]
    collector, given = Collector(), chunks(arguments.events)
    with receiver.Receiver() as customers:
        registry = source(customers.url)
        for number in range(arguments.rounds + 1):
            for variant in variants:
                figures = measure(variant, given, registry, collector)
                if number:  # the first makes connections
                    variant.rounds.append(figures)
        customers.report()
    for variant in variants:
        print(f"{variant.text}:", variant.figures())
    if arguments.json:
        arguments.json.write_bytes(orjson.dumps({variant.text: variant.figures() for variant in variants}))


if __name__ == "__main__":
    main()
