"""Describe a scenario as data: phases with a rate, receivers' behaviour, registry changes, and bounds. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from load_tests.harness import behaviour
from load_tests.scenarios import mission
from load_tests.scenarios.at_scale import bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Size of the registry and number of topics. The defaults are the mission's."""

    topics: int = 500
    """Event types, each with a topic of one partition."""
    tenants: int = 30_000
    endpoints: int = 10_000
    """Three of ten take batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A stretch of time at one rate."""

    name: str
    seconds: int
    factor: float = 1.0
    """Times the scenario's rate."""
    ramp_s: float = 0.0
    """Seconds in which the rate moves from the previous phase's to this one's. They are part of `seconds`."""
    hot: float = 0.0
    """Share of the events that the hot tenant has besides its share by Zipf's law."""
    is_disturbed: bool = False
    """Whether receivers behave as the scenario's `behaviour` says. Otherwise all accept at once."""
    changes_per_s: int = 0
    """Changes of the registry a second, each in a transaction of its own."""
    is_measured: bool = True
    """Whether the figures have this phase. A young JVM is slower, so the first phase is not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The search for the largest share of the rate that the machine carries, and the measured sizes below it."""

    first_share: float = 1.0
    """The largest share that is tried."""
    sizes: int = 3
    """Shares that are measured: the largest that is carried, its half, its quarter."""
    smallest_share: float = 1 / 1024
    """No smaller share than this is tried."""
    overload_s: float = 4.0
    """A share is not carried when more than this many seconds of events are undelivered. Waiting batches are some 1.5 s."""
    settling_overload_s: float = 12.0
    """The same before a size is measured: the first micro-batches of a lane take up to 12 s."""
    publisher_late_s: float = 2.0
    """A share is not carried when the publisher is later than this, because the machine has no core left for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One question about the platform at the mission's scale."""

    name: str
    question: str
    per_s: float
    """Events a second, of which phases have a multiple."""
    bounds: tuple[bounds.Bound, ...]
    phases: tuple[Phase, ...] = ()
    """Empty for a scenario with `capacity`."""
    capacity: Capacity | None = None
    seconds: int = 60
    """Measured seconds of each size, for a scenario with `capacity`."""
    shape: Shape = Shape()
    behaviour: behaviour.Behaviour = behaviour.HEALTHY
    settle_s: int = 20
    """Seconds at the rate before the first phase, or before each size, that are not measured."""
    warm_up: int = 20_000
    """Events before all phases."""
    drain_s: int = 300
    """Seconds within which all events must have arrived after the last one was published."""
    seed: int = 1
    settings: Mapping[str, str] = field(default_factory=lambda: mission.SETTINGS)


def rate(before: float, phase: Phase, at_s: float) -> float:
    """Return the factor of a phase at a moment, when the previous phase ended with the factor `before`."""
    if at_s >= phase.ramp_s:
        return phase.factor
    return before + (phase.factor - before) * at_s / phase.ramp_s
