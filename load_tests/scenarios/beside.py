"""Add another load beside the measured events: how much longer do the events wait, and how much more CPU do they cost?

Events come at a steady pace, first alone, then beside one of these loads:

* `poison`: records that are not events, as many as there are events, in their own topic. The job must reject all of them.
* `hot`: one tenant has a share of all events (default 80 %), all due to one endpoint and in one partition. The latencies of the
  other endpoints are compared. The first phase has as many events, of all tenants alike, so that the phases differ only in the
  hot tenant.
* `archive`: `fanout archive`, `fanout serve` and a flood of polls (`flood.py`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from load_tests.harness import figures, phases, stage, traffic
from load_tests.polls import flood


class Load(enum.StrEnum):
    """Load beside the measured events."""

    POISON = "poison"
    HOT = "hot"
    ARCHIVE = "archive"


@dataclass(frozen=True, slots=True, kw_only=True)
class BesideScenario:
    """Parameters of the scenario."""

    load: Load
    """Load beside the measured events, in the second phase."""
    endpoints: int = 100
    warm_up: int = 20_000
    """Events of the warm-up."""
    settle_s: int = 20
    """Seconds of each phase before its measurement."""
    per_s: int = 1_000
    """Measured events a second."""
    seconds: int = 60
    """Measured seconds of each of the two phases."""
    hot: float = 0.8
    """Share of the hot tenant in all events of the second phase, for the load `hot`."""
    flood: flood.Flood = field(default_factory=flood.Flood)
    """Archive and polls, for the load `archive`."""
    seed: int = 1


def first(scenario: BesideScenario) -> phases.MeasuredPhase:
    """Return the first phase: the measured events alone. For the load `hot`, it has as many events as the second phase."""
    return phases.MeasuredPhase(per_s=_together(scenario), settle_s=scenario.settle_s)


def second(scenario: BesideScenario) -> phases.MeasuredPhase:
    """Return the second phase: the measured events, and the load beside them."""
    match scenario.load:
        case Load.POISON:
            return phases.MeasuredPhase(per_s=scenario.per_s, poison_per_s=scenario.per_s, settle_s=scenario.settle_s)
        case Load.HOT:
            return phases.MeasuredPhase(per_s=_together(scenario), hot=scenario.hot, settle_s=scenario.settle_s)
        case Load.ARCHIVE:
            return phases.MeasuredPhase(per_s=scenario.per_s, around=scenario.flood.around, settle_s=scenario.settle_s)


def _together(scenario: BesideScenario) -> int:
    """Return the events a second of a phase. For the load `hot`, include the events of the hot tenant."""
    return round(scenario.per_s / (1 - scenario.hot)) if scenario.load is Load.HOT else scenario.per_s


def run(scenario: BesideScenario, terms: stage.Terms) -> dict[str, Any]:
    """Run the scenario, and return its figures."""
    is_hot = scenario.load is Load.HOT
    plan = phases.Plan(
        customers=traffic.Customers(endpoints=scenario.endpoints),
        first=first(scenario),
        second=second(scenario),
        seconds=scenario.seconds,
        warm_up=scenario.warm_up,
        seed=scenario.seed,
        settings=phases.SETTINGS,
        topics=traffic.Topics(by_tenant=is_hot, with_poison=scenario.load is Load.POISON),
    )
    found = phases.compare(plan, terms)
    alone, beside = (_document(phase, found, is_hot=is_hot) for phase in (found.first, found.second))
    return {
        "scenario": f"beside {scenario.load}",
        "deliveries": len(found.report.numbers),
        "at_per_s": scenario.per_s,
        "latency_ratio": figures.ratios(alone["latency_ms"], beside["latency_ms"], "p50", "p99"),
        "cpu_ratio": figures.ratios(alone["cpu_s_per_million"], beside["cpu_s_per_million"], "total")["total"],
        **({"polls_failed": beside["polls"]["failed"]} if "polls" in beside else {}),
        "alone": alone,
        "beside": beside,
        **found.outcome,
    }


def _document(phase: phases.Measured, found: phases.Compared, *, is_hot: bool) -> dict[str, Any]:
    """Return the figures of a phase as JSON values. The CPU of the job includes its work for poison and for the hot tenant.

    `is_hot` True: the latencies of the hot endpoint and of the other endpoints are separate figures.
    """
    latencies = {"latency_ms": figures.latency_ms(found.report, phase.numbers)}
    if is_hot:
        latencies = {
            "latency_ms": figures.latency_ms(found.report, phase.numbers, traffic.is_other),
            "latency_ms_of_the_hot_one": figures.latency_ms(found.report, phase.numbers, traffic.is_hot),
        }
    return {
        "events": len(phase.numbers),
        "took_s": round(phase.took_s, 1),
        **latencies,
        "cpu_s_per_million": phase.used.per_million(len(phase.numbers)),
        **phase.beside,
    }
