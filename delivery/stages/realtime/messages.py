"""What the driver and the workers of the real-time lane tell each other.

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
    """How a task stands."""

    RUNNING = "running"
    STOPPED = "stopped"
    """It was asked to stop, and all that it had begun is written."""
    DONE = "done"
    """Its records have ended, and all is written."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Which registry a worker has."""

    base_id: str = ""
    revision: Revision | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a task tells, of the time since its last report. The first one comes before it reads anything."""

    task: int
    """The number of the task in its stage."""
    state: State = State.RUNNING
    failure: str = ""
    known: Known = field(default_factory=Known)
    tally: Counters = field(default_factory=Counters)
    gone: frozenset[EndpointId] = frozenset()
    silent: frozenset[EndpointId] = frozenset()
    next_offsets: Mapping[Place, int] = field(default_factory=dict)
    """Behind what is handled and written."""
    records: int = 0
    """Records that were read."""
    delay_s: float = 0.0
    """Seconds between Kafka's append and the reading, of the record for which it was longest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What a task is told in answer."""

    base_id: str = ""
    base: Snapshot | None = None
    """Set where the worker has another base, or none."""
    changes: SnapshotChanges | None = None
    """All that has changed since the base; None where the worker knows it."""
    held: deferral.SuppressedEndpoints = field(default_factory=dict)
    is_paused: bool = False
    """Whether nothing more is to be begun for now."""
    is_stopping: bool = False
    """Whether nothing more is to be begun in this query."""
    driver_s: float = 0.0
    """The driver's time, in seconds since the epoch."""
    next_offsets: Mapping[Place, int] = field(default_factory=dict)
    """In the first answer: from where each partition goes on, as far as is known."""
