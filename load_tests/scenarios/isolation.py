"""One endpoint of many hangs: how much longer do the others wait?

1. Events come at a steady pace, and 5 % of them are due to one endpoint, which answers like all the others.
2. The same again, but that endpoint takes requests and never answers.
3. It answers again, and what has waited for it is delivered. Nothing may be lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from load_tests.harness import figures, phases, stage, traffic

SETTINGS = {**phases.SETTINGS, "retry.max_probe_interval_s": "5"}
"""Of the job: the endpoint is to be noticed soon after it answers again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """How much of what."""

    endpoints: int = 1_000
    warm_up: int = 20_000
    """Events before those that are measured."""
    settle_s: int = 20
    """Seconds at the pace of the two phases before they begin."""
    per_s: int = 500
    seconds: int = 60
    """Of each of the two phases: so many that a single micro-batch is less than one in a hundred events."""
    share: float = 0.05
    """Of the events, due to the endpoint that will hang."""
    seed: int = 1


def run(scenario: Scenario, terms: stage.Terms) -> dict[str, Any]:
    """Run it and return the figures."""
    plan = phases.Plan(
        customers=traffic.Customers(endpoints=scenario.endpoints),
        first=phases.Phase(per_s=scenario.per_s, hot=scenario.share, settle_s=scenario.settle_s),
        second=phases.Phase(per_s=scenario.per_s, hot=scenario.share, hangs=traffic.HOT_ENDPOINT),
        seconds=scenario.seconds,
        warm_up=scenario.warm_up,
        seed=scenario.seed,
        settings=SETTINGS,
    )
    found = phases.compare(plan, terms)
    of_healthy, of_hanging = (
        figures.latency_ms(found.report, phase.numbers, traffic.is_other) for phase in (found.first, found.second)
    )
    return {
        "scenario": "isolation",
        "deliveries": len(found.report.numbers),
        "others_p99_ratio": round(of_hanging["p99"] / of_healthy["p99"], 2),
        "others_ms": {"at_per_s": scenario.per_s, "all_answer": of_healthy, "one_hangs": of_hanging},
        "waited_for_the_one": found.second.left,
        "recovered_s": round(found.recovered_s, 1),
        **found.outcome,
    }
