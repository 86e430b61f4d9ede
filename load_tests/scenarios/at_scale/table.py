"""List the scenarios at the scale of the mission (docs/load-tests.md): their phases, and the bounds of their figures."""

from __future__ import annotations

from load_tests.harness.behaviour import Behaviour
from load_tests.scenarios.at_scale.bounds import Bound
from load_tests.scenarios.at_scale.plan import Capacity, PlannedPhase, ScaleScenario

ALWAYS = (
    Bound(figure="lost", at_most=0),
    Bound(figure="unexpected", at_most=0),
    Bound(figure="unverified", at_most=0),
    Bound(figure="duplicates_share", at_most=0.01),
    Bound(figure="reconciled.holds", at_least=1),
)
"""Bounds of every scenario. `reconciled.holds` is 1 when the topics have no contradiction, and the receiver got as many
different deliveries as the topics say."""

CAPACITY = (
    *ALWAYS,
    Bound(figure="sizes_carried", at_least=3),
    Bound(figure="worst.direct_p99_ms", at_most=5_000),
    Bound(figure="cost_model.total.worst_error", at_most=0.15),
)
"""Bounds of a search for the largest share. The latency is measured at the slowest carried share. The error is a share of
cores."""

SPIKE_FACTOR = 10
"""Rate of a spike, as a multiple of the rate before it."""
FLAT = 1.1
"""Largest ratio of the mean of the soak's last quarter to the mean of its second quarter, for memory, files and threads."""


def _latency(phase: str, p50_ms: int, p99_ms: int) -> tuple[Bound, Bound]:
    path = f"phases.{phase}.others_latency_ms"
    return Bound(figure=f"{path}.p50", at_most=p50_ms), Bound(figure=f"{path}.p99", at_most=p99_ms)


def _published(*phases: str) -> tuple[Bound, ...]:
    """Return the bounds on the published share of each phase. Below the planned rate, the other bounds would prove nothing."""
    return tuple(Bound(figure=f"phases.{phase}.published_share", at_least=0.95) for phase in phases)


def _flat(group: str, roles: tuple[str, ...]) -> tuple[Bound, ...]:
    return tuple(Bound(figure=f"growth.{group}.{role}", at_most=FLAT) for role in roles)


def _beside(before: str, during: str, others_p99_ratio: float) -> tuple[Bound, ...]:
    """Return the bounds of a scenario that compares the phase `before`, undisturbed, with the phase `during`.

    `others_p99_ratio` is the largest permitted value of the figure of this name (running.py).
    """
    ratio = Bound(figure=f"phases.{during}.others_p99_ratio", at_most=others_p99_ratio)
    return (*ALWAYS, *_published(before, during), *_latency(during, 1_000, 2_000), ratio)


_ROLES = ("jvm", "driver", "worker")
"""Processes of the job."""

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        ScaleScenario(
            name="average_5k",
            question="Which share of the mission's average load does this machine carry? How many cores does all of it need?",
            per_s=5_000,
            capacity=Capacity(),
            bounds=CAPACITY,
        ),
        ScaleScenario(
            name="peak_50k",
            question="Which share of the mission's peak load does this machine carry? How many cores does all of it need?",
            per_s=50_000,
            capacity=Capacity(),
            bounds=CAPACITY,
        ),
        ScaleScenario(
            name="spike",
            question="How late are events when the load grows ten-fold within a second, and how soon is the lag gone?",
            per_s=300,
            phases=(
                PlannedPhase(name="before", seconds=60),
                PlannedPhase(name="spike", seconds=60, factor=SPIKE_FACTOR, ramp_s=1),
                PlannedPhase(name="after", seconds=60, ramp_s=2),
            ),
            bounds=(
                *ALWAYS,
                *_published("before", "spike", "after"),
                *_latency("before", 1_000, 2_000),
                *_latency("spike", 5_000, 15_000),
                Bound(figure="phases.after.recovered_s", at_most=30),
            ),
        ),
        ScaleScenario(
            name="hot_tenant",
            question="How much longer do the other tenants wait when half of all events are one tenant's?",
            per_s=600,
            phases=(PlannedPhase(name="even", seconds=60), PlannedPhase(name="hot", seconds=60, hot=0.5)),
            bounds=_beside("even", "hot", 1.25),
        ),
        ScaleScenario(
            name="slow_endpoints",
            question="How much longer do the others wait when 5 % of the endpoints take 1 to 10 s?",
            per_s=600,
            behaviour=Behaviour(slow_of_100=5),
            phases=(PlannedPhase(name="healthy", seconds=60), PlannedPhase(name="slow", seconds=120, is_disturbed=True)),
            bounds=_beside("healthy", "slow", 1.25),
        ),
        ScaleScenario(
            name="failing_10pct",
            question="How much longer do the others wait when 10 % of the endpoints answer 503, and does all arrive later?",
            per_s=600,
            behaviour=Behaviour(failing_of_100=10),
            phases=(PlannedPhase(name="healthy", seconds=60), PlannedPhase(name="failing", seconds=120, is_disturbed=True)),
            bounds=_beside("healthy", "failing", 1.25),
        ),
        ScaleScenario(
            name="churn",
            question="How much longer do events wait at 100 registry changes a second, and how late is a change in effect?",
            per_s=600,
            phases=(PlannedPhase(name="still", seconds=60), PlannedPhase(name="churn", seconds=120, changes_per_s=100)),
            bounds=(
                *_beside("still", "churn", 1.5),
                Bound(figure="phases.churn.changes_per_s", at_least=95),
                Bound(figure="phases.churn.registry_behind_s.max", at_most=5),
            ),
        ),
        ScaleScenario(
            name="soak",
            question="Do memory, open files, threads and latency stay flat for an hour?",
            per_s=300,
            phases=(PlannedPhase(name="soak", seconds=3600),),
            bounds=(
                *ALWAYS,
                *_published("soak"),
                *_latency("soak", 1_000, 2_000),
                *_flat("memory_mb", _ROLES),
                *_flat("files", _ROLES),
                *_flat("threads", _ROLES),
                Bound(figure="growth.latency_ms.p50", at_most=1.25),
                Bound(figure="growth.latency_ms.p99", at_most=1.5),
            ),
        ),
    )
}
"""The scenarios by name. The bounds are first guesses for two quiet cores until a run at full size confirms them."""
