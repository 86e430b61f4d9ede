"""Measure what a match costs with 10 to 10,000 filters on one event type, when none of them matches and when some do.

Run: `python -m tests.benchmarks.filter_index --json FILE`. CPU time of `Router.matches` for one event, the best of several
rounds, because other processes take the caches away; and of the first match, which makes the index.
"""

from __future__ import annotations

import argparse
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from delivery.model import Event
from delivery.webhooks.routing import matching
from delivery.webhooks.routing.registry_snapshot import Snapshot
from tests.support import builders

COUNTS = (10, 100, 1_000, 10_000)
CONTENT = {"status": "paid", "customer": "nobody", "sku": "Z-1-z", "amount": 9.5, "lines": [{"sku": "Y-1"}, {"sku": "Y-2"}]}

CANNOT_MATCH: dict[str, Callable[[int], dict[str, Any]]] = {
    "equality": lambda n: {"customer": [f"c{n}"]},
    "equality, in an array": lambda n: {"lines": {"sku": [f"Z-{n}"]}},
    "equality, and one that all share": lambda n: {"status": ["paid"], "customer": [f"c{n}"]},
    "`numeric`, one bound": lambda n: {"amount": [{"numeric": [">=", 10 + n]}]},
    "`numeric`, two bounds": lambda n: {"amount": [{"numeric": [">=", 2 * n, "<", 2 * n + 1]}]},
    "`numeric`, and equality that all share": lambda n: {"status": ["paid"], "amount": [{"numeric": [">=", 10 + n]}]},
    "`prefix`": lambda n: {"sku": [{"prefix": f"A-{n}-"}]},
    "`suffix`, ignoring case": lambda n: {"sku": [{"suffix": {"equals-ignore-case": f"-{n}-A"}}]},
    "`wildcard`": lambda n: {"sku": [{"wildcard": f"A-{n}-*-z"}]},
    "`$or`": lambda n: {"$or": [{"customer": [f"c{n}"]}, {"sku": [{"prefix": f"A-{n}-"}]}]},
    "each another missing field": lambda n: {f"field{n}": [{"exists": True}]},
    "all the same": lambda _: {"amount": [{"numeric": [">=", 10]}]},
}
STILL_LINEAR: dict[str, Callable[[int], dict[str, Any]]] = {
    "`wildcard` with open ends": lambda n: {"sku": [{"wildcard": f"*A-{n}*"}]},
    "`anything-but`": lambda n: {"customer": [{"anything-but": ["nobody", f"c{n}"]}]},
}
SOME_MATCH: dict[str, Callable[[int], dict[str, Any]]] = {
    "equality, 5 match": lambda n: {"customer": ["nobody" if n < 5 else f"c{n}"], "amount": [{"numeric": [">", -n]}]},
    "all match": lambda n: {"amount": [{"numeric": [">", -n]}]},
}


def snapshot(of: Callable[[int], dict[str, Any]], count: int) -> Snapshot:
    """Return `count` subscriptions to everything of one type, each with a filter."""
    rows = (builders.subscription(f"s{n}", filter_pattern={"data": of(n)}) for n in range(count))
    return builders.snapshot(builders.endpoint(), *rows)


def registry() -> Snapshot:
    """Return 100,000 subscriptions of 500 types, each with a filter of its own: 1 in 10 to everything, others to 5 tenants."""
    rows = []
    for n in range(100_000):
        scope = builders.scope() if n % 10 == 0 else builders.scope(*(f"t{n * 7919 % 30_011 + more}" for more in range(5)))
        pattern = {"data": {"status": ["paid"], "customer": [f"c{n}"]}}
        rows.append(builders.subscription(f"s{n}", event_type=f"type-{n // 200}", scope=scope, filter_pattern=pattern))
    return builders.snapshot(builders.endpoint(), *rows)


def measure(rows: Snapshot, event: Event, *, rounds: int) -> dict[str, float]:
    """Return CPU milliseconds of the first match, CPU microseconds of a later one, and how many subscriptions it finds."""
    router = matching.Router(rows)
    began = time.process_time()
    found = len(router.matches(event))
    first = time.process_time() - began
    events = max(1, int(0.01 / _seconds(router, event, 1)))
    later = min(_seconds(router, event, events) / events for _ in range(rounds))
    return {"first_ms": round(first * 1e3, 1), "us_per_event": round(later * 1e6, 1), "matches": found}


def _seconds(router: matching.Router, event: Event, events: int) -> float:
    began = time.process_time()
    for _ in range(events):
        router.matches(event)
    return time.process_time() - began


def kilobytes(rows: Snapshot, *events: Event) -> int:
    """Return what a router keeps for the types of these events beside the snapshot, after one match of each."""
    router = matching.Router(rows)
    tracemalloc.start()
    for event in events:
        router.matches(event)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return size // 1024


def measure_registry() -> dict[str, int]:
    """Return CPU milliseconds of the first match of every type, and what the router keeps after them."""
    events = [builders.event(event_type=f"type-{number}", content=CONTENT) for number in range(500)]
    router, began = matching.Router(registry()), time.process_time()
    for event in events:
        router.matches(event)
    first = time.process_time() - began
    return {"first_ms": round(first * 1e3), "kilobytes": kilobytes(registry(), *events)}


def main() -> None:
    """Measure and print a row per kind of filter; also as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    event = builders.event(content=CONTENT)
    results: dict[str, Any] = {}
    print("| filters |", *(f" {count:,} |" for count in COUNTS), f" first match with {COUNTS[-1]:,}, ms | kB |", sep="")
    print("|---|", "---|" * (len(COUNTS) + 2), sep="")
    for name, of in {**CANNOT_MATCH, **STILL_LINEAR, **SOME_MATCH}.items():
        measured = {count: measure(snapshot(of, count), event, rounds=arguments.rounds) for count in COUNTS}
        size = kilobytes(snapshot(of, COUNTS[-1]), event)
        results[name] = {"kilobytes": size} | {str(count): row for count, row in measured.items()}
        cells = [*(f"{row['us_per_event']:,}" for row in measured.values()), measured[COUNTS[-1]]["first_ms"], f"{size:,}"]
        print(f"| {name} |", *(f" {cell} |" for cell in cells), sep="")
    whole = results["100,000 subscriptions of 500 types"] = measure_registry()
    print(f"\n100,000 subscriptions of 500 types: {whole}")
    if arguments.json:
        arguments.json.write_bytes(orjson.dumps(results, option=orjson.OPT_INDENT_2))


if __name__ == "__main__":
    main()
