"""Simulate one lane on executors whose number follows the decisions of `delivery.stages.scaling`.

Pure: no Spark, no Kafka, no clock. The same seed gives the same history. A micro-batch takes a fixed time, plus the time of
all its events divided by the number of executors. The simulation also has commits of whole micro-batches, start times of
pods, and new plans of queries.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from delivery.stages.scaling import decision, load

TICK_S = 0.5
"""Seconds of a step of the simulation."""
LANE = "direct"
"""Name of the simulated lane."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Durations and throughput of the simulated lane. `load_tests.scaling.simulated_days` has measured values and sources."""

    per_executor: float
    """Events a second that one executor handles."""
    micro_batch_s: float
    """Seconds of a micro-batch without events."""
    start_s: tuple[float, float]
    """Shortest and longest time in seconds until a requested executor is registered."""
    plan_s: float
    """Seconds for a new plan of the lane's query, after each change of the number of executors."""
    jitter: float = 0.1
    """Share by which the time for the events of a micro-batch varies, up and down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """State of the cluster at one decision."""

    at_s: float
    """Seconds since the beginning of the simulation."""
    per_s: float
    """Load, events a second."""
    published: int
    """Records that have arrived so far."""
    committed: int
    """Records of committed micro-batches so far."""
    executors: int
    """Registered executors."""
    decided: decision.ScalingDecision

    @property
    def lag(self) -> int:
        """Records that no committed micro-batch has handled."""
        return self.published - self.committed


class Cluster:
    """One lane, its topic, and the executors.

    `load_per_s` returns the load, in events a second, for a time in seconds since the beginning. A micro-batch has at most
    `at_most` events for each executor.
    """

    def __init__(
        self, costs: Costs, load_per_s: Callable[[float], float], *, partitions: int, at_most: int, executors: int, seed: int
    ) -> None:
        self._costs, self._load_per_s = costs, load_per_s
        self._partitions, self._at_most = partitions, at_most
        self._rng = random.Random(seed)
        self._published = 0.0
        self._committed = 0
        self._committed_at_s = 0.0
        self._under_way = 0
        self._ends_at = 0.0
        self._planned_for = executors
        self._starting: list[float] = []
        self.executors = executors
        self.now_s = 0.0

    @property
    def published(self) -> int:
        """Records that have arrived."""
        return int(self._published)

    @property
    def lag(self) -> int:
        """Records that no committed micro-batch has handled."""
        return self.published - self._committed

    def seen(self) -> load.Load:
        """Return the present load of the lane, as the driver passes it to a decision."""
        return load.Load(
            at_s=self.now_s,
            lag=self.lag,
            handled=self._committed,
            handled_at_s=self._committed_at_s,
            partitions=self._partitions,
        )

    def want(self, number: int) -> None:
        """Request this number of executors. New executors start with a delay, surplus executors end at once."""
        while self.executors + len(self._starting) < number:
            self._starting.append(self.now_s + self._rng.uniform(*self._costs.start_s))
        while self.executors + len(self._starting) > number and self._starting:
            self._starting.pop()
        self.executors = min(self.executors, number)

    def advance(self, seconds: float) -> None:
        """Simulate the next seconds: arrivals, starts of executors, and commits."""
        until = self.now_s + seconds
        while self.now_s < until:
            self.now_s += TICK_S
            self._published += self._load_per_s(self.now_s) * TICK_S
            self.executors += sum(at_s <= self.now_s for at_s in self._starting)
            self._starting = [at_s for at_s in self._starting if at_s > self.now_s]
            while self._ends_at <= self.now_s:
                self._committed, self._committed_at_s = self._committed + self._under_way, self._ends_at
                self._begin()

    def _begin(self) -> None:
        costs, began = self._costs, max(self._ends_at, self.now_s - TICK_S)
        if self._planned_for != self.executors:
            began, self._planned_for = began + costs.plan_s, self.executors
        self._under_way = min(self.lag, self._at_most * self._planned_for)
        spread = self._rng.uniform(1 - costs.jitter, 1 + costs.jitter)
        took_s = costs.micro_batch_s + spread * self._under_way / (costs.per_executor * self._planned_for)
        self._ends_at = began + took_s


def history(cluster: Cluster, policy: decision.Policy, *, seconds: float, every_s: float) -> Iterator[Moment]:
    """Simulate `seconds`, with a decision every `every_s`; yield the state of the cluster at each decision."""
    state = decision.ScalingState(wanted=policy.bounded(cluster.executors))
    for _ in range(math.ceil(seconds / every_s)):
        cluster.advance(every_s)
        seen = {LANE: cluster.seen()}
        decided = decision.decide(state, seen, policy, executors=cluster.executors, now_s=cluster.now_s)
        state = decided.state
        yield Moment(
            at_s=cluster.now_s,
            per_s=cluster._load_per_s(cluster.now_s),  # noqa: SLF001  # the cluster's own
            published=cluster.published,
            committed=cluster.published - cluster.lag,
            executors=cluster.executors,
            decided=decided,
        )
        cluster.want(decided.wanted)
