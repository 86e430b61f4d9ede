"""Measure memory and CPU of one worker process for the registry, broadcast or looked up, in a process of its own.

Started by tests.benchmarks.snapshot_sources with a task as pickle on standard input; answers in JSON. It imports what a worker
of Spark imports and nothing else, so that what it measures is a worker's.
"""

from __future__ import annotations

import gc
import os
import pickle
import random
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
import pyspark.worker  # noqa: F401  # what Spark's Python worker is
import uvloop

from delivery.model import Event, Record
from delivery.registry_model import Revision, SubscriptionStatus
from delivery.stages.tasks import deliver_events, observer, task_context  # noqa: F401  # what the partition function is made of, with all that it imports
from delivery.webhooks.lanes import worker_plan
from delivery.webhooks.results import topic_rows
from delivery.webhooks.routing import registries
from delivery.webhooks.routing.registry_snapshot import Snapshot, SnapshotChanges

WARM_EVENTS = 20_000
BATCH_EVENTS = 1_250
"""Half a second at 2,500 events/s: 5,000 events/s on two workers, a micro-batch every half second."""
BATCH_S = 0.5
BATCHES = 12
RECORD = Record(topic="events", partition=0, offset=0, appended_at_ms=0, value=None)


@dataclass(frozen=True, kw_only=True)
class Broadcast:
    """Measure a worker that has the whole registry, from the file that Spark would have sent."""

    file: Path
    events: list[Any]
    types: list[str]
    churns: tuple[int, ...]
    rebase_rows: int

    def run(self) -> dict[str, Any]:
        """Return the figures."""
        start = memory_mb()[0]
        began, cpu = time.perf_counter(), time.process_time()
        registry = self._fresh()
        route(registry, self.events[:1])
        found = {
            "baseline_mb": start,
            "first_event_s": time.perf_counter() - began,
            "first_event_cpu_s": time.process_time() - cpu,
            "unpickled_mb": memory_mb()[0] - start,
        }
        cold = cpu_us(lambda: route(registry, self.events[:WARM_EVENTS]))
        route(registry, [(event_type, *self.events[0][1:]) for event_type in self.types])  # all indexes are there
        routed, peak = memory_mb()
        due = route(registry, self.events[:WARM_EVENTS]) / WARM_EVENTS
        warm = min(cpu_us(lambda: route(registry, self.events[:WARM_EVENTS])) for _ in range(3))
        found |= {"registry_mb": routed - start, "peak_mb": peak, "cold_us": cold, "warm_us": warm, "due_per_event": due}
        found["delta_us"] = {churn: self._churned(churn) for churn in self.churns}
        return found

    def _fresh(self) -> registries.WholeRegistry:
        with self.file.open("rb") as file:
            gc.disable()  # as Spark does while it unpickles a broadcast
            base: Snapshot = pickle.load(file)
            gc.enable()
        return registries.WholeRegistry("base", base)

    def _churned(self, churn: int) -> float:
        """Return CPU µs per event of routing and taking the deltas, half way between two rebases."""
        registry = self._fresh()
        rng = random.Random(churn)
        with self.file.open("rb") as file:
            base: Snapshot = pickle.load(file)
        victims = rng.sample(list(base.subscriptions.values()), min(self.rebase_rows, len(base.subscriptions)))
        per_batch = max(1, int(churn * BATCH_S))
        batches = min(BATCHES, -(-len(victims) // per_batch))
        first = max(0, len(victims) // per_batch - batches) // 2 * per_batch  # half way between two rebases
        registry.advance(changed(victims[:first], 1))
        route(registry, self.events[:WARM_EVENTS])
        cpu = events = 0.0
        for batch in range(batches):
            delta = pickle.loads(pickle.dumps(changed(victims[: first + (batch + 1) * per_batch], batch + 2)))
            chosen = rng.sample(self.events, BATCH_EVENTS)
            cpu += cpu_us(lambda d=delta, c=chosen: (registry.advance(d), route(registry, c)), BATCH_EVENTS) * BATCH_EVENTS
            events += BATCH_EVENTS
        return cpu / events


@dataclass(frozen=True, kw_only=True)
class LookUp:
    """Measure a worker that looks up, through a real Postgres on the same machine."""

    source: Any
    events: list[Any]
    """Events that reach one worker within a TTL."""

    def run(self) -> dict[str, Any]:
        """Return the figures."""
        start = memory_mb()[0]
        began = time.perf_counter()
        registry = self.source.registry(None)
        route(registry, self.events[:1])
        first = time.perf_counter() - began
        server = Server(registry)
        wall, cpu, served = time.perf_counter(), time.process_time(), server.cpu_s()
        route(registry, self.events)
        wall, cpu, served = time.perf_counter() - wall, time.process_time() - cpu, server.cpu_s() - served
        held, peak = memory_mb()
        answers = len(registry._answers)
        warm = min(cpu_us(lambda: route(registry, self.events[-WARM_EVENTS:])) for _ in range(3))
        return {
            "baseline_mb": start,
            "first_event_s": first,
            "registry_mb": held - start,
            "peak_mb": peak,
            "answers": answers,
            "look_up_ms": wall / answers * 1e3,
            "look_up_worker_us": cpu / answers * 1e6,
            "look_up_postgres_us": served / answers * 1e6,
            "warm_us": warm,
        }


class Server:
    """The process of Postgres that serves this worker."""

    def __init__(self, registry: Any) -> None:
        self._pid = registry._reader._connection.info.backend_pid

    def cpu_s(self) -> float:
        """Return the CPU seconds that it has used."""
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def route(registry: registries.Registry, events: Iterable[Any]) -> int:
    """Route as the lane does; return how many deliveries are due. The events are made and let go one by one."""

    async def run() -> int:
        due = 0
        for row in events:
            event = as_event(row)
            router = await registry.router_for(event)
            if router.tenant_status(event.tenant_id) is not None:
                due += len(router.matches(event))
        return due

    return uvloop.run(run())


def as_event(row: Any) -> Event:
    """Return the event of a row of the population."""
    event_type, tenant_id, sub_tenant_id, amount = row
    content = {"amount": amount, "status": "paid", "country": "it"}
    return Event(
        event_id="e", event_type=event_type, source="s", tenant_id=tenant_id, sub_tenant_id=sub_tenant_id, time="", data=b"",
        content=content, record=RECORD,
    )  # fmt: skip


def changed(subscriptions: list[Any], revision: int) -> SnapshotChanges:
    """Return a delta in which these subscriptions are paused."""
    paused = {row.subscription_id: replace(row, status=SubscriptionStatus.PAUSED) for row in subscriptions}
    return SnapshotChanges(since=Revision(1), revision=Revision(10 + revision), subscriptions=paused)


def cpu_us(run: Callable[[], object], events: int = WARM_EVENTS) -> float:
    """Return the CPU µs of a run per event."""
    began = time.process_time()
    run()
    return (time.process_time() - began) * 1e6 / events


def memory_mb() -> tuple[float, float]:
    """Return the resident memory now, garbage gone, and its highest so far."""
    gc.collect()
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    kilobytes = {words[0]: int(words[1]) for words in lines if words[0] in {"VmRSS:", "VmHWM:"}}
    return kilobytes["VmRSS:"] / 1024, kilobytes["VmHWM:"] / 1024


def main() -> None:
    """Answer one task."""
    task_context.shared_worker(
        worker_plan.Plan(topics=topic_rows.Topics(attempts="a", dead_letters="d", rejected="r", retries="t"))
    )  # loop, pool, sender
    task = pickle.load(sys.stdin.buffer)
    sys.stdout.write(orjson.dumps(task.run(), option=orjson.OPT_NON_STR_KEYS).decode())
    sys.stdout.flush()
    os._exit(0)  # as Spark ends its workers; a graceful end would have to end the event loop's thread first


if __name__ == "__main__":
    main()
