"""Two phases of one run: events at a steady pace, and so again beside something else. How much longer do they wait?

1. The job is started; some events warm it up, and then some seconds of the first phase: a young JVM is slower, and what comes
   first would look worse than it is.
2. Events come at a steady pace, as the first phase says.
3. The same again, as the second phase says.
4. What was left waiting is delivered. Nothing may be lost.

Both of the phases that are compared are in one run, because figures of two runs on a shared machine cannot be compared.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from load_tests.harness import figures, platform, receiver, stage, traffic, usage

SETTINGS = {"spark.master": "local[4,4]", "retry.shards": "2"}
"""Of the job: task slots for each of the two lanes, as an operator would give them, so that neither waits for the other's; as
many shards as each lane has slots (one takes 0.06 CPU seconds of each micro-batch of that lane)."""
LANES = "direct,retry"
IDLE_S = 30
RECOVERY_S = 120


class Scene(NamedTuple):
    """What is there while the job runs."""

    servers: platform.Platform
    customers: receiver.Receiver
    sent: traffic.Traffic
    job: platform.Job
    say: Callable[[str], None]


class Beside(Protocol):
    """Something that goes on during a phase."""

    def begin_anew(self) -> None:
        """Count from now on: what came before was not to be measured."""

    def figures(self) -> dict[str, Any]:
        """Return what it was. Called once, at the end of the phase."""


class Nothing:
    """Nothing goes on."""

    def begin_anew(self) -> None:
        """Have nothing to count."""

    def figures(self) -> dict[str, Any]:
        """Return no figures."""
        return {}


@contextlib.contextmanager
def nothing(_: Scene) -> Iterator[Beside]:
    """Have nothing around a phase."""
    yield Nothing()


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """What comes, and what goes on meanwhile."""

    per_s: int
    """Events a second."""
    hot: float = 0.0
    """Their share that is due to the hot endpoint besides."""
    poison_per_s: int = 0
    """Records that are no events, which come besides."""
    hangs: int | None = None
    """An endpoint that takes requests and never answers, until the phase is over."""
    around: Callable[[Scene], contextlib.AbstractContextManager[Beside]] = nothing
    """What else goes on."""
    settle_s: int = 0
    """Seconds of all this before it is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Both phases, and what is the same in them."""

    customers: traffic.Customers
    first: Phase
    second: Phase
    seconds: int
    """Of each of them."""
    warm_up: int
    """Events before those that are measured."""
    seed: int
    settings: Mapping[str, str]
    topics: traffic.Topics = traffic.TOPICS


class Measured(NamedTuple):
    """What came of a phase."""

    numbers: range
    """Of its events."""
    used: usage.Usage
    took_s: float
    """Until the last delivery that was waited for."""
    left: int
    """How many deliveries an endpoint that hangs has kept waiting."""
    beside: Mapping[str, Any]
    """What went on beside it, in figures."""


class Compared(NamedTuple):
    """What came of both."""

    first: Measured
    second: Measured
    recovered_s: float
    """How long it took to deliver what had been left."""
    report: receiver.Report
    outcome: Mapping[str, Any]
    """Figures of the whole run."""


def compare(plan: Plan, terms: stage.Terms) -> Compared:
    """Run both phases."""
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
            recovered_s = _wait_for_all(scene, RECOVERY_S, "what was left of both phases") - ended_s
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


def _measured(scene: Scene, phase: Phase, seconds: int, name: str) -> Measured:
    """Run a phase, until all have their deliveries but an endpoint that hangs."""
    sent, job = scene.sent, scene.job
    scene.customers.hang(phase.hangs)
    with phase.around(scene) as beside:
        settling = _publish(sent, phase, phase.settle_s)
        beside.begin_anew()
        before, began_s = job.meter.read(), job.elapsed_s()
        numbers = _publish(sent, phase, seconds)
        left = sum(sent.due[number] == phase.hangs for number in range(settling.start, numbers.stop))
        took_s = _wait_for_all(scene, IDLE_S, f"the deliveries of {name}", less=left) - began_s
        used, told = job.meter.read().since(before), beside.figures()
    scene.say(f"{name} has its deliveries; {left} events wait for an endpoint that hangs")
    scene.customers.hang(None)
    return Measured(numbers, used, took_s, left, told)


def _publish(sent: traffic.Traffic, phase: Phase, for_s: int) -> range:
    return sent.publish_steadily(phase.per_s, for_s, hot=phase.hot, poison_per_s=phase.poison_per_s)


def _wait_for_all(scene: Scene, within_s: float, what: str, *, less: int = 0) -> float:
    """Wait until all that was published is delivered or rejected, `less` some; return the seconds since the job's start."""
    due, poison = len(scene.sent.due) - less, scene.sent.poison.total()

    def is_done() -> bool:
        if scene.customers.count < due:
            return False
        return not poison or scene.job.metric("fanout_rejected_total", lane="direct") >= poison

    return scene.job.wait_until(is_done, within_s=within_s, what=what)
