"""Take CPU and memory away for some time: does the platform only become slower, or does it suppress healthy endpoints?

1. The topics are filled, half for endpoints in direct mode and half for endpoints in batch mode. All endpoints are healthy.
2. The job runs all lanes. When it is warm, its throughput is measured for some seconds.
3. Busy loops take CPU, and a process allocates and touches much memory. Meanwhile a worker is stopped for 3 s, and the
   JVM makes a full collection.
4. The disturbance ends. The scenario measures the seconds until the throughput is back.
5. All published events arrive. Nothing may be lost, no endpoint suppressed or disabled, and hardly a delivery postponed.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import psutil

from delivery import errors
from load_tests.harness import figures, platform, receiver, stage, traffic
from load_tests.harness.phases import Scene

LANES = "direct,batch,retry"
SETTINGS = {
    "spark.master": "local[3,4]",
    "spark.parallelism": "1",
    "source.max_events_per_batch": "20000",
    "batch.max_events_per_micro_batch": "50000",
    "batch.shards": "1",
    "retry.shards": "1",
}
"""Settings of the job: a task slot for each lane, and micro-batches short enough to measure the throughput of some seconds."""
BATCH_TYPES = range(5, 10)
"""Numbers of the event types whose endpoints take batches."""
STOPPED_S = 3.0
"""Seconds for which a worker is stopped."""
WINDOW_S = 6
"""Seconds over which the throughput is measured: some micro-batches of each lane."""
BACK_SHARE = 0.8
"""Share of the throughput before the disturbance that counts as recovered. A window may have one micro-batch less."""
BACK_WITHIN_S = 60
"""Seconds within which the throughput must have recovered after the disturbance."""
LAST_S = 300
"""Seconds within which the last event must arrive, once the throughput has recovered. The warm-up may take as long, in addition
to the START_TIMEOUT_S of the job's start."""
_BUSY = "while True: pass"
_HOG = (
    "import sys, time\nheld = bytearray({size})\nwhile True:\n    held[::4096] = bytes(len(held) // 4096)\n    time.sleep(0.2)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverloadScenario:
    """Parameters of the scenario."""

    warm_up: int = 150_000
    """Events that are delivered before the throughput is measured, a part of `events`."""
    events: int = 1_200_000
    """All published events."""
    endpoints: int = 200
    busy: int = 2
    """Number of processes that run busy loops."""
    hog_mb: int = 2048
    """MB of memory that one process allocates and touches."""
    disturbed_s: int = 20
    """Seconds of the disturbance."""
    seed: int = 1


class OverloadThroughput(NamedTuple):
    """Throughput before and during the disturbance, in deliveries a second, and the time until it recovered."""

    before: float
    disturbed: float
    back_after_s: float
    """Seconds from the end of the disturbance to the beginning of the first window in which the throughput had recovered."""


@dataclass(slots=True)
class Watch:
    """Samples of the job's deliveries and suppressed endpoints."""

    held: float = 0.0
    """Highest number of suppressed endpoints that the job reported."""
    counts: list[tuple[float, int]] = field(default_factory=list)
    """Times on the monotonic clock and numbers of delivered events, one sample a second."""


def run(scenario: OverloadScenario, terms: stage.Terms) -> dict[str, Any]:
    """Run the scenario, and return its figures."""
    chosen = {**SETTINGS, **terms.overrides}
    in_batches = {"mode": "batch", "batch": {"max_events": 100, "max_wait_s": 1.0}}
    registered = traffic.Customers(endpoints=scenario.endpoints, fields_by_type=dict.fromkeys(BATCH_TYPES, in_batches))
    with terms.stage(registered, seed=scenario.seed) as (servers, customers, sent):
        sent.publish(scenario.events)
        terms.say(f"filled the topics with {scenario.events:,} events")
        with servers.job(LANES, chosen) as job:
            scene = Scene(servers, customers, sent, job, terms.say)
            with watching(job, customers) as watch:
                measured = _measured(scenario, scene, watch)
                job.wait_until(lambda: customers.count >= len(sent.due), within_s=LAST_S, goal="the last delivery")
            handed_over = sum(
                job.metric("fanout_deliveries_total", lane=lane, outcome="postponed") for lane in ("direct", "batch")
            )
            disabled, own_delay_s = job.metric("fanout_endpoints_disabled_total"), job.metric("fanout_own_delay_seconds_total")
            job.meter.read()
        report = customers.report()
        reconciled = figures.reconciled(servers.account(), report)
    return {
        "scenario": "overload",
        "deliveries": len(report.numbers),
        "handed_over": round(handed_over),
        "handed_over_share": round(handed_over / len(sent.due), 6),
        "disabled": round(disabled),
        "held_back": round(watch.held),
        "per_s_before": round(measured.before),
        "per_s_disturbed": round(measured.disturbed),
        "back_after_s": round(measured.back_after_s, 1),
        "own_delay_s": round(own_delay_s, 1),
        **figures.delivered(report, sent.due),
        "reconciled": reconciled,
        "peak_rss_mb": {role: round(peak) for role, peak in job.meter.peak_mb().items()},
        "settings": chosen,
    }


def _measured(scenario: OverloadScenario, scene: Scene, watch: Watch) -> OverloadThroughput:
    """Measure the throughput, disturb the job, and measure until the throughput has recovered.

    Raise LocalStackError if the throughput does not recover in time, or all events are delivered before.
    """
    job, customers = scene.job, scene.customers
    job.wait_until(lambda: customers.count >= scenario.warm_up, within_s=platform.START_TIMEOUT_S + LAST_S, goal="the warm-up")
    time.sleep(WINDOW_S)
    before = per_s(watch.counts)
    scene.say(f"{before:,.0f} deliveries a second; now with {scenario.busy} busy loops and {scenario.hog_mb} MB")
    began, count = time.monotonic(), customers.count
    with disturbed(scenario):
        stop_a_worker(job, scene.say)
        scene.say("a full collection of the JVM")
        job.meter.heap_mb_after_gc()
        time.sleep(max(0.0, began + scenario.disturbed_s - time.monotonic()))
    ended = time.monotonic()
    during = (customers.count - count) / (ended - began)
    scene.say(f"{during:,.0f} deliveries a second during the disturbance, which has ended")

    def is_back() -> bool:
        is_over = customers.count >= len(scene.sent.due)
        return is_over or (time.monotonic() > ended + WINDOW_S and per_s(watch.counts) >= BACK_SHARE * before)

    job.wait_until(is_back, within_s=BACK_WITHIN_S, goal=f"{BACK_SHARE:.0%} of the throughput before the disturbance")
    if customers.count >= len(scene.sent.due):
        raise errors.LocalStackError(
            "all events were delivered before the throughput could be measured, so there are no figures: use more --events"
        )
    return OverloadThroughput(before, during, max(0.0, time.monotonic() - ended - WINDOW_S))


def per_s(counts: list[tuple[float, int]]) -> float:
    """Return the deliveries a second over the last WINDOW_S seconds of `Watch.counts`."""
    (last_at, last) = counts[-1]
    first_at, first = next((at, count) for at, count in counts if at >= last_at - WINDOW_S)
    return (last - first) / max(1.0, last_at - first_at)


@contextlib.contextmanager
def watching(job: platform.Job, customers: receiver.Receiver) -> Iterator[Watch]:
    """Read the numbers of deliveries and suppressed endpoints each second, in a thread, while the context is open."""
    watch, enough = Watch(counts=[(time.monotonic(), customers.count)]), threading.Event()

    def look() -> None:
        while not enough.wait(1.0):
            watch.counts.append((time.monotonic(), customers.count))
            with contextlib.suppress(OSError):  # not yet serving, or too busy to answer
                watch.held = max(watch.held, job.metric("fanout_held_endpoints"))

    looking = threading.Thread(target=look, name="watch")
    looking.start()
    try:
        yield watch
    finally:
        enough.set()
        looking.join()


@contextlib.contextmanager
def disturbed(scenario: OverloadScenario) -> Iterator[None]:
    """Take CPU and memory away from all other processes while the context is open."""
    hog = _HOG.format(size=scenario.hog_mb * 1024 * 1024)
    started = [subprocess.Popen([sys.executable, "-c", code]) for code in (*[_BUSY] * scenario.busy, hog)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def stop_a_worker(job: platform.Job, say: Callable[[str], None]) -> None:
    """Stop the worker with the most CPU time by SIGSTOP, and continue it after STOPPED_S by SIGCONT."""
    workers = [process for process, role in job.meter.processes() if role == "worker"]
    [worker] = sorted(workers, key=_cpu_s)[-1:]
    say(f"worker {worker.pid} stops for {STOPPED_S:.0f} s")
    worker.send_signal(signal.SIGSTOP)
    try:
        time.sleep(STOPPED_S)
    finally:
        worker.send_signal(signal.SIGCONT)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
