"""Describe a scenario as data: phases with a rate, behaviour of the endpoints, registry changes, and bounds. Pure.

A scenario has either fixed phases, or a search for the largest share of its rate that the machine carries (`capacity`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from load_tests.harness import behaviour
from load_tests.scenarios import mission
from load_tests.scenarios.at_scale import bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class MissionShape:
    """Size of the registry and number of topics. The defaults are those of the mission (docs/load-tests.md)."""

    topics: int = 500
    """Event types, each with a topic of one partition."""
    tenants: int = 30_000
    endpoints: int = 10_000
    """Endpoints. Three of ten take batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPhase:
    """A period at one rate, after a ramp from the previous phase's rate."""

    name: str
    seconds: int
    factor: float = 1.0
    """Rate of the phase, as a multiple of the scenario's `per_s`."""
    ramp_s: float = 0.0
    """Seconds of the linear ramp from the previous phase's rate to the rate of this phase. The ramp is part of `seconds`."""
    hot: float = 0.0
    """Share of the events that the hot tenant has in addition to its share by Zipf's law."""
    is_disturbed: bool = False
    """True: endpoints answer as the scenario's `behaviour` says. False: all endpoints accept at once."""
    changes_per_s: int = 0
    """Changes of the registry a second, each in a transaction of its own."""
    is_measured: bool = True
    """True if the figures have this phase. False for the first phase, because a young JVM is slower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """A search for the largest share of the scenario's rate that the machine carries. After each try, the share is halved."""

    first_share: float = 1.0
    """The largest share that is tried."""
    sizes: int = 3
    """Number of carried shares to measure. With 3: the largest carried share, its half and its quarter."""
    smallest_share: float = 1 / 1024
    """The smallest share that is tried."""
    overload_s: float = 4.0
    """Undelivered events, in seconds of the rate, above which a share is not carried. Pending batches have some 1.5 s."""
    settling_overload_s: float = 12.0
    """`overload_s` in the time before the measurement of a share. The first micro-batches of a lane take up to 12 s."""
    publisher_late_s: float = 2.0
    """Delay of the publisher, in seconds, above which a share is not carried: no core is left for the publisher."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleScenario:
    """One question about the platform at the scale of the mission (docs/load-tests.md)."""

    name: str
    question: str
    per_s: float
    """Events a second of the full rate. The rate of a phase is a multiple of the full rate."""
    bounds: tuple[bounds.Bound, ...]
    """Bounds that the figures must meet."""
    phases: tuple[PlannedPhase, ...] = ()
    """Phases in order. Empty for a scenario with `capacity`."""
    capacity: Capacity | None = None
    """Search for the largest share. None for a scenario with phases."""
    seconds: int = 60
    """Measured seconds of each share, for a scenario with `capacity`."""
    shape: MissionShape = MissionShape()
    behaviour: behaviour.Behaviour = behaviour.HEALTHY
    """Behaviour of the endpoints in phases with `is_disturbed`."""
    settle_s: int = 20
    """Unmeasured seconds before a measurement. With `phases`: once, before the first phase, at the full rate. With `capacity`:
    before each share of the rate, at this share."""
    warm_up: int = 20_000
    """Events before all phases."""
    drain_s: int = 300
    """Seconds within which all events must have arrived after the last one was published."""
    seed: int = 1
    settings: Mapping[str, str] = field(default_factory=lambda: mission.SETTINGS)
    """Settings of the job (`area.field`)."""


def rate(before: float, phase: PlannedPhase, at_s: float) -> float:
    """Return the factor on the scenario's rate, `at_s` seconds into a phase. The previous phase had the factor `before`."""
    if at_s >= phase.ramp_s:
        return phase.factor
    return before + (phase.factor - before) * at_s / phase.ramp_s
