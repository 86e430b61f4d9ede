"""Let one endpoint of many hang: how much longer do the events of all others wait?

1. Events come at a steady pace. 5 % of the events are due to one endpoint, which answers like all others.
2. The same pace continues. The endpoint with 5 % of the events accepts requests without ever answering.
3. The endpoint answers again, and gets its waiting deliveries. Nothing may be lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from load_tests.harness import figures, phases, stage, traffic

SETTINGS = {**phases.SETTINGS, "retry.max_probe_interval_s": "5"}
"""Settings of the job, with frequent probes, so that the job soon notices that the endpoint answers again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationScenario:
    """Parameters of the scenario."""

    endpoints: int = 1_000
    warm_up: int = 20_000
    """Events of the warm-up."""
    settle_s: int = 20
    """Seconds of the steady pace before the two phases."""
    per_s: int = 500
    seconds: int = 60
    """Measured seconds of each phase: long enough that one micro-batch has less than a hundredth of the events."""
    share: float = 0.05
    """Share of the events that are due to the hanging endpoint."""
    seed: int = 1


def run(scenario: IsolationScenario, terms: stage.Terms) -> dict[str, Any]:
    """Run the scenario, and return its figures."""
    plan = phases.Plan(
        customers=traffic.Customers(endpoints=scenario.endpoints),
        first=phases.MeasuredPhase(per_s=scenario.per_s, hot=scenario.share, settle_s=scenario.settle_s),
        second=phases.MeasuredPhase(per_s=scenario.per_s, hot=scenario.share, hangs=traffic.HOT_ENDPOINT),
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
