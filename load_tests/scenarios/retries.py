"""Let many deliveries wait in the retry lane, and measure its micro-batches, memory and disk.

1. The job starts. Events come at a steady pace to endpoints with `order_by`, so that all events go through the retry lane.
   The first events warm the lane up. Then its micro-batches are measured while nothing waits.
2. `pending` events are published for paused endpoints. The direct lane postpones them to the retry lane, where they wait.
3. The job starts again, so that it is as cold as in step 1. The same work is measured while the `pending` events wait.
4. A ninth of the paused endpoints is resumed, and gets its waiting deliveries. Nothing may be lost. All other deliveries still
   wait.

All steps are in one run, because figures of two runs on a shared machine cannot be compared.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from load_tests.harness import figures, platform, receiver, stage, traffic, usage

SETTINGS = {"spark.master": "local[4,4]", "logs.format": "json"}
"""Settings of the job: task slots for each of the two lanes, as an operator sets them, and a log that lists micro-batches."""
AWAKE = traffic.ALL_TYPES[-1:]
PAUSED = traffic.ALL_TYPES[:-1]
RESUMED = PAUSED[:1]
"""Numbers of event types, each of which has a tenth of the endpoints.

The endpoints of AWAKE are active, and the endpoints of PAUSED are paused. Step 4 resumes the endpoints of RESUMED.
"""
TOPICS = traffic.Topics(partitions=1)
"""One partition, so that the events of an endpoint are read in the order in which they were published."""
IDLE_S = 120
"""Seconds within which the events of active endpoints must arrive."""
FILL_S = 900
"""Seconds within which all `pending` deliveries must wait in the retry lane."""
RECOVERY_S = 400
"""Seconds within which the deliveries of resumed endpoints must arrive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetriesScenario:
    """Parameters of the scenario."""

    pending: int = 100_000
    """Number of waiting deliveries."""
    endpoints: int = 1_000
    """Number of endpoints. A tenth of the endpoints is active, and the rest are paused."""
    per_s: int = 200
    """Events a second to the active endpoints."""
    warm_up_s: int = 15
    """Seconds of warm-up after each start."""
    seconds: int = 20
    """Seconds of each of the two measurements."""
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RetriesPhase:
    """Measurement of steady work after a start of the job: micro-batches and CPU during the work, memory and disk after it."""

    ready_s: float
    """Seconds from the start of the job until `/readyz` reported ready."""
    numbers: range
    """Numbers of the measured events."""
    batches: Sequence[figures.MicroBatch]
    """Micro-batches of the retry lane that ended during the measurement."""
    first: figures.MicroBatch
    """First micro-batch of the retry lane after the start of the job. It loads the state."""
    used: usage.Usage
    """CPU of the job during the measurement."""
    taken: Mapping[str, Any]
    """Memory and disk usage of the job after the measurement, as JSON values."""

    @property
    def micro_batch_ms(self) -> dict[str, int]:
        """Return p50, p90, p99 and the maximum (`max`) of the durations of `batches`, in ms; all 0 without a batch."""
        return figures.percentiles(batch.took_ms for batch in self.batches)

    def document(self, report: receiver.ReceiverReport) -> dict[str, Any]:
        """Return the measurement as JSON values."""
        arrived = zip(report.numbers, report.ages_ms, strict=True)
        return {
            "ready_s": round(self.ready_s, 1),
            "first_micro_batch_ms": round(self.first.took_ms),
            "micro_batches": len(self.batches),
            "micro_batch_ms": self.micro_batch_ms,
            "cpu_s": {"jvm": round(self.used.jvm_s, 1), "python": round(self.used.python_s, 1)},
            "latency_ms": figures.percentiles(age for number, age in arrived if number in self.numbers),
            **self.taken,
        }


def run(scenario: RetriesScenario, terms: stage.Terms) -> dict[str, Any]:
    """Run the scenario, and return its figures."""
    chosen = {**SETTINGS, **terms.overrides}
    by_type = {**{key: {"status": "paused"} for key in PAUSED}, **{key: {"order_by": "tenant_id"} for key in AWAKE}}
    registered = traffic.Customers(endpoints=scenario.endpoints, fields_by_type=by_type)
    with terms.stage(registered, seed=scenario.seed, topics=TOPICS) as (servers, customers, sent):

        def due(types: Sequence[int]) -> int:
            endpoints = registered.endpoints_of(types)
            return sum(endpoint in endpoints for endpoint in sent.due)

        def wait_for_all(job: platform.Job, types: Sequence[int], within_s: float) -> float:
            count = due(types)
            return job.wait_until(lambda: customers.count >= count, within_s=within_s, goal=f"{count:,} deliveries")

        def work_steadily(job: platform.Job) -> RetriesPhase:
            ready_s = job.wait_until_ready()
            sent.publish_steadily(scenario.per_s, scenario.warm_up_s, types=AWAKE)
            wait_for_all(job, AWAKE, IDLE_S)  # events that came during the first micro-batches, which are long
            began_s, before = time.time(), job.meter.read()
            numbers = sent.publish_steadily(scenario.per_s, scenario.seconds, types=AWAKE)
            wait_for_all(job, AWAKE, IDLE_S)
            used, [first, *batches] = job.meter.read().since(before), job.micro_batches("retry")
            phase = RetriesPhase(
                ready_s=ready_s,
                numbers=numbers,
                batches=[batch for batch in batches if batch.ended_at_s >= began_s],
                first=first,
                used=used,
                taken=_taken(servers, job),
            )
            terms.say(f"{_pending(job):,.0f} wait: a micro-batch takes {phase.micro_batch_ms['p50']} ms")
            return phase

        with servers.job("direct,retry", chosen) as job:
            none = work_steadily(job)
            began_s = job.elapsed_s()
            sent.publish(scenario.pending, types=PAUSED)
            published_s = job.elapsed_s() - began_s
            fill_s = job.wait_until(lambda: _pending(job) >= scenario.pending, within_s=FILL_S, goal="the filling") - began_s
            terms.say(f"{scenario.pending:,} deliveries wait after {fill_s:.1f} s; starting the job again")
            job.meter.read()
        with servers.job("direct,retry", chosen) as again:
            many = work_steadily(again)
            awake_again = {**by_type, **{key: {"status": "active"} for key in RESUMED}}
            servers.register(dataclasses.replace(registered, fields_by_type=awake_again).registry(customers.url))
            resumed_s = again.elapsed_s()
            recovered_s = wait_for_all(again, [*AWAKE, *RESUMED], RECOVERY_S) - resumed_s
            again.meter.read()
        report = customers.report()
        reconciled = figures.reconciled(servers.account(), report)
    waits_still = due(PAUSED) - due(RESUMED)
    delivered = figures.delivered(report, sent.due)
    return {
        "scenario": "retries",
        "pending": scenario.pending,
        "micro_batch_ratio": {
            which: round(many.micro_batch_ms[which] / none.micro_batch_ms[which], 2) for which in ("p50", "p99")
        },
        "none_wait": none.document(report),
        "many_wait": many.document(report),
        "filled": {"published_s": round(published_s, 1), "waiting_s": round(fill_s, 1)},
        "resumed": {
            "deliveries": due(RESUMED),
            "took_s": round(recovered_s, 1),
            "overtook": figures.overtook(report, registered.endpoints_of(RESUMED)),
        },
        "waits_still": waits_still,
        **delivered,
        "lost": delivered["lost"] - waits_still,
        "reconciled": reconciled,
        "peak_rss_mb": {role: round(peak) for role, peak in again.meter.peak_mb().items()},
        "peak_rss_mb_while_filling": {role: round(peak) for role, peak in job.meter.peak_mb().items()},
        "settings": chosen,
    }


def _pending(job: platform.Job) -> float:
    """Return the number of deliveries that wait in the retry lane."""
    return job.metric("fanout_pending_events", lane="retry")


def _taken(servers: platform.Platform, job: platform.Job) -> dict[str, Any]:
    """Run a full garbage collection of the job's JVM, and return the usage of memory and disk as JSON values.

    `heap_mb` and `rss_mb` are the job's memory. `state_memory_mb`, `state_rows` and `checkpoint_mb` are the size of the retry
    lane's state. `pending_mb` is the size of the waiting events. Without `jcmd` there is no garbage collection, and `heap_mb`
    is null.
    """
    return {
        "heap_mb": job.meter.heap_mb_after_gc(),
        "rss_mb": {role: round(size) for role, size in job.meter.resident_mb().items()},
        "state_memory_mb": round(job.metric("fanout_state_memory_bytes", lane="retry") / usage.MB),
        "state_rows": round(job.metric("fanout_state_rows", lane="retry")),
        "pending_mb": round(job.metric("fanout_pending_bytes", lane="retry") / usage.MB),
        "checkpoint_mb": round(servers.checkpoint_mb("retry")),
    }
