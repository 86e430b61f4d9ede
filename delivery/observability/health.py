"""Judge from what a lane does whether it is healthy and ready. The judgement is pure; `Watch` gathers the facts.

Runs on the driver. Healthy means that a restart would not help: holding for Postgres on purpose, having nothing to do, or
waiting for a Kafka that does not answer is healthy. Ready means that an event would be delivered now.
"""

from __future__ import annotations

import dataclasses
import enum
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Positions = Mapping[str, Mapping[int, int]]
"""The next offset by topic and partition."""


class Phase(enum.StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a lane."""

    phase: Phase
    hold: str | None
    """Why the next micro-batch would be held, None when it would not."""
    lag: int | None
    """Records that wait in Kafka; None when it is not known."""
    quiet_s: float
    """For how long nothing has come on, of the time in which something should have."""
    is_source_up: bool = True
    """Whether Kafka answered when it was asked last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer to a probe."""

    ok: bool
    reason: str


def should_come_on(phase: Phase, hold: str | None, lag: int | None) -> bool:
    """Tell whether the lane ought to make progress now: a start ends sometime, and records do not wait for ever."""
    return hold is None and (phase is Phase.STARTING or (phase is Phase.RUNNING and bool(lag)))


def liveness(facts: Facts, stalled_after_s: float) -> Verdict:
    """Return whether the process should be left alone.

    1. The query ended by itself: no.
    2. Something ought to come on, and nothing has for too long: no.
    3. Anything else: yes.
    """
    if facts.phase is Phase.ENDED:
        return Verdict(ok=False, reason="the query has ended")
    if should_come_on(facts.phase, facts.hold, facts.lag) and facts.quiet_s > stalled_after_s:
        return Verdict(ok=False, reason=f"{facts.phase}, and nothing has been committed for {facts.quiet_s:.0f} s")
    return Verdict(ok=True, reason=f"holding: {facts.hold}" if facts.hold else facts.phase.value)


def readiness(facts: Facts) -> Verdict:
    """Return whether an event would be delivered now: the registry is there, Kafka answers, and the lane works, as it says."""
    if facts.phase in {Phase.STARTING, Phase.RUNNING} and facts.hold:
        return Verdict(ok=False, reason=f"holding: {facts.hold}")
    if facts.phase is Phase.RUNNING and not facts.is_source_up:
        return Verdict(ok=False, reason="Kafka does not answer")
    return Verdict(ok=facts.phase is Phase.RUNNING, reason=facts.phase.value)


def of_lanes(verdicts: Mapping[str, Verdict]) -> Verdict:
    """Return the verdict on the process: that of the first lane that is not well, else of the first one."""
    return next((verdict for verdict in verdicts.values() if not verdict.ok), next(iter(verdicts.values())))


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a lane."""

    positions: Positions = field(default_factory=dict)
    """Up to where everything is committed; empty until the query has told."""
    at_s: float = 0.0
    """When the newest of it was; monotonic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """The lag of a lane in Kafka, and the records that it has handled."""

    at_s: float = 0.0
    """When Kafka was asked last; monotonic."""
    lag: int | None = None
    """Records that no committed micro-batch has handled; None: not known."""
    handled: int = 0
    """Records in committed micro-batches, since the process started."""
    handled_at_s: float = 0.0
    """When the last of these micro-batches was committed; monotonic."""
    partitions: int = 0
    """Partitions that the lane reads."""


class Watch:
    """Gather the facts of one lane from the threads that know them."""

    def __init__(
        self, *, hold: Callable[[], str | None], stop: threading.Event, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._hold = hold
        self._stop = stop
        self._clock = clock
        self._entered = Phase.STARTING
        self._is_source_up = True
        self._came_on_at = clock()
        self.progress = Progress()
        self.backlog = Backlog()

    def entered(self, phase: Phase) -> None:
        """Take note that the lane's query runs, or that it ended by itself."""
        if phase is not self._entered:  # a query that is planned anew again and again does not come on
            self._entered, self._came_on_at = phase, self._clock()

    def reached(self, positions: Positions) -> None:
        """Take note of up to where everything is committed; the same as before is no progress."""
        if positions != self.progress.positions:
            self._came_on_at = self._clock()
            self.progress = Progress(positions=positions, at_s=self._came_on_at)

    def observed(self, backlog: Backlog, *, is_source_up: bool = True) -> None:
        """Take note of how much waits. Called every few seconds: waiting that is right is not counted as quiet."""
        self.backlog, self._is_source_up = dataclasses.replace(backlog, at_s=self._clock()), is_source_up
        if not is_source_up or not should_come_on(self._phase(), self._hold(), backlog.lag):
            self._came_on_at = self._clock()

    def facts(self) -> Facts:
        """Return what is known now."""
        return Facts(
            phase=self._phase(),
            hold=self._hold(),
            lag=self.backlog.lag,
            quiet_s=self._clock() - self._came_on_at,
            is_source_up=self._is_source_up,
        )

    def _phase(self) -> Phase:
        return Phase.STOPPING if self._stop.is_set() and self._entered is not Phase.ENDED else self._entered
