"""Define the messages between the driver and the tasks of the real-time lane.

Each task sends a TaskReport several times a second until it ends or an update asks it to stop. The driver answers with a
DriverUpdate. The last report of a task has another state than RUNNING, and gets no answer. Runs on the driver and in the
executors' Python workers. Must not import the settings: pydantic would take 11 MB of a worker.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from delivery.registry_model import AttemptedEndpoint, EndpointId, Revision
from delivery.webhooks.lanes.realtime_lane import Place
from delivery.webhooks.results.counters import Counters


class TaskState(enum.StrEnum):
    """The state of a task of the real-time lane."""

    RUNNING = "running"
    STOPPED = "stopped"
    """The driver asked the task to stop, and the results of the task's deliveries are written."""
    DONE = "done"
    """The task has read all of its records, and their results are written."""
    FAILED = "failed"
    """The task fails, for the reason in `TaskReport.failure`. Results of some of its deliveries may be missing in Kafka."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The version of the registry that a worker process has."""

    base_id: str = ""
    """The id of the snapshot on which the worker's registry is based; empty: the worker has no registry."""
    revision: Revision | None = None
    """The revision that the worker has reached: of its snapshot, or of the last change that it applied. None: no registry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """A task's report to the driver, about the time since its last report.

    The task sends its first report before it reads any record.
    """

    task: int
    """The number of the task in its stage."""
    state: TaskState = TaskState.RUNNING
    failure: str = ""
    """The reason why the task fails: class and text of the error. Empty in any state but FAILED."""
    known: Known = field(default_factory=Known)
    """The version of the registry that the worker process of the task has."""
    counters: Counters = field(default_factory=Counters)
    """Counters of the results of the worker process since its last report."""
    gone: frozenset[AttemptedEndpoint] = frozenset()
    """Endpoints that answered with status 410: they are gone for good."""
    unresponsive: frozenset[EndpointId] = frozenset()
    """Endpoints that sent a worker no response for `delivery.patience_s` seconds."""
    next_offsets: Mapping[Place, int] = field(default_factory=dict)
    """For each partition with progress: the offset below which the results of all records are written."""
    paused: frozenset[Place] = frozenset()
    """All partitions whose records wait for a schema. The task delivers none of their records any more."""
    asks_for_restart: bool = False
    """True if the query must restart to read paused partitions: their schema can be read, or the task has no more records."""
    records: int = 0
    """Number of records that the task has read since its last report."""
    delay_s: float = 0.0
    """The longest time between Kafka's append of a record and its reading, in seconds; 0: no record was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverUpdate:
    """The driver's answer to a report: the missing part of the registry, suppressed endpoints, and whether to pause or stop."""

    base_id: str = ""
    """The id of the newest snapshot; empty: the driver has not read the registry yet."""
    base: bytes | None = None
    """The newest snapshot, packed by `pickling.packed`: the driver packs it once for all tasks. None: the worker has this
    snapshot already, or the driver has not read the registry yet."""
    changes: bytes | None = None
    """All changes of the registry since the newest snapshot, packed by `pickling.packed`: the driver packs them once for all
    tasks. None: there are none, or the worker has them."""
    suppressed: Mapping[EndpointId, str] = field(default_factory=dict)
    """All endpoints that are suppressed now, each with the reason."""
    is_paused: bool = False
    """True if the task must start no deliveries for now."""
    is_stopping: bool = False
    """True if the task must start no more deliveries in this query."""
    driver_s: float = 0.0
    """When the driver sent this update, in seconds since the epoch by its clock."""
    next_offsets: Mapping[Place, int] = field(default_factory=dict)
    """In the answer to a task's first report: the next offset of each partition for which the driver knows an offset. In later
    answers: empty."""
