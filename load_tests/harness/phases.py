"""Compare two phases of one run: events at a steady pace, first undisturbed, then beside a load or with a hanging endpoint.

1. The job starts. Some events warm it up, then some seconds of the first phase, because a young JVM is slower.
2. Events come at a steady pace, with the parameters of the first phase.
3. Events come at a steady pace, with the parameters of the second phase.
4. Deliveries that still wait are delivered. Nothing may be lost.

Both phases are in one run, because figures of two runs on a shared machine cannot be compared.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from load_tests.harness import figures, platform, receiver, stage, traffic, usage

SETTINGS = {"spark.master": "local[4,4]", "retry.shards": "2"}
"""Settings of the job: two task slots for each of the two lanes, as an operator sets them, so that no lane waits for the other.
The retry lane has as many shards as slots: a shard takes 0.06 CPU seconds of each micro-batch."""
LANES = "direct,retry"
IDLE_S = 30
"""Seconds within which all events of a phase must have arrived, counted from the publishing of the phase's last event."""
RECOVERY_S = 120
"""Seconds within which the deliveries that wait for a hanging endpoint must have arrived after both phases."""


class Scene(NamedTuple):
    """The servers, the receiver of all customers, the traffic and the running job. Each phase gets the same scene."""

    servers: platform.Platform
    customers: receiver.Receiver
    sent: traffic.Traffic
    job: platform.Job
    say: Callable[[str], None]


class BesideLoad(Protocol):
    """A load beside the events of a phase."""

    def reset(self) -> None:
        """Reset the figures, so that they cover the time from now on. Called when the measurement of the phase begins."""

    def figures(self) -> dict[str, Any]:
        """Return the figures of the load. Called once, at the end of the phase."""


class Nothing:
    """No load beside the events."""

    def reset(self) -> None:
        """Do nothing: there are no counters."""

    def figures(self) -> dict[str, Any]:
        """Return no figures."""
        return {}


@contextlib.contextmanager
def nothing(_: Scene) -> Iterator[BesideLoad]:
    """Add no load to a phase."""
    yield Nothing()


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPhase:
    """One phase: its events, and the load beside them."""

    per_s: int
    """Events a second."""
    hot: float = 0.0
    """Share of the events that are due to the hot endpoint, in addition to its even share of the other events."""
    poison_per_s: int = 0
    """Additional records a second that are not events."""
    hangs: int | None = None
    """Endpoint that accepts requests and never answers, until the end of the phase."""
    around: Callable[[Scene], contextlib.AbstractContextManager[BesideLoad]] = nothing
    """Context in which the load beside the events runs."""
    settle_s: int = 0
    """Seconds of the phase before its measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Parameters of a comparison: both phases, and the parameters that they share."""

    customers: traffic.Customers
    first: MeasuredPhase
    second: MeasuredPhase
    seconds: int
    """Measured seconds of each phase."""
    warm_up: int
    """Events of the warm-up."""
    seed: int
    settings: Mapping[str, str]
    """Settings of the job (`area.field`)."""
    topics: traffic.Topics = traffic.TOPICS


class Measured(NamedTuple):
    """Measurement of a phase."""

    numbers: range
    """Numbers of the measured events."""
    used: usage.Usage
    """CPU of the job from the first measured event to the last delivery."""
    took_s: float
    """Seconds from the first measured event to the last delivery, except deliveries to a hanging endpoint."""
    left: int
    """Deliveries of the phase that wait for a hanging endpoint."""
    beside: Mapping[str, Any]
    """Figures of the load beside the events."""


class Compared(NamedTuple):
    """Measurements of both phases."""

    first: Measured
    second: Measured
    recovered_s: float
    """Seconds from the end of the second phase until the deliveries that waited for a hanging endpoint had arrived."""
    report: receiver.ReceiverReport
    outcome: Mapping[str, Any]
    """Figures of the whole run, as JSON values."""


def compare(plan: Plan, terms: stage.Terms) -> Compared:
    """Run both phases on one platform, and return their measurements."""
    chosen = {**plan.settings, **terms.overrides}
    with terms.stage(plan.customers, seed=plan.seed, topics=plan.topics) as (servers, customers, sent):
        sent.publish(plan.warm_up)
        with servers.job(LANES, chosen) as job:
            scene = Scene(servers, customers, sent, job, terms.say)
            warm_s = _wait_for_all(scene, platform.WORK_TIMEOUT_S, "the warm-up")
            terms.say(f"warm after {warm_s:.1f} s")
            first = _measured(scene, plan.first, plan.seconds, "the first phase")
            second = _measured(scene, plan.second, plan.seconds, "the second phase")
            ended_s = job.elapsed_s()
            recovered_s = _wait_for_all(scene, RECOVERY_S, "the waiting deliveries of both phases") - ended_s
            job.meter.read()
        report = customers.report()
        reconciled = figures.reconciled(servers.account(), report)
        poison = figures.poison(sent.poison, servers.rejected()) if sent.poison else {}
    outcome = {
        **figures.delivered(report, sent.due),
        **poison,
        "reconciled": reconciled,
        "peak_rss_mb": {role: round(peak) for role, peak in job.meter.peak_mb().items()},
        "settings": chosen,
    }
    return Compared(first, second, recovered_s, report, outcome)


def _measured(scene: Scene, phase: MeasuredPhase, seconds: int, name: str) -> Measured:
    """Run a phase until all deliveries have arrived, except deliveries to a hanging endpoint; return its measurement."""
    sent, job = scene.sent, scene.job
    scene.customers.hang(phase.hangs)
    with phase.around(scene) as beside:
        settling = _publish(sent, phase, phase.settle_s)
        beside.reset()
        before, began_s = job.meter.read(), job.elapsed_s()
        numbers = _publish(sent, phase, seconds)
        left = sum(sent.due[number] == phase.hangs for number in range(settling.start, numbers.stop))
        took_s = _wait_for_all(scene, IDLE_S, f"the deliveries of {name}", less=left) - began_s
        used, beside_figures = job.meter.read().since(before), beside.figures()
    scene.say(f"{name} is delivered; {left} events wait for a hanging endpoint")
    scene.customers.hang(None)
    return Measured(numbers, used, took_s, left, beside_figures)


def _publish(sent: traffic.Traffic, phase: MeasuredPhase, for_s: int) -> range:
    return sent.publish_steadily(phase.per_s, for_s, hot=phase.hot, poison_per_s=phase.poison_per_s)


def _wait_for_all(scene: Scene, within_s: float, goal: str, *, less: int = 0) -> float:
    """Wait until all published records, minus `less`, are delivered or rejected; return the seconds since the job's start."""
    due, poison = len(scene.sent.due) - less, scene.sent.poison.total()

    def is_done() -> bool:
        if scene.customers.count < due:
            return False
        return not poison or scene.job.metric("fanout_rejected_total", lane="direct") >= poison

    return scene.job.wait_until(is_done, within_s=within_s, goal=goal)
