"""Define the messages between the driver and the workers of the real-time lane.

Runs on the driver and in the executors' Python workers. Must not import the settings: pydantic would take 11 MB of a worker.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from delivery.model import EndpointId, Revision
from delivery.webhooks.lanes.realtime_lane import Place
from delivery.webhooks.results.counters import Counters
from delivery.webhooks.routing.registry_snapshot import Snapshot, SnapshotChanges
from delivery.webhooks.scheduling import deferral


class State(enum.StrEnum):
    """The state of a task."""

    RUNNING = "running"
    STOPPED = "stopped"
    """It was asked to stop, and the results of its deliveries are written."""
    DONE = "done"
    """It has read all of its records, and their results are written."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The version of the registry that a worker has."""

    base_id: str = ""
    revision: Revision | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A task's report to the driver since its last one. The first report comes before the task reads any record."""

    task: int
    """The number of the task in its stage."""
    state: State = State.RUNNING
    failure: str = ""
    known: Known = field(default_factory=Known)
    tally: Counters = field(default_factory=Counters)
    gone: frozenset[EndpointId] = frozenset()
    unresponsive: frozenset[EndpointId] = frozenset()
    next_offsets: Mapping[Place, int] = field(default_factory=dict)
    """The next offset after the handled records whose results are written."""
    records: int = 0
    """Records read."""
    delay_s: float = 0.0
    """The longest time between Kafka's append of a record and its reading, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverUpdate:
    """The driver's answer to a report."""

    base_id: str = ""
    base: Snapshot | None = None
    """The snapshot, if the worker has another one or none."""
    changes: SnapshotChanges | None = None
    """All changes since the base; None: the worker has them."""
    suppressed: deferral.SuppressedEndpoints = field(default_factory=dict)
    is_paused: bool = False
    """Whether the task must start no deliveries for now."""
    is_stopping: bool = False
    """Whether the task must start no more deliveries in this query."""
    driver_s: float = 0.0
    """The driver's time, in seconds since the epoch."""
    next_offsets: Mapping[Place, int] = field(default_factory=dict)
    """In the first answer: the offset at which each known partition continues."""
