"""Measure the load of a lane: records that arrive, records handled, and the throughput of one executor. Pure.

Runs on the driver. Must not import pyspark. A lane's lag is the records in Kafka that no committed micro-batch has handled. A
lane is behind if its lag, in two observations in a row, is more than the lane handles in BEHIND_S seconds. Only then does the
lane handle as much as it can, and only then is its throughput measured.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

WINDOW_S = 15.0
"""Seconds over which rates are averaged: several micro-batches, each of which commits thousands of events at once."""
BEHIND_S = 10.0
"""A lane counts as behind while its lag is more than the lane handles in this many seconds. The records of the current
micro-batch are also lag, but fewer."""
SETTLE_S = 30.0
"""Seconds without a measurement after the number of executors has changed: new workers import modules, and the queries get new
plans."""
MEASURE_S = 10.0
"""Shortest measurement of a throughput, in seconds."""
REMEASURE_S = 60.0
"""Seconds after which a measurement of a throughput ends, and a new one starts."""
REMEMBER_S = 6 * 3600.0
"""Seconds for which a measured throughput is used. Otherwise a throughput that was measured with slow endpoints would keep too
many executors forever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One observation of a lane."""

    at_s: float
    """When Kafka was asked; monotonic seconds."""
    lag: int | None
    """Records in Kafka that no committed micro-batch has handled, without those of paused topics; None: unknown."""
    handled: int
    """Records in committed micro-batches, since the process started."""
    handled_at_s: float
    """When the committed positions last changed, by records or wake-ups; monotonic seconds."""
    partitions: int
    """Number of Kafka partitions that the lane reads; 0: unknown, or none."""
    has_no_topics: bool = False
    """True if the lane is known to have no topic. Then `lag` is None."""
    pause_reason: str | None = None
    """The reason why the lane is paused; None: the lane is not paused."""
    is_source_up: bool = True
    """True if Kafka answered."""

    @property
    def published(self) -> int:
        """Records handled since the process started, plus records waiting. Only a difference of two values has a meaning."""
        return self.handled + (self.lag or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The observations of one lane, and its measured throughput."""

    window: tuple[Load, ...] = ()
    """The observations of the last WINDOW_S, oldest first. The newest older observation, if there is one, comes before them, so
    that the window spans WINDOW_S. After an observation without a known lag, only this observation is in the window."""
    executors: int = 1
    """Executors that were registered at the last observation with a known lag; at least 1."""
    changed_at_s: float = -math.inf
    """When the number of registered executors last changed; monotonic seconds."""
    measuring_since: Load | None = None
    """First observation of the present measurement; None: the lane is not behind, or its lag is unknown. After a change of the
    number of executors, and after REMEASURE_S, the measurement starts again."""
    per_executor: float | None = None
    """Records a second that one executor handles when the lane is behind; None: not measured, or too old."""
    measured_at_s: float = -math.inf
    """When `per_executor` was measured; monotonic seconds."""
    proven: float = 0.0
    """Most records a second that one executor has handled while the lane was not behind, since `measured_at_s`; 0: unknown."""

    @property
    def lag(self) -> int | None:
        """The lane's lag at the last observation, in records; None: unknown."""
        return self.window[-1].lag if self.window else None

    @property
    def arrival_per_s(self) -> float:
        """Records a second that arrive in Kafka, averaged over the window. 0: fewer than two observations, or none arrive."""
        return self._per_s(self.window[0].published, self.window[-1].published) if self.window else 0.0

    @property
    def handled_per_s(self) -> float:
        """Records a second that the lane handles, averaged over the window. 0: fewer than two observations, or none handled."""
        return self._per_s(self.window[0].handled, self.window[-1].handled) if self.window else 0.0

    @property
    def is_behind(self) -> bool:
        """True if the lag was more than the lane handles in BEHIND_S, in both of the last two observations."""
        least = BEHIND_S * self.handled_per_s
        return len(self.window) > 1 and all((load.lag or 0) > least for load in self.window[-2:])

    def observed(self, load: Load, executors: int) -> Measured:
        """Return the measurements after one more observation, which was made with this number of registered executors.

        An observation for which Kafka was not asked again changes nothing.
        """
        if self.window and load.at_s <= self.window[-1].at_s:  # Kafka was not asked again
            return self
        if load.lag is None:
            return dataclasses.replace(self, window=(load,), measuring_since=None)
        known = [seen for seen in self.window if seen.lag is not None]
        # The newest of the older observations stays, so that the window is not shorter than WINDOW_S.
        older = [seen for seen in known if seen.at_s <= load.at_s - WINDOW_S]
        window = (*older[-1:], *(seen for seen in known if seen.at_s > load.at_s - WINDOW_S), load)
        is_forgotten = load.at_s - self.measured_at_s > REMEMBER_S
        updated = dataclasses.replace(
            self,
            window=window,
            per_executor=None if is_forgotten else self.per_executor,
            executors=max(executors, 1),
            changed_at_s=load.at_s if max(executors, 1) != self.executors else self.changed_at_s,
        )
        return _with_throughput(updated)

    def _per_s(self, before: int, now: int) -> float:
        took_s = self.window[-1].at_s - self.window[0].at_s
        return max(0, now - before) / took_s if took_s else 0.0


def _with_throughput(known: Measured) -> Measured:
    """Return `known` after its newest observation: with new `per_executor`, `proven` and `measuring_since`."""
    load, since = known.window[-1], known.measuring_since
    if not known.is_behind:
        # The window begins about SETTLE_S, or more, after the last change of the number of executors.
        is_steady = load.at_s - known.changed_at_s > WINDOW_S + SETTLE_S
        proven = max(known.proven, known.handled_per_s / known.executors) if is_steady else known.proven
        return dataclasses.replace(known, measuring_since=None, proven=proven)
    if since is None or load.at_s - known.changed_at_s <= SETTLE_S:
        return dataclasses.replace(known, measuring_since=load)
    took_s = load.handled_at_s - since.handled_at_s
    if took_s < MEASURE_S or load.handled <= since.handled:
        return known
    return dataclasses.replace(
        known,
        per_executor=(load.handled - since.handled) / took_s / known.executors,
        measured_at_s=load.at_s,
        proven=0.0,
        measuring_since=load if took_s >= REMEASURE_S else since,
    )
