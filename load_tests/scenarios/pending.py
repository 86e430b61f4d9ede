"""Measure the memory and disk of the batch lane for waiting events of many endpoints.

1. The job starts. Each endpoint waits an hour for a batch of more events than the endpoint gets. So no batch becomes full.
2. `each` events are published for each endpoint, on average. The job collects the events, and sends no batch.
3. Memory and disk of the job are read. Nothing may be lost: the topics must show that all events wait for their batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from load_tests.harness import figures, stage, traffic, usage
from load_tests.scenarios import batch

LANE = "batch"
FILL_S = 1_800
"""Seconds within which the batch lane must have collected all published events."""
TOO_MANY = 10
"""Size of a batch, as a multiple of the mean number of events of an endpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingScenario:
    """Parameters of the scenario."""

    endpoints: int = 10_000
    each: int = 99
    """Waiting events of each endpoint, on average."""
    seed: int = 1


def run(scenario: PendingScenario, terms: stage.Terms) -> dict[str, Any]:
    """Run the scenario, and return its figures."""
    chosen = {**batch.SETTINGS, **terms.overrides}
    bounds = {"max_events": scenario.each * TOO_MANY, "max_wait_s": 3600, "max_bytes": 10_000_000}
    registered = traffic.Customers(endpoints=scenario.endpoints, fields={"mode": "batch", "batch": bounds})
    with terms.stage(registered, seed=scenario.seed) as (servers, customers, sent):
        with servers.job(LANE, chosen) as job:
            job.wait_until_ready()
            before, began_s = job.meter.read(), job.elapsed_s()
            count = len(sent.publish(scenario.endpoints * scenario.each))
            published_s = job.elapsed_s() - began_s
            terms.say(f"published {count:,} events in {published_s:.0f} s")
            filled_s = (
                job.wait_until(
                    lambda: job.metric("fanout_pending_events", lane=LANE) >= count, within_s=FILL_S, goal="the filling"
                )
                - began_s
            )
            spent = job.meter.read().since(before)
            taken = {
                "heap_mb": job.meter.heap_mb_after_gc(),
                "rss_mb": {role: round(size) for role, size in job.meter.resident_mb().items()},
                "state_memory_mb": round(job.metric("fanout_state_memory_bytes", lane=LANE) / usage.MB),
                "state_rows": round(job.metric("fanout_state_rows", lane=LANE)),
                "pending_mb": round(job.metric("fanout_pending_bytes", lane=LANE) / usage.MB),
                "checkpoint_mb": round(servers.checkpoint_mb(LANE)),
            }
        report = customers.report()
        reconciled = figures.reconciled(servers.account(), report)
    delivered = figures.delivered(report, sent.due)
    return {
        "scenario": "pending",
        "events": count,
        "published_s": round(published_s, 1),
        "filled_s": round(filled_s, 1),
        "cpu_s_per_million": {"jvm": round(spent.jvm_s / count * 1e6, 1), "python": round(spent.python_s / count * 1e6, 1)},
        **taken,
        **delivered,
        "lost": delivered["lost"] - reconciled["pending"],
        "reconciled": reconciled,
        "peak_rss_mb": {role: round(peak) for role, peak in job.meter.peak_mb().items()},
        "settings": chosen,
    }
