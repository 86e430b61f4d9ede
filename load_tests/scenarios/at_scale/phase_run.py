"""Run the phases of a scenario: publish at a rate over time, disturb the receiver, change the registry.

An event is undelivered from its publishing until the receiver has accepted it. The machine carries a rate if the undelivered
events do not keep growing.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from load_tests.harness import platform, receiver, traffic
from load_tests.scenarios.at_scale import churn, cost_model, plan, timeline
from load_tests.scenarios.at_scale.population import ZipfPopulation
from load_tests.scenarios.at_scale.sampling import Sample, Sampler

TICKS_PER_S = 10
"""Portions a second in which events are published."""
FEW = 500
"""Undelivered events that the bounds MAY_GROW_S and `Capacity.overload_s` permit in addition to the events of their seconds. At
a small rate, the events of some seconds are fewer than the events of one micro-batch."""
MAY_GROW_S = 1.0
"""Largest growth of the undelivered events, from the first to the last third of a phase, at which the rate counts as carried.
The bound is the number of events that are published in these seconds, plus FEW."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRun:
    """The measurement of one phase."""

    name: str
    seconds: int
    """Planned duration."""
    numbers: range
    """Numbers of the events that the phase published."""
    first: Sample
    """Sample at the beginning."""
    last: Sample
    """Sample after the last event was published."""
    took_s: float
    """Seconds until the last event of the phase was published. Longer than `seconds` if the publisher was late."""
    samples: Sequence[Sample]
    """All samples from `first` to `last`."""
    is_cut: bool = False
    """True if the phase ended early, because the platform or the publisher could not keep up."""
    changes: Sequence[churn.Change] = field(default_factory=list)
    """Changes of the registry in this phase."""

    @property
    def per_s(self) -> float:
        """Return the deliveries a second in this phase."""
        return (self.last.delivered - self.first.delivered) / (self.last.at_s - self.first.at_s)

    @property
    def cores(self) -> dict[str, float]:
        """Return the cores by process: CPU seconds a second."""
        took_s = self.last.at_s - self.first.at_s
        return {role: round((used - self.first.cpu_s[role]) / took_s, 3) for role, used in self.last.cpu_s.items()}

    @property
    def is_carried(self) -> bool:
        """Return True if the phase did not end early, and the undelivered events did not keep growing."""
        return not self.is_cut and not is_growing(self.samples, len(self.numbers) / self.took_s)

    def document(self, ages: Sequence[float], due: Sequence[int], population: ZipfPopulation) -> dict[str, Any]:
        """Return the figures of the phase as JSON values.

        By event number, `ages` has the age at first arrival in ms, and `due` has the endpoint.
        """

        def latency_ms(is_counted: Callable[[int], bool]) -> dict[str, int]:
            return timeline.percentiles_ms(ages, self.numbers, lambda number: is_counted(due[number]))

        changed = {}
        if self.changes:
            changed = {
                "changes_per_s": round(len(self.changes) / (self.last.at_s - self.first.at_s), 1),
                "registry_behind_s": timeline.behind_s(self.samples, self.changes),
            }
        return {
            "seconds": round(self.took_s, 1),
            "published": len(self.numbers),
            "published_share": round(min(1.0, self.seconds / self.took_s), 3),
            "deliveries_per_s": round(self.per_s, 1),
            "direct_latency_ms": latency_ms(lambda endpoint: not population.is_batch(endpoint)),
            "others_latency_ms": latency_ms(population.is_other),
            "batch_age_ms": latency_ms(population.is_batch),
            "cores": self.cores,
            "cpu_us_per_delivery": cost_model.us_per_delivery(self.cores, self.per_s),
            "undelivered_max": max((sample.undelivered for sample in self.samples), default=0),
            "lag_max": {
                lane: round(max(sample.lag.get(lane, 0.0) for sample in self.samples))
                for lane in sorted({lane for sample in self.samples for lane in sample.lag})
            },
            **changed,
        }


@dataclass(slots=True, kw_only=True)
class Runner:
    """Run phases one after another on a running platform."""

    scenario: plan.ScaleScenario
    servers: platform.Platform
    customers: receiver.Receiver
    sent: traffic.Traffic
    job: platform.Job
    sampler: Sampler
    population: ZipfPopulation
    say: Callable[[str], None]
    marks: list[timeline.Mark] = field(default_factory=list)
    """One mark for each portion of published events."""

    def run(self, phase: plan.PlannedPhase, before: float, capacity: plan.Capacity | None = None) -> PhaseRun:
        """Run a phase. Its ramp starts at `before`, the previous phase's factor on the scenario's rate.

        With `capacity`, an overload ends the phase early. Raise LocalStackError if the job ends meanwhile.
        """
        self.say(f"phase {phase.name}: {self.scenario.per_s * phase.factor:,.0f} events a second for {phase.seconds} s")
        self.customers.disturb(is_disturbed=phase.is_disturbed)
        changes: list[churn.Change] = []
        with contextlib.ExitStack() as context:
            if phase.changes_per_s:
                changing = churn.Churn(
                    config=self.servers.config,
                    per_s=phase.changes_per_s,
                    spare=self.population.spare,
                    now_s=self.sampler.now_s,
                )
                changes = context.enter_context(changing).changes
            first, began = self.sampler.take(), time.monotonic()
            numbers, is_cut = self._publish(phase, before, capacity)
            took_s, last = time.monotonic() - began, self.sampler.take()
        self.customers.disturb(is_disturbed=False)
        samples = [sample for sample in self.sampler.samples if first.at_s <= sample.at_s <= last.at_s]
        return PhaseRun(
            name=phase.name,
            seconds=phase.seconds,
            numbers=numbers,
            first=first,
            last=last,
            took_s=took_s,
            samples=samples,
            is_cut=is_cut,
            changes=changes,
        )

    def drain(self) -> float:
        """Wait until the receiver has all events; return the seconds, or infinity when events are missing after `drain_s`.

        Raise LocalStackError if the job ends meanwhile.
        """
        began, due = time.monotonic(), len(self.sent.due)
        while self.customers.count < due:
            if time.monotonic() - began > self.scenario.drain_s:
                missing = due - self.customers.count
                self.say(f"{missing:,} events have not arrived after {self.scenario.drain_s} s\n{self.job.condition()}")
                return float("inf")
            self._require_job()
            time.sleep(0.05)
        return time.monotonic() - began

    def _publish(self, phase: plan.PlannedPhase, before: float, capacity: plan.Capacity | None) -> tuple[range, bool]:
        """Publish the events of a phase; return their numbers, and True if an overload ended the phase early."""
        first, began, owed = len(self.sent.due), time.monotonic(), 0.0
        is_cut = False
        for tick in range(phase.seconds * TICKS_PER_S):
            per_s = self.scenario.per_s * plan.rate(before, phase, tick / TICKS_PER_S)
            self.marks.append(timeline.Mark(self.sampler.now_s(), len(self.sent.due)))
            owed += per_s / TICKS_PER_S
            self.sent.publish(int(owed), hot=phase.hot, is_flushed=False)
            owed -= int(owed)
            late_s = time.monotonic() - began - (tick + 1) / TICKS_PER_S
            if capacity is not None and self._is_overloaded(capacity, per_s, late_s):
                is_cut = True
                break
            self._require_job()
            time.sleep(max(0.0, -late_s))
        self.sent.flush()
        return range(first, len(self.sent.due)), is_cut

    def _is_overloaded(self, capacity: plan.Capacity, per_s: float, late_s: float) -> bool:
        undelivered = len(self.sent.due) - self.customers.count
        return late_s > capacity.publisher_late_s or undelivered > capacity.overload_s * per_s + FEW

    def _require_job(self) -> None:
        if self.job.has_ended():  # raises, with the end of the job's log
            self.job.wait_until(lambda: False, within_s=0, goal="the job")


def is_growing(samples: Sequence[Sample], per_s: float) -> bool:
    """Return True if the mean of the undelivered events grew, from first to last third of the samples, beyond the bound.

    The bound is MAY_GROW_S seconds of the rate `per_s`, plus FEW events. With fewer than three samples, return False.
    """
    third = len(samples) // 3
    if not third:
        return False
    before, after = (statistics.fmean(sample.undelivered for sample in part) for part in (samples[:third], samples[-third:]))
    return after - before > MAY_GROW_S * per_s + FEW
