"""Judge whether a lane is healthy and ready. The judgement is pure; `Watch` gathers the facts.

Runs on the driver, in `fanout archive` and in `fanout serve`. Each of the last two processes counts as one lane. Healthy means
that a restart would not help. A lane whose query has not ended is healthy while it is paused, has nothing to do, or waits for
an absent Kafka. Ready means that the lane runs, is not paused, and Kafka answers. `fanout serve` does not ask Kafka.
"""

from __future__ import annotations

import dataclasses
import enum
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Positions = Mapping[str, Mapping[int, int]]
"""Offset of the next record to handle, by topic and partition."""


SOURCE_AWAY = (
    "Kafka does not answer: records wait there, and the lane continues by itself when Kafka answers. Check the brokers and "
    "kafka.bootstrap_servers"
)
"""Reason in the answer of `/readyz` while Kafka does not answer."""
QUERY_ENDED = "the lane's query has ended, and the lane's records wait in Kafka: restart the process; the log names the cause"
"""Reason in the answers of `/healthz` and `/readyz` when a query has ended by itself."""


class QueryPhase(enum.StrEnum):
    """The phase of a lane's streaming query."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts by which one lane is judged."""

    phase: QueryPhase
    pause_reason: str | None
    """The reason why the lane is paused; None: it is not paused."""
    lag: int | None
    """Records that wait in Kafka, without those of paused topics; None: unknown."""
    stalled_s: float
    """Seconds since the last progress. Time in which the lane has no reason to make progress does not count."""
    is_source_up: bool = True
    """True if Kafka answered the last request for the lag, or was not asked yet."""
    awaits_report: bool = False
    """True if the lane's query runs in micro-batches and has not reported progress yet."""
    is_lag_old: bool = False
    """True if the lane has progressed since Kafka was last asked for the lag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeAnswer:
    """The answer to a probe of `/healthz` or `/readyz`."""

    ok: bool
    reason: str


def should_progress(facts: Facts) -> bool:
    """Return True if a lane should make progress now: it is not paused, and one of these holds.

    1. The lane starts.
    2. The lane runs, and records waited when Kafka was last asked. If the lane has progressed since, these records may be
       handled: then the lane need not progress until Kafka is asked again.
    3. The lane runs, and its query has not reported progress yet. A query reports at once, even if no records wait.
    """
    is_due = (bool(facts.lag) and not facts.is_lag_old) or facts.awaits_report
    return facts.pause_reason is None and (facts.phase is QueryPhase.STARTING or (facts.phase is QueryPhase.RUNNING and is_due))


def liveness(facts: Facts, stalled_after_s: float) -> ProbeAnswer:
    """Return the verdict on the health of one lane: not ok if a restart of the process would help.

    1. The query ended by itself: not ok.
    2. The lane should make progress (`should_progress`), and made none for more than `stalled_after_s` seconds: not ok.
    3. Anything else: ok.
    """
    if facts.phase is QueryPhase.ENDED:
        return ProbeAnswer(ok=False, reason=QUERY_ENDED)
    if should_progress(facts) and facts.stalled_s > stalled_after_s:
        problem = f"{facts.phase}, and nothing has been committed for {facts.stalled_s:.0f} s: work waits. Restart the process"
        return ProbeAnswer(ok=False, reason=problem)
    return ProbeAnswer(ok=True, reason=f"paused: {facts.pause_reason}" if facts.pause_reason else facts.phase.value)


def readiness(facts: Facts) -> ProbeAnswer:
    """Return the verdict on one lane: ok if the lane runs, is not paused, and Kafka answered the last request for the lag.

    Before the first such request, as always in `fanout serve`, Kafka counts as answering.
    """
    if facts.phase in {QueryPhase.STARTING, QueryPhase.RUNNING} and facts.pause_reason:
        return ProbeAnswer(ok=False, reason=f"paused: {facts.pause_reason}")
    if facts.phase is QueryPhase.RUNNING and not facts.is_source_up:
        return ProbeAnswer(ok=False, reason=SOURCE_AWAY)
    if facts.phase is QueryPhase.ENDED:
        return ProbeAnswer(ok=False, reason=QUERY_ENDED)
    return ProbeAnswer(ok=facts.phase is QueryPhase.RUNNING, reason=facts.phase.value)


def worst_of(verdicts: Mapping[str, ProbeAnswer]) -> ProbeAnswer:
    """Return the verdict on the process: the first verdict that is not ok; if all are ok, the first.

    The keys of `verdicts` are the names of the lanes. There must be at least one verdict.
    """
    return next((verdict for verdict in verdicts.values() if not verdict.ok), next(iter(verdicts.values())))


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a lane's streaming query."""

    positions: Positions = field(default_factory=dict)
    """The next offset of each partition: all records before it are handled. In the real-time lane, they need not be committed
    yet. Empty until the query has reported progress."""
    at_s: float = 0.0
    """When the positions last changed; monotonic seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """The lag of a lane in Kafka, and the number of records that the lane has handled."""

    at_s: float = 0.0
    """When Kafka was last asked; monotonic seconds."""
    lag: int | None = None
    """Records that wait in Kafka: those from `Progress.positions` to the ends of the partitions, without the records of paused
    topics. None: unknown."""
    handled: int = 0
    """Records that the lane has handled since the process started."""
    handled_at_s: float = 0.0
    """When `Progress.positions` last changed, by records or wake-ups; monotonic seconds."""
    partitions: int = 0
    """Number of Kafka partitions that the lane reads; 0: unknown, or none."""
    has_no_topics: bool = False
    """True if the lane is known to have no topic of events. False: the lane has a topic, or its topics are unknown."""


class Watch:
    """Gather the facts about one lane.

    Several threads use a watch. The threads of the lane's query and of its lag write the facts. The threads that answer
    `/metrics`, `/healthz` and `/readyz`, and the thread that scales the executors, read the facts.
    """

    def __init__(
        self, *, pause_reason: Callable[[], str | None], stop: threading.Event, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pause_reason = pause_reason
        self._stop = stop
        self._clock = clock
        self._phase_entered = QueryPhase.STARTING
        self._is_source_up = True
        self._progressed_at = clock()
        self.progress = Progress()
        self._waits_for: str | None = None
        self.paused_topics: Positions = {}
        """Positions of the topics that the lane leaves out while it waits for their schemas."""
        self.has_no_topics = False
        """True if the lane runs and Kafka has no topic for it. False also until the lane's topics are known."""
        self.awaits_report = False
        """True if the lane's query runs in micro-batches and has not reported progress yet. So its first micro-batch has not
        ended, or the query still starts."""
        self.backlog = Backlog()

    def enter(self, phase: QueryPhase) -> None:
        """Record that the lane's query enters a phase. A new phase counts as progress."""
        if phase is not self._phase_entered:  # a query that restarts again and again makes no progress
            self._phase_entered, self._progressed_at = phase, self._clock()

    def reach(self, positions: Positions) -> None:
        """Record the lane's `Progress.positions`. Changed positions are progress, and end a pause by `wait_for`."""
        if positions != self.progress.positions:
            self._progressed_at = self._clock()
            self.progress = Progress(positions=positions, at_s=self._progressed_at)
            self._waits_for = None

    def wait_for(self, reason: str | None) -> None:
        """Record why the lane's query does not run now; None: it runs.

        With a reason, the lane counts as paused until its positions change, or until a call with None.
        """
        self._waits_for = reason

    def pause_topics(self, positions: Positions) -> None:
        """Record the topics that the lane leaves out now, with their positions. Their records wait, and are not in the lag."""
        self.paused_topics = positions

    def observe(self, backlog: Backlog, *, is_source_up: bool = True) -> None:
        """Record the lag, and `is_source_up`: True if Kafka answered. Called every few seconds.

        No time counts as a stall while Kafka does not answer, or while the lane need not progress (`should_progress`): it is
        paused or stops, or its query has reported progress and the lag is 0 or unknown.
        """
        self.backlog, self._is_source_up = dataclasses.replace(backlog, at_s=self._clock()), is_source_up
        if not is_source_up or not should_progress(self.facts()):
            self._progressed_at = self._clock()

    def facts(self) -> Facts:
        """Return the facts about the lane as of now."""
        return Facts(
            phase=self._phase(),
            pause_reason=self._paused_for(),
            lag=self.backlog.lag,
            is_lag_old=self.backlog.at_s < self.progress.at_s,
            stalled_s=self._clock() - self._progressed_at,
            is_source_up=self._is_source_up,
            awaits_report=self.awaits_report,
        )

    def _paused_for(self) -> str | None:
        return self._pause_reason() or self._waits_for

    def _phase(self) -> QueryPhase:
        return (
            QueryPhase.STOPPING if self._stop.is_set() and self._phase_entered is not QueryPhase.ENDED else self._phase_entered
        )
