"""Stop the broker repeatedly, and once for long: does the job continue by itself, and is anything lost?

1. Events come at a steady pace. At random moments the broker is killed and started again. The job must be delivering before
   each kill.
2. The broker is stopped for long. The job keeps running, and reports that its source is unavailable and that it is not ready.
3. The broker starts again, and far more events are published at once than a micro-batch may have. The same process must deliver
   all events. The figures have the size of the largest micro-batch.
"""

from __future__ import annotations

import random
import threading
import time
from concurrent import futures
from dataclasses import dataclass
from typing import Any

from delivery import errors
from load_tests.harness import figures, stage, traffic
from load_tests.harness.phases import Scene

LANES = "direct,retry"
PROGRESS = 2_000
"""Events that must arrive before the broker is killed, so that the job is delivering."""
MOMENT_S = 5.0
"""Seconds after the arrival of PROGRESS events within which the broker is killed, at a random moment."""
NOTICED_S = 60
"""Seconds within which the job must report that Kafka is unavailable, or available again."""
LAST_S = 180
"""Seconds within which all published events must arrive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AwayScenario:
    """Parameters of the scenario."""

    bounces: int = 5
    """Number of times that the broker is killed and started again."""
    away_s: int = 600
    """Seconds of the long outage of the broker."""
    backlog: int = 100_000
    """Events that are published when the broker is back."""
    endpoints: int = 100
    per_s: int = 1000
    seed: int = 1


def run(scenario: AwayScenario, terms: stage.Terms) -> dict[str, Any]:
    """Run the scenario, and return its figures."""
    chosen = {"logs.format": "json", **terms.overrides}
    with terms.stage(traffic.Customers(endpoints=scenario.endpoints), seed=scenario.seed) as (servers, customers, sent):
        with servers.job(LANES, chosen) as job:
            at = Scene(servers, customers, sent, job, terms.say)
            _bounce(scenario, at)
            _wait_for_all(at, "the events that were published while the broker was killed")
            noticed_s = _away(scenario.away_s, at)
            began_s = job.elapsed_s()
            sent.publish(scenario.backlog)
            back_s = _wait_for_all(at, "the events that were published when the broker was back") - began_s
            largest = max(micro_batch.records for micro_batch in job.micro_batches("direct"))
            job.meter.read()
        report = customers.report()
        reconciled = figures.reconciled(servers.account(), report)
    return {
        "scenario": "away",
        "bounces": scenario.bounces,
        "away_s": scenario.away_s,
        "told_after_s": round(noticed_s, 1),
        "backlog": scenario.backlog,
        "backlog_s": round(back_s, 1),
        "largest_micro_batch": largest,
        "peak_rss_mb": {role: round(peak) for role, peak in job.meter.peak_mb().items()},
        "deliveries": len(report.numbers),
        **figures.delivered(report, sent.due),
        "reconciled": reconciled,
        "settings": chosen,
        "seed": scenario.seed,
    }


def _bounce(scenario: AwayScenario, at: Scene) -> None:
    rng, enough = random.Random(scenario.seed), threading.Event()
    with futures.ThreadPoolExecutor(max_workers=1) as pool:
        publishing = pool.submit(at.sent.publish_until, enough, scenario.per_s)
        try:
            _kill_again_and_again(scenario.bounces, rng, at)
        finally:
            enough.set()
        publishing.result()  # raises the error of a failed publisher


def _kill_again_and_again(bounces: int, rng: random.Random, at: Scene) -> None:
    for number in range(1, bounces + 1):
        _wait_until_at_work(at)
        time.sleep(rng.uniform(0, MOMENT_S))
        at.say(f"killing the broker, {number} of {bounces}, after {at.customers.count:,} deliveries")
        at.servers.kafka.kill()
        at.servers.kafka.start()


def _away(away_s: int, at: Scene) -> float:
    """Stop the broker for `away_s` seconds, and start it; return the seconds until the job reported the outage.

    First wait until the job reports that Kafka is available. Raise LocalStackError if one of the two reports takes longer than
    NOTICED_S. Also raise it if the job ends, or no longer reports the outage while the broker is stopped.
    """
    job = at.job
    at.say(f"the broker is away for {away_s} s")

    def is_reported() -> bool:
        return job.metric("fanout_source_up") == 0 and not job.is_ready()

    job.wait_until(lambda: not is_reported(), within_s=NOTICED_S, goal="the report that Kafka is available")
    at.servers.kafka.kill()
    began_s = job.elapsed_s()
    noticed_s = job.wait_until(is_reported, within_s=NOTICED_S, goal="the report that Kafka is unavailable") - began_s
    while job.elapsed_s() - began_s < away_s:
        if job.has_ended() or not is_reported():
            raise errors.LocalStackError(
                "the job has ended, or reports Kafka as available while the broker is stopped. The load test ends: see job.log"
            )
        time.sleep(1)
    at.servers.kafka.start()
    return noticed_s


def _wait_until_at_work(at: Scene) -> None:
    least = at.customers.count + PROGRESS
    at.job.wait_until(lambda: at.customers.count >= least, within_s=LAST_S, goal="deliveries before a kill")


def _wait_for_all(at: Scene, goal: str) -> float:
    return at.job.wait_until(lambda: at.customers.count >= len(at.sent.due), within_s=LAST_S, goal=goal)
