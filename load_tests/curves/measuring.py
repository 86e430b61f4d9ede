"""Measure the values of an axis that share one job, on the real platform, at full speed.

1. Kafka, Postgres and the receiver start, the endpoints and subscriptions of all values are registered, and the job starts.
2. WARM_UP_PASSES passes over each value warm the job up. They are not measured.
3. Measured passes follow, over the values in ascending and then in descending order. So a job that becomes faster with time
   favours no value.
4. In a pass, events are published between two triggers. One micro-batch delivers the events while the publisher is idle.
5. The topics and the receiver are compared, delivery by delivery.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from delivery import errors
from load_tests.curves import bulk_load, local_cluster
from load_tests.curves.axes import Axis
from load_tests.curves.shape_registry import CurvePopulation
from load_tests.harness import figures, machine_speed, platform, receiver, stage, traffic, usage
from load_tests.scenarios import direct
from subscriptions_db.postgres import connect

LANE = "direct"
SEED = 1
WARM_UP_PASSES = 2
"""Unmeasured passes over each value of a job, because a young JVM is slower."""
AFTER_TRIGGER_S = 0.2
"""Seconds from a trigger to the first event of a pass."""
POLL_S = 0.01
"""Seconds from one look at the receiver's count to the next, in `Command.wait_until`."""
MB = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """The measurement of one pass over one value."""

    value: int
    events: int
    deliveries: int
    took_s: float
    """Seconds from the first arrival to the last arrival. The value is up to twice POLL_S too long."""
    used: usage.Usage
    """CPU of the job, from before the first event of the pass was published until all its events were committed."""
    micro_batches: int
    """Micro-batches of the pass."""
    slowdown: float
    """Slowdown of the machine, the mean of before and after the pass (load_tests.harness.machine_speed)."""

    @property
    def per_s(self) -> float:
        """Return the deliveries a second between the first arrival and the last one."""
        return self.deliveries / self.took_s


@dataclass(slots=True, kw_only=True)
class JobRun:
    """Figures of one job, filled in while the job runs. So an interrupted run leaves the figures measured so far."""

    values: tuple[int, ...]
    passes: list[Pass] = field(default_factory=list)
    """Measured passes in their order."""
    registered_s: float | None = None
    """Seconds to start the servers and to register all rows."""
    ready_s: float | None = None
    """Seconds from the start of the job until it was ready."""
    broadcast_mb: float | None = None
    """Size of the registry's broadcast."""
    peak_mb: Mapping[str, int] = field(default_factory=dict)
    """Role → peak resident size, in MB, of the largest process with this role."""
    checks: Mapping[str, Any] | None = None
    """Numbers of lost, repeated, unexpected and unverified deliveries, and `reconciled`: True if `fanout reconcile` found no
    fault. None: the job was interrupted, or has a `problem`."""
    problem: str | None = None
    """Reason for which the values were not measured. None: the values were measured, or the job was interrupted."""


class _Scene(NamedTuple):
    job: platform.Job
    customers: receiver.Receiver
    sent: traffic.Traffic
    population: CurvePopulation
    fan_out: list[int]
    """Number of endpoints of each event, by the event's number."""


def run(axis: Axis, found: JobRun, deliveries: int, terms: stage.Terms) -> None:
    """Measure the values of `found` in one job, with about `deliveries` deliveries in a pass; write the figures into `found`.

    If the job is not ready in time, `found.problem` says so. Raise LocalStackError if the job ends, or a pass takes too long.
    """
    population = CurvePopulation(shapes=[axis.shape(value) for value in found.values])
    with contextlib.ExitStack() as context:
        executors = population.shapes[0].executors
        placed = context.enter_context(local_cluster.settings(executors)) if executors else {}
        chosen = {
            **direct.SETTINGS,
            "logs.format": "json",
            "spark.trigger_interval_s": str(axis.trigger_s),
            **axis.settings,
            **placed,
            **terms.overrides,
        }
        began_s = time.monotonic()
        servers, customers, sent = context.enter_context(
            terms.stage(population, seed=SEED, topics=traffic.Topics(partitions=1))
        )
        _load_in_bulk(servers, population)
        found.registered_s = time.monotonic() - began_s
        with servers.job(LANE, chosen) as job:
            scene = _Scene(job, customers, sent, population, [])
            if _is_ready(axis, found, job):
                _measure(axis, found, deliveries, scene, terms.say)
            found.peak_mb = {role: round(peak) for role, peak in job.meter.peak_mb().items()}
        if found.problem is None:
            report = customers.report()
            reconciled = figures.reconciled(servers.account(), report)
            found.checks = {**figures.delivered(report, sent.due, scene.fan_out), "reconciled": reconciled["holds"]}


def _load_in_bulk(servers: platform.Platform, population: CurvePopulation) -> None:
    for number, shape in enumerate(population.shapes):
        if shape.subscriptions is not None:
            names = [population.event_types[type_number] for type_number in population.types_of(number)]
            with connect.connect(servers.config.database) as connection:
                bulk_load.load(connection, shape, names)


def _is_ready(axis: Axis, found: JobRun, job: platform.Job) -> bool:
    """Wait until the job is ready. Return False, with the problem in `found`, if that takes too long.

    Registration and readiness together may take `ready_within_s`. Raise LocalStackError if the job ends.
    """
    left_s = axis.ready_within_s - (found.registered_s or 0.0)
    try:
        found.ready_s = job.wait_until(job.is_ready, within_s=left_s, goal="readiness")
    except errors.LocalStackError:
        if job.has_ended():
            raise
        found.problem = f"not registered and ready within {axis.ready_within_s:.0f} s"
        return False
    return True


def _measure(axis: Axis, found: JobRun, deliveries: int, scene: _Scene, say: Callable[[str], None]) -> None:
    say(f"{axis.name} {_listed(found.values)}: registered in {found.registered_s:.0f} s, ready {found.ready_s:.1f} s later")
    for _, value in itertools.product(range(WARM_UP_PASSES), found.values):
        _pass(axis, value, found.values.index(value), deliveries, scene)
    found.broadcast_mb = scene.job.metric("fanout_registry_broadcast_bytes") / MB
    for value in (*found.values, *reversed(found.values)):
        done = _pass(axis, value, found.values.index(value), deliveries, scene)
        found.passes.append(done)
        us = (done.used.jvm_s + done.used.python_s) / done.deliveries * 1e6
        say(f"{axis.name} {value:,}: {us:.1f} CPU µs a delivery, {done.per_s:,.0f} deliveries/s")


def _pass(axis: Axis, value: int, number: int, deliveries: int, scene: _Scene) -> Pass:
    """Publish the events of one pass just after a trigger, and wait until their micro-batch is committed."""
    job, customers, sent, population, fan_outs = scene
    types, fan_out = population.types_of(number), population.shapes[number].fan_out
    events = max(1, deliveries // fan_out)
    slowdown = machine_speed.slowdown()
    # Spark's triggers are at multiples of the interval since the epoch.
    time.sleep(axis.trigger_s - time.time() % axis.trigger_s + AFTER_TRIGGER_S)
    began, commits, before = customers.count, len(job.micro_batches(LANE)), job.meter.read()
    fan_outs.extend([fan_out] * events)
    sent.publish(events, types=types)
    first_s = job.wait_until(
        lambda: customers.count > began, within_s=platform.START_TIMEOUT_S, goal="the first delivery of a pass"
    )
    due = events * fan_out
    last_s = job.wait_until(
        lambda: customers.count >= began + due, within_s=platform.WORK_TIMEOUT_S, goal="the last delivery of a pass"
    )
    job.wait_until(
        lambda: sum(batch.records for batch in job.micro_batches(LANE)) >= len(sent.due),
        within_s=platform.WORK_TIMEOUT_S,
        goal="the commit of a pass",
    )
    return Pass(
        value=value,
        events=events,
        deliveries=due,
        took_s=last_s - first_s + POLL_S,
        used=job.meter.read().since(before),
        micro_batches=len(job.micro_batches(LANE)) - commits,
        slowdown=(slowdown + machine_speed.slowdown()) / 2,
    )


def _listed(values: tuple[int, ...]) -> str:
    return ", ".join(f"{value:,}" for value in values)
