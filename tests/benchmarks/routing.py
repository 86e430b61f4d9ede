"""Measure routing alone: JSON records of 450 bytes to the subscriptions that they are due to; nothing is signed or sent.

Run: `python -m tests.benchmarks.routing --json FILE`. As many processes as asked for, each with a router of its own, as Spark's
workers are; 500 event types, 30,000 tenants, 20,000 subscriptions of 10,000 endpoints, every third with a filter.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import statistics
import time
from pathlib import Path
from typing import Any

import orjson

from delivery.config import settings
from delivery.model import Record
from delivery.webhooks.events import parsing
from delivery.webhooks.routing import matching
from delivery.webhooks.routing.registry_snapshot import Snapshot
from fanout.kafka import publishing
from tests.support import builders

EVENT_TYPES, TENANTS, ENDPOINTS, SUBSCRIPTIONS = 500, 30_000, 10_000, 20_000
EVENTS = 20_000
"""For each process and round; as many distinct ones."""


def snapshot(rng: random.Random) -> Snapshot:
    """Return the registry: 1 subscription in 50 is to a whole type, 1 in 50 to 100 tenants, 1 in 10 to sub-tenants."""
    rows = []
    for n in range(SUBSCRIPTIONS):
        tenants = [f"tenant-{number}" for number in rng.sample(range(1, TENANTS + 1), 100 if n % 50 == 1 else 5)]
        if n % 50 == 0:
            scope = builders.scope()
        elif n % 10 == 5:
            scope = builders.scope(sub_tenants=builders.sub_tenants(*((tenant, "100") for tenant in tenants)))
        else:
            scope = builders.scope(*tenants)
        pattern = {"data": {"amount": [{"numeric": [">=", rng.randint(1, 1000)]}]}} if n % 3 == 0 else None
        fields: dict[str, Any] = {"endpoint_id": f"ep{n % ENDPOINTS}", "scope": scope, "filter_pattern": pattern}
        rows.append(builders.subscription(f"s{n}", event_type=event_type(n % EVENT_TYPES), **fields))
    endpoints = (builders.endpoint(f"ep{n}") for n in range(ENDPOINTS))
    return builders.snapshot(*endpoints, *rows, tenants=tuple(f"tenant-{n}" for n in range(1, TENANTS + 1)))


def event_type(number: int) -> str:
    """Return a name as long as real ones."""
    return f"shop.order-{number}.created"


def records(count: int, rng: random.Random) -> list[Record]:
    """Return events of all types and tenants in turn."""
    made = []
    for offset in range(count):
        kind = event_type(rng.randrange(EVENT_TYPES))
        (message,) = publishing.generated(1, event_type=kind, tenants=TENANTS, source=settings.SourceSettings(), rng=rng)
        made.append(builders.record(topic=message.topic, offset=offset, value=message.value))
    return made


def work(of: matching.Router, some: list[Record]) -> int:
    """Parse and route; return how many deliveries are due."""
    layout = parsing.Layout()
    return sum(len(of.matches(parsing.parse(record, layout))) for record in some)


def parse(some: list[Record]) -> None:
    """Parse only: what remains of `work` is the match."""
    layout = parsing.Layout()
    for record in some:
        parsing.parse(record, layout)


def run(seed: int, rounds: int, start: Any) -> dict[str, float]:
    """Return the medians of this process, once all of them are ready."""
    of, some = matching.Router(snapshot(random.Random(1))), records(EVENTS, random.Random(seed))
    due = work(of, some)
    start.wait()
    walls, cpus, parses = [], [], []
    for _ in range(rounds):
        began = time.perf_counter(), time.process_time()
        work(of, some)
        walls.append(time.perf_counter() - began[0])
        cpus.append(time.process_time() - began[1])
    for _ in range(rounds):
        began_parsing = time.process_time()
        parse(some)
        parses.append(time.process_time() - began_parsing)
    cpu, parsing = statistics.median(cpus), statistics.median(parses)
    return {
        "events_per_s": round(EVENTS / statistics.median(walls)),
        "events_per_cpu_s": round(EVENTS / cpu),
        "parse_us_per_event": round(parsing / EVENTS * 1e6, 1),
        "match_us_per_event": round((cpu - parsing) / EVENTS * 1e6, 1),
        "due_per_event": round(due / EVENTS, 2),
    }


def main() -> None:
    """Measure and print a row per process, and their sum; also as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    with spawn.Manager() as manager, spawn.Pool(arguments.processes) as pool:
        start = manager.Barrier(arguments.processes)
        rows = pool.starmap(run, [(seed, arguments.rounds, start) for seed in range(arguments.processes)])
    results = {"processes": rows, "events_per_s": sum(row["events_per_s"] for row in rows)}
    for row in rows:
        print(row)
    print("together", results["events_per_s"], "events/s")
    if arguments.json:
        arguments.json.write_bytes(orjson.dumps(results, option=orjson.OPT_INDENT_2))


if __name__ == "__main__":
    main()
