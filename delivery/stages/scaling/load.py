"""Measure the load of a lane: what comes, what is handled, and what one executor can handle. Pure.

Runs on the driver. Must not import pyspark.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

WINDOW_S = 15.0
"""Seconds over which rates are averaged: some micro-batches, each of which commits thousands of events at once."""
BEHIND_S = 10.0
"""A lane is behind when its lag is more than this many seconds of its throughput. The events of the micro-batch under way are
lag, too, and are fewer."""
SETTLE_S = 30.0
"""Seconds after a change of the number in which no throughput is measured: new workers import, and queries are planned anew."""
MEASURE_S = 10.0
"""The shortest time, in seconds, over which a throughput is measured."""
AFRESH_S = 60.0
"""Seconds after which a measurement begins anew."""
REMEMBER_S = 6 * 3600.0
"""Seconds for which a throughput is remembered. A throughput that was measured while endpoints were slow would otherwise keep
too many executors for good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One observation of a lane."""

    at_s: float
    """When Kafka was asked; monotonic."""
    lag: int | None
    """Records in Kafka that no committed micro-batch has handled; None: not known."""
    handled: int
    """Records in committed micro-batches, since the process started."""
    handled_at_s: float
    """When the last of these micro-batches was committed; monotonic."""
    partitions: int
    """Partitions that the lane reads; 0: not known."""
    pause_reason: str | None = None
    """Why the next micro-batch would be held; None: it would not."""
    is_source_up: bool = True
    """Whether Kafka answered."""

    @property
    def published(self) -> int:
        """Records that have come, since a point in time that does not matter."""
        return self.handled + (self.lag or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The observations of one lane, and the throughput that was measured by them."""

    window: tuple[Load, ...] = ()
    """The observations of the last WINDOW_S, oldest first."""
    executors: int = 1
    """How many were registered at the last observation."""
    changed_at_s: float = -math.inf
    """When that number changed."""
    behind_since: Load | None = None
    """The observation from which on the throughput is being measured; None: the lane is not behind."""
    per_executor: float | None = None
    """Records a second that one executor handles when the lane is behind; None: not measured, or forgotten."""
    measured_at_s: float = -math.inf
    proven: float = 0.0
    """The most records a second and executor that were handled without the lane being behind."""

    @property
    def lag(self) -> int | None:
        """Records that wait; None: not known."""
        return self.window[-1].lag if self.window else None

    @property
    def arrival_per_s(self) -> float:
        """Records a second that come."""
        return self._per_s(self.window[0].published, self.window[-1].published) if self.window else 0.0

    @property
    def handled_per_s(self) -> float:
        """Records a second that are handled."""
        return self._per_s(self.window[0].handled, self.window[-1].handled) if self.window else 0.0

    @property
    def is_behind(self) -> bool:
        """Whether the last two observations saw a lag of more than BEHIND_S of the throughput."""
        least = BEHIND_S * self.handled_per_s
        return len(self.window) > 1 and all((load.lag or 0) > least for load in self.window[-2:])

    def observed(self, load: Load, executors: int) -> Measured:
        """Return what is known with one more observation, made while so many executors were registered."""
        if self.window and load.at_s <= self.window[-1].at_s:  # Kafka was not asked again
            return self
        if load.lag is None:
            return dataclasses.replace(self, window=(load,), behind_since=None)
        known = [one for one in self.window if one.lag is not None]
        # The newest of those that are too old stays, so that the window is not shorter than WINDOW_S.
        older = [one for one in known if one.at_s <= load.at_s - WINDOW_S]
        window = (*older[-1:], *(one for one in known if one.at_s > load.at_s - WINDOW_S), load)
        is_forgotten = load.at_s - self.measured_at_s > REMEMBER_S
        now = dataclasses.replace(
            self,
            window=window,
            per_executor=None if is_forgotten else self.per_executor,
            executors=max(executors, 1),
            changed_at_s=load.at_s if max(executors, 1) != self.executors else self.changed_at_s,
        )
        return _measured(now)

    def _per_s(self, before: int, now: int) -> float:
        took_s = self.window[-1].at_s - self.window[0].at_s
        return max(0, now - before) / took_s if took_s else 0.0


def _measured(known: Measured) -> Measured:
    """Return `known` with what its newest observation says of the throughput."""
    load, since = known.window[-1], known.behind_since
    if not known.is_behind:
        is_steady = load.at_s - known.changed_at_s > WINDOW_S + SETTLE_S
        proven = max(known.proven, known.handled_per_s / known.executors) if is_steady else known.proven
        return dataclasses.replace(known, behind_since=None, proven=proven)
    if since is None or load.at_s - known.changed_at_s <= SETTLE_S:
        return dataclasses.replace(known, behind_since=load)
    took_s = load.handled_at_s - since.handled_at_s
    if took_s < MEASURE_S or load.handled <= since.handled:
        return known
    return dataclasses.replace(
        known,
        per_executor=(load.handled - since.handled) / took_s / known.executors,
        measured_at_s=load.at_s,
        proven=0.0,
        behind_since=load if took_s >= AFRESH_S else since,
    )
