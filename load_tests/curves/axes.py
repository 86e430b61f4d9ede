"""Describe the axes as data: the base shape, and the values of one variable. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from load_tests.harness import traffic

Unit = Literal["delivery", "event"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveShape:
    """Size of the registry and form of the events. The defaults are the base of an axis without a `base` of its own."""

    endpoints: int = 100
    topics: int = 10
    """Event types, each with a topic of one partition."""
    subscriptions: int | None = None
    """Subscriptions, each to one event type of one tenant. None: each endpoint has one, to all event types."""
    fan_out: int = 1
    """Endpoints to which each event is due."""
    filters: int = 0
    """Additional subscriptions to the events of all tenants, each with a filter that no event matches."""
    event_bytes: int = traffic.EVENT_BYTES
    """Size of an event's record value."""
    executors: int = 0
    """Executors in JVMs of their own, with one worker each. 0: one worker, whose tasks run in the driver's JVM."""

    @property
    def groups(self) -> int:
        """Return the number of groups of endpoints. The endpoints of a group get the same events."""
        return self.endpoints // self.fan_out

    @property
    def tenants(self) -> int:
        """Return the number of tenants with events."""
        return self.groups if self.subscriptions is None else self.subscriptions // self.topics


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One variable, its values, and what is measured at each value."""

    name: str
    variable: str
    """The field of `CurveShape` that varies."""
    values: tuple[int, ...]
    """Values in ascending order."""
    label: str
    """The variable in words, with its unit."""
    because: str
    """Part of the work that depends on the variable, in a sentence for the documents."""
    base: CurveShape = CurveShape()
    unit: Unit = "delivery"
    """The cost is the CPU time of one delivery or of one event."""
    deliveries: int = 20_000
    """Deliveries of one pass. A pass measures one value once."""
    one_job: bool = False
    """True: all values are measured in one job, with event types of their own. False: each value has a platform of its own."""
    trigger_s: float = 3.0
    """Seconds from one micro-batch to the next. The events of a pass must be published within this time."""
    ready_within_s: float = 600.0
    """Seconds from the first registered row until the job must be ready. Otherwise this value and larger values are left
    out."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of the job (`area.field`) in addition to the settings of all axes."""

    def shape(self, value: int) -> CurveShape:
        """Return the base shape with this value of the variable."""
        return replace(self.base, **{self.variable: value})

    def up_to(self, at_most: int) -> Axis:
        """Return the axis without values above `at_most`, but always with the smallest value."""
        return replace(self, values=tuple(value for value in self.values if value <= max(at_most, self.values[0])))

    def jobs(self) -> tuple[tuple[int, ...], ...]:
        """Return the values that each job measures: one job for all values if `one_job`, else one for each value."""
        return (self.values,) if self.one_job else tuple((value,) for value in self.values)


AXES = {
    axis.name: axis
    for axis in (
        Axis(
            name="fan_out",
            variable="fan_out",
            values=(1, 2, 5, 10, 50),
            label="endpoints to which an event is due",
            because="An event is read, parsed and matched once. Each delivery is signed, sent and logged by itself.",
            unit="event",
            one_job=True,
        ),
        Axis(
            name="endpoints",
            variable="endpoints",
            values=(10, 100, 1_000, 10_000),
            label="endpoints",
            because="A worker keeps connections, limits and response times of each endpoint.",
        ),
        Axis(
            name="topics",
            variable="topics",
            values=(1, 10, 100, 500, 2_000),
            label="topics",
            because="A task fetches the records of all its partitions together. Spark plans and commits each of them.",
        ),
        Axis(
            name="subscriptions",
            variable="subscriptions",
            values=(1_000, 10_000, 100_000, 300_000, 1_000_000),
            label="subscriptions",
            because="The driver broadcasts all subscriptions, and each worker keeps them with an index for each event type.",
        ),
        Axis(
            name="filters",
            variable="filters",
            values=(0, 10, 100, 1_000),
            label="filters on one event type",
            because="A worker looks up each event in an index of the filters (decision 6), so it evaluates few of them.",
            base=CurveShape(topics=1),
            one_job=True,
        ),
        Axis(
            name="payload",
            variable="event_bytes",
            values=(125, 1_000, 10_000, 30_000, 100_000),
            label="bytes of an event",
            because="Kafka, Spark, the signature and the connection handle every byte.",
            deliveries=4_000,
            one_job=True,
            trigger_s=5.0,
        ),
        Axis(
            name="executors",
            variable="executors",
            values=(1, 2, 3, 4),
            label="executors",
            because="Each executor has a JVM and a worker. Each gets a part of every micro-batch, with its own tasks.",
        ),
    )
}
"""All axes, by their names."""
