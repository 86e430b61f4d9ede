"""Simulate days of load with spikes, and the platform's decision on the number of executors; compute costs and waiting times.

The costs for `load_tests.scaling.simulation` are constants of this module, measured except PLAN_S. The same seed gives the
same figures.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import typer

from delivery.stages.scaling import decision
from load_tests.scaling import simulation

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
CPU_S_PER_EVENT = 170e-6
"""CPU seconds of the JVM and of Python for a delivery of the direct lane. Measured were 155 to 181 for a million:
docs/benchmarks/2026-11-21-direct-lane.md, its last table."""
MICRO_BATCH_S = 0.3
"""Seconds of the fixed part of a micro-batch: docs/adr/0029-small-micro-batches.md."""
START_S = (6.0, 20.0)
"""Shortest and longest time in seconds until an executor's pod is registered: docs/adr/0038-scale-on-what-waits.md."""
PLAN_S = 5.0
"""Seconds for a new plan of a lane's query, assumed. docs/adr/0038-scale-on-what-waits.md has measurements."""
CORES = 2
"""Cores of an executor."""
MAX_EVENTS_PER_BATCH = 20_000
"""Default of `source.max_events_per_batch`: most events of a micro-batch, for each executor."""
DAY_SWING = 0.4
"""Share by which the load exceeds its mean in the afternoon, and falls below it in the night."""
FIXED_LOAD = 0.75
"""Share of its throughput that each executor uses at the peak, if the number of executors is fixed. Equals HEADROOM of
`delivery.stages.scaling.decision`."""
EVERY_S = 5.0
"""Seconds between two decisions."""
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
DRAINED_S = 5.0
"""Lag in seconds of load, up to which a spike counts as drained. Micro-batches in flight cause that much lag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingScenario:
    """Parameters of the simulation: the load, and the bounds of the number of executors."""

    base_per_s: int = 5_000
    """Mean of the load without spikes, events a second."""
    spike: float = 10.0
    """Factor by which a spike multiplies the load."""
    spikes_a_day: int = 4
    spike_s: tuple[float, float] = (300.0, 900.0)
    """Shortest and longest duration of a spike, seconds."""
    days: float = 3
    """Simulated days. Each of the `spikes_a_day` equal parts of a day has one spike."""
    max_executors: int = 12
    partitions: int = 60
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Spike:
    """A period in which the load is multiplied. Its times are seconds since the simulation began."""

    began_s: float
    ended_s: float


def spikes(scenario: ScalingScenario) -> list[Spike]:
    """Return the spikes of all days at random moments, at least half an hour apart, in order."""
    rng = random.Random(scenario.seed)
    slot_s = DAY_S / scenario.spikes_a_day
    found = []
    for number in range(int(scenario.days * scenario.spikes_a_day)):
        lasts_s = rng.uniform(*scenario.spike_s)
        began_s = number * slot_s + rng.uniform(900.0, slot_s - lasts_s - 900.0)
        found.append(Spike(began_s, began_s + lasts_s))
    return found


def load_of(scenario: ScalingScenario, at: Sequence[Spike]) -> Callable[[float], float]:
    """Return a function from the time in seconds to the events a second: a daily swing, multiplied during each spike.

    `at` has the spikes of the scenario, as `spikes` returns them.
    """

    def per_s(now_s: float) -> float:
        day = 1 - DAY_SWING * math.cos(2 * math.pi * now_s / DAY_S)
        spike = any(peak.began_s <= now_s < peak.ended_s for peak in near(now_s))
        return scenario.base_per_s * day * (scenario.spike if spike else 1)

    slot_s = DAY_S / scenario.spikes_a_day

    def near(now_s: float) -> Sequence[Spike]:
        number = int(now_s / slot_s)
        return at[number : number + 1]

    return per_s


def run(scenario: ScalingScenario) -> dict[str, Any]:
    """Simulate executors whose number follows the load, and a fixed number for the peak; return the figures of both."""
    at = spikes(scenario)
    per_s = load_of(scenario, at)
    peak_per_s = max(per_s(minute * 60.0) for minute in range(round(scenario.days * DAY_S / 60)))
    fixed = math.ceil(peak_per_s * CPU_S_PER_EVENT / CORES / FIXED_LOAD)
    scaled, always = (
        _history(scenario, per_s, least=least, most=most) for least, most in ((1, scenario.max_executors), (fixed, fixed))
    )
    hours, fixed_hours = (sum(moment.executors for moment in moments) * EVERY_S / HOUR_S for moments in (scaled, always))
    reactions = [_reaction(scaled, spike) for spike in at]
    return {
        "scenario": dataclasses.asdict(scenario),
        "events": scaled[-1].published,
        "peak_per_s": round(peak_per_s),
        "fixed": {"executors": fixed, "executor_hours": round(fixed_hours), "wait_s": _waits(always)},
        "scaled": {
            "most_executors": max(moment.executors for moment in scaled),
            "executor_hours": round(hours),
            "wait_s": _waits(scaled),
        },
        "saved_share": round(1 - hours / fixed_hours, 2),
        "changes": sum(now.decided.wanted != before.decided.wanted for before, now in itertools.pairwise(scaled)),
        "spikes": len(reactions),
        "asked_after_s": _spread([reaction["asked_after_s"] for reaction in reactions]),
        "drained_after_s": _spread([reaction["drained_after_s"] for reaction in reactions]),
        "as_before_after_s": sorted(round(reaction["as_before_after_s"]) for reaction in reactions),
        "shown": [
            {"at_s": moment.at_s, "per_s": round(moment.per_s), "lag": moment.lag, "executors": moment.executors}
            for moment in scaled
            if moment.at_s <= DAY_S
        ],
    }


def _history(scenario: ScalingScenario, per_s: Callable[[float], float], *, least: int, most: int) -> list[simulation.Moment]:
    costs = simulation.Costs(per_executor=CORES / CPU_S_PER_EVENT, micro_batch_s=MICRO_BATCH_S, start_s=START_S, plan_s=PLAN_S)
    cluster = simulation.Cluster(
        costs, per_s, partitions=scenario.partitions, at_most=MAX_EVENTS_PER_BATCH, executors=least, seed=scenario.seed
    )
    policy = decision.Policy(min_executors=least, max_executors=most, cores=CORES)
    return list(simulation.history(cluster, policy, seconds=scenario.days * DAY_S, every_s=EVERY_S))


def _reaction(moments: Sequence[simulation.Moment], spike: Spike) -> dict[str, float]:
    """Return three delays in seconds.

    1. `asked_after_s`: from the spike's beginning until more executors are requested.
    2. `drained_after_s`: from the spike's end until the lag is drained.
    3. `as_before_after_s`: from the spike's end until no more executors are requested than before the spike.
    """
    first = int(spike.began_s / EVERY_S)
    last = int(spike.ended_s / EVERY_S)
    before = moments[first - 1].decided.wanted
    asked_s = _first_s(moments[first:], lambda moment: moment.decided.wanted > before, "requests more executors")
    drained_s = _first_s(moments[last:], lambda moment: moment.lag <= DRAINED_S * moment.per_s, "drains the lag")
    as_before_s = _first_s(moments[last:], lambda moment: moment.decided.wanted <= before, "releases the executors")
    return {
        "asked_after_s": asked_s - spike.began_s,
        "drained_after_s": drained_s - spike.ended_s,
        "as_before_after_s": as_before_s - spike.ended_s,
    }


def _first_s(moments: Iterable[simulation.Moment], is_meant: Callable[[simulation.Moment], bool], does: str) -> float:
    """Return the time of the first moment for which `is_meant` returns True. Raise typer.BadParameter if there is none.

    `does` names, in the message, the reaction that is missing.
    """
    found = next(filter(is_meant, moments), None)
    if found is None:
        problem = f"after a spike, the simulated platform never {does}, so there are no figures: change --base-per-s"
        raise typer.BadParameter(problem)
    return found.at_s


def _waits(moments: Sequence[simulation.Moment]) -> dict[str, float]:
    """Return PERCENTILES and the maximum (`most`) of the seconds from an event's publishing to its micro-batch's commit."""
    waits, behind = [], 0
    for before, now in itertools.pairwise(moments):
        while behind < len(moments) and moments[behind].committed < now.published:
            behind += 1
        if behind == len(moments):
            break
        waits.append((moments[behind].at_s - now.at_s, now.published - before.published))
    waits.sort()
    total, reached, found = sum(count for _, count in waits), 0, dict[str, float]()
    for wait_s, count in waits:
        reached += count
        found |= {name: wait_s for name, share in PERCENTILES.items() if name not in found and reached >= share * total}
    return found | {"most": waits[-1][0]}


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"least": round(min(values), 1), "mean": round(sum(values) / len(values), 1), "most": round(max(values), 1)}
