"""Decide how many executors the lanes need. Pure: the caller passes the observations and the time.

Runs on the driver. Must not import pyspark. A lane's lag is the records in Kafka that no committed micro-batch has handled. The
cases, in their order (docs/adr/0038-scale-on-what-waits.md); a lane without topics needs no executor:

1. A lane is paused, or Kafka does not answer: the number stays. The rates are measured again afterwards.
2. The lag of a lane will not drain within `drain_within_s`, and is more than the lane handles in `load.BEHIND_S`: the number
   rises in one step to the number that drains the lag in time. It is at most `max_executors`, and at most as many as have a
   partition to read. Without a measured throughput, it is at most twice the present number, and rises only when all wanted
   executors are registered and `load.SETTLE_S` has passed since the last change of executors.
3. A smaller number would have sufficed for `scale_in_after_s`: the number falls half of the way to it, and again STEP_S later.
4. Anything else: the number stays.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from delivery.stages.scaling import load

HEADROOM = 0.75
"""Share of an executor's throughput that may be in use after a reduction. While more is in use, up to 1, the number stays."""
QUIET_S = 3.0
"""A lane without a measured throughput tries fewer executors only while its lag is at most the arrivals of this many
seconds."""
STEP_S = 20.0
"""Seconds between two reductions."""


class Reason(enum.StrEnum):
    """The reason why the job wants its present number of executors."""

    LAG = "lag"
    """The number rises, because the lag of a lane would not drain in time."""
    AT_MAXIMUM = "at_maximum"
    """The lag will not drain in time, and the number is at `max_executors`."""
    AT_PARTITIONS = "at_partitions"
    """The lag will not drain in time, and more executors would have no partition to read."""
    IDLE = "idle"
    """The number falls, because fewer executors would have sufficed for `scale_in_after_s`."""
    ENOUGH = "enough"
    """The number suffices. No smaller number has sufficed for `scale_in_after_s`, or the number fell less than STEP_S ago."""
    UNKNOWN = "unknown"
    """The number suffices for the known lags, and the lag of at least one lane is unknown."""
    HOLDING = "holding"
    """The number stays, because a lane is paused."""
    KAFKA_AWAY = "kafka_away"
    """The number stays, because Kafka does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The bounds and times of scaling, from the settings of the area `scaling`, and the size of an executor."""

    min_executors: int
    max_executors: int
    cores: int
    """Tasks that one executor runs at once, from Spark's settings."""
    drain_within_s: float = 60.0
    """Seconds in which the lag of each lane must drain."""
    scale_in_after_s: float = 60.0
    """Seconds for which a smaller number must have sufficed before the number falls."""

    def bounded(self, number: float) -> int:
        """Return `number`, rounded down, but at least `min_executors` and at most `max_executors`."""
        return int(min(max(number, self.min_executors), self.max_executors))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingState:
    """The state that one decision leaves for the next."""

    wanted: int
    """The number of executors that is wanted now."""
    lanes: Mapping[str, load.Measured] = field(default_factory=dict)
    """The measurements of each lane."""
    sufficed: tuple[tuple[float, int], ...] = ()
    """Pairs (monotonic seconds, smallest number of executors that would have sufficed then), oldest first. They are the pairs
    of the last `scale_in_after_s` seconds, and before these the newest older pair, if there is one."""
    fell_at_s: float = -math.inf
    """When the wanted number last fell; monotonic seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingDecision:
    """The wanted number of executors, and its reason."""

    wanted: int
    reason: Reason
    lane: str
    """The lane that needs most executors; with HOLDING and KAFKA_AWAY the first lane to which the reason applies."""
    drain_s: float
    """Seconds until the registered executors have drained the lag of `lane`; infinite: never, or unknown. 0 also for a lane
    that has no measured throughput and is not behind."""
    state: ScalingState


def decide(
    state: ScalingState, seen: Mapping[str, load.Load], policy: Policy, *, executors: int, now_s: float
) -> ScalingDecision:
    """Return the decision after one more observation: the load `seen` of each lane, and the number of registered `executors`.

    `now_s` is the time of the observation, in monotonic seconds.
    """
    kept = policy.bounded(state.wanted)
    for reason, is_so in ((Reason.KAFKA_AWAY, _is_away), (Reason.HOLDING, _is_paused)):
        if lane := next((name for name, lane_load in seen.items() if is_so(lane_load)), None):
            paused = {name: dataclasses.replace(known, window=(), measuring_since=None) for name, known in state.lanes.items()}
            after = dataclasses.replace(state, wanted=kept, lanes=paused, sufficed=())
            return ScalingDecision(wanted=kept, reason=reason, lane=lane, drain_s=math.inf, state=after)
    lanes = {name: state.lanes.get(name, load.Measured()).observed(newest, executors) for name, newest in seen.items()}
    needs = {name: _need(known, kept, policy, executors) for name, known in lanes.items()}
    lane = max(needs, key=lambda name: needs[name].urgency)
    if policy.bounded(needs[lane].urgency[0]) <= kept:  # the number does not rise: report a lane that is late, if any
        lane = max(needs, key=lambda name: (needs[name].more > kept, needs[name].drain_s))
    enough = max(need.sufficient for need in needs.values())
    begins_s = now_s - policy.scale_in_after_s
    sufficed = (*((at_s, number) for at_s, number in state.sufficed if at_s > begins_s), (now_s, enough))
    older = [(at_s, number) for at_s, number in state.sufficed if at_s <= begins_s]
    after = ScalingState(wanted=kept, lanes=lanes, sufficed=(*older[-1:], *sufficed), fell_at_s=state.fell_at_s)
    wanted, reason = _number(needs[lane], after, policy, now_s=now_s)
    if reason is Reason.ENOUGH and any(known.lag is None and not known.window[-1].has_no_topics for known in lanes.values()):
        reason = Reason.UNKNOWN
    after = dataclasses.replace(after, wanted=wanted, fell_at_s=now_s if wanted < kept else state.fell_at_s)
    return ScalingDecision(wanted=wanted, reason=reason, lane=lane, drain_s=needs[lane].drain_s, state=after)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Need:
    """The numbers of executors that one lane needs, before the bounds of the policy, and the time to drain the lane's lag."""

    drain_s: float
    """Seconds until the registered executors have drained the lane's lag."""
    more: int
    """Number of executors that drains the lag in time. The present wanted number, if it suffices or the lag is unknown."""
    useful: int
    """Largest number of executors that all have a partition. The present wanted number, if the partitions are unknown."""
    sufficient: int
    """Number of executors that would suffice with only HEADROOM of their throughput in use."""

    @property
    def urgency(self) -> tuple[int, float]:
        return min(self.more, self.useful), self.drain_s


def _need(known: load.Measured, kept: int, policy: Policy, executors: int) -> _Need:
    newest = known.window[-1]
    if newest.has_no_topics:
        return _Need(drain_s=0.0, more=kept, useful=0, sufficient=0)
    useful = math.ceil(newest.partitions / policy.cores) if newest.partitions else kept
    if known.lag is None:
        return _Need(drain_s=math.inf, more=kept, useful=max(useful, kept), sufficient=kept)
    each = known.per_executor
    if each is None:
        return _unmeasured(known, kept, useful, policy, executors)
    wanted_per_s = known.arrival_per_s + known.lag / policy.drain_within_s
    drain_s = _drain_s(known.lag, kept * each - known.arrival_per_s)
    is_late = drain_s > policy.drain_within_s and known.lag > load.BEHIND_S * kept * each
    return _Need(
        drain_s=_drain_s(known.lag, executors * each - known.arrival_per_s),
        more=math.ceil(wanted_per_s / each) if is_late else kept,
        useful=useful,
        sufficient=max(1, math.ceil((known.arrival_per_s / HEADROOM + known.lag / policy.drain_within_s) / each)),
    )


def _unmeasured(known: load.Measured, kept: int, useful: int, policy: Policy, executors: int) -> _Need:
    """Return the need of a lane without a measured throughput.

    1. The lane is not behind: the present number suffices. While the lag is at most the arrivals of QUIET_S, a smaller number
       counts as sufficient, too. This number follows from the arrivals and `Measured.proven`, and is 0 if `proven` is unknown.
       It is at least one below the present number.
    2. The lane is behind, so it handles as much as it can. The records that it handles a second stand for its throughput.
    """
    lag, arrival_per_s = known.lag or 0, known.arrival_per_s
    if not known.is_behind:
        sufficient = math.ceil(arrival_per_s / known.proven) if known.proven else 0
        is_quiet = lag <= QUIET_S * arrival_per_s
        return _Need(drain_s=0.0, more=kept, useful=useful, sufficient=min(sufficient, kept - 1) if is_quiet else kept)
    drain_s = _drain_s(lag, known.handled_per_s - arrival_per_s)
    each = known.handled_per_s / max(executors, 1)
    needed = (arrival_per_s + lag / policy.drain_within_s) / each if each else math.inf
    # Wait until the requested executors have registered and work.
    is_settled = executors >= kept and known.window[-1].at_s - known.changed_at_s >= load.SETTLE_S
    is_late = drain_s > policy.drain_within_s and is_settled
    more = math.ceil(min(needed, 2 * kept)) if is_late else kept
    return _Need(drain_s=drain_s, more=max(more, kept), useful=useful, sufficient=kept)


def _number(need: _Need, state: ScalingState, policy: Policy, *, now_s: float) -> tuple[int, Reason]:
    kept, more = state.wanted, min(need.more, need.useful)
    if policy.bounded(more) > kept:
        return policy.bounded(more), Reason.LAG
    if need.more > kept:
        return kept, Reason.AT_MAXIMUM if kept >= policy.max_executors else Reason.AT_PARTITIONS
    sufficed = policy.bounded(max(number for _, number in state.sufficed))
    is_long = state.sufficed[0][0] <= now_s - policy.scale_in_after_s
    if is_long and sufficed < kept and now_s - state.fell_at_s >= STEP_S:
        return kept - math.ceil((kept - sufficed) / 2), Reason.IDLE
    return kept, Reason.ENOUGH


def _drain_s(lag: int, spare_per_s: float) -> float:
    if not lag:
        return 0.0
    return lag / spare_per_s if spare_per_s > 0 else math.inf


def _is_away(seen: load.Load) -> bool:
    return not seen.is_source_up


def _is_paused(seen: load.Load) -> bool:
    return seen.pause_reason is not None
