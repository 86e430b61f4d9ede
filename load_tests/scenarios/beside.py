"""Something goes on beside the events that are measured: how much longer do these wait, and what more do they cost?

Events come at a steady pace, first alone, then beside

* `poison`: as many records that are no events, in a topic of nothing else. All of them must be rejected.
* `hot`: one tenant that has 80 % of all events then, all due to one endpoint and in one partition. It is the others that count.
  So that they wait for the one and not for more work, there are as many events before, of all tenants alike.
* `archive`: `fanout archive`, `fanout serve` and a flood of polls (`flood.py`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from load_tests.harness import figures, flood, phases, stage, traffic


class What(enum.StrEnum):
    """What goes on beside them."""

    POISON = "poison"
    HOT = "hot"
    ARCHIVE = "archive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """How much of what."""

    what: What
    endpoints: int = 100
    warm_up: int = 20_000
    """Events before those that are measured."""
    settle_s: int = 20
    """Seconds of each phase before it is measured."""
    per_s: int = 1_000
    """Events of those that are measured."""
    seconds: int = 60
    """Of each of the two phases."""
    hot: float = 0.8
    """The share of all events that the hot tenant has."""
    flood: flood.Flood = field(default_factory=flood.Flood)
    seed: int = 1


def first(scenario: Scenario) -> phases.Phase:
    """Return the first phase: what is measured, and what makes up for a hot tenant."""
    return phases.Phase(per_s=_together(scenario), settle_s=scenario.settle_s)


def second(scenario: Scenario) -> phases.Phase:
    """Return the second phase: the same events for those that are measured, and what is beside them."""
    match scenario.what:
        case What.POISON:
            return phases.Phase(per_s=scenario.per_s, poison_per_s=scenario.per_s, settle_s=scenario.settle_s)
        case What.HOT:
            return phases.Phase(per_s=_together(scenario), hot=scenario.hot, settle_s=scenario.settle_s)
        case What.ARCHIVE:
            return phases.Phase(per_s=scenario.per_s, around=scenario.flood.around, settle_s=scenario.settle_s)


def _together(scenario: Scenario) -> int:
    return round(scenario.per_s / (1 - scenario.hot)) if scenario.what is What.HOT else scenario.per_s


def run(scenario: Scenario, terms: stage.Terms) -> dict[str, Any]:
    """Run it and return the figures."""
    is_hot = scenario.what is What.HOT
    plan = phases.Plan(
        customers=traffic.Customers(endpoints=scenario.endpoints),
        first=first(scenario),
        second=second(scenario),
        seconds=scenario.seconds,
        warm_up=scenario.warm_up,
        seed=scenario.seed,
        settings=phases.SETTINGS,
        topics=traffic.Topics(by_tenant=is_hot, with_poison=scenario.what is What.POISON),
    )
    found = phases.compare(plan, terms)
    alone, beside = (_document(phase, found, is_hot=is_hot) for phase in (found.first, found.second))
    return {
        "scenario": f"beside {scenario.what}",
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
    """Return a phase for machines. What the job used is for all events of the phase, whatever came beside them."""
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
