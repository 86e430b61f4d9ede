"""Kill processes of the job while it delivers: is anything lost, and how much is sent twice?

Events come at a steady pace. At random moments, the driver, its JVM or a Python worker gets SIGKILL. The scenario starts a
killed driver or JVM again, as a supervisor does. Spark replaces a worker. At the end, all published events must have arrived.
"""

from __future__ import annotations

import bisect
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from load_tests.harness import figures, platform, receiver, stage, traffic

SETTINGS: Mapping[str, str] = {}
"""Settings of the job: the defaults."""
KINDS = ("driver", "jvm", "worker")
"""Processes of the job that are killed."""
PROGRESS = 200
"""Events that must arrive before the next kill, so that the kill hits a job that delivers."""
MOMENT_S = 15.0
"""Seconds after the arrival of PROGRESS events within which the kill comes, at a random moment.

The job sometimes has a backlog then, and sometimes delivers at the steady pace.
"""
LAST_S = 120
"""Seconds within which all published events must arrive after the last start of the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashScenario:
    """Parameters of the scenario."""

    kills: int = 3
    """Number of processes that are killed, one after another."""
    endpoints: int = 100
    per_s: int = 1000
    seed: int = 1


def run(scenario: CrashScenario, terms: stage.Terms) -> dict[str, Any]:
    """Run the scenario, and return its figures."""
    chosen = {**SETTINGS, **terms.overrides}
    rng = random.Random(scenario.seed)
    kinds = [rng.choice(KINDS) for _ in range(scenario.kills)]
    left = list(kinds)
    killed_at: list[int] = []
    with terms.stage(traffic.Customers(endpoints=scenario.endpoints), seed=scenario.seed) as (servers, customers, sent):
        enough = threading.Event()
        publisher = threading.Thread(target=sent.publish_until, args=(enough, scenario.per_s), name="publisher")
        publisher.start()
        try:
            while left:
                with servers.job("direct,retry", chosen) as job:
                    while left and not job.has_ended():
                        killed_at.append(kill_at_work(job, left.pop(0), customers, rng, terms.say))
            enough.set()
            publisher.join()
            with servers.job("direct,retry", chosen) as job:
                job.wait_until(lambda: customers.count >= len(sent.due), within_s=LAST_S, goal="the last delivery")
        finally:
            enough.set()
            publisher.join()
        report = customers.report()
        reconciled = figures.reconciled(servers.account(), report)
    outcome = figures.delivered(report, sent.due)
    return {
        "scenario": "crash",
        "kills": scenario.kills,
        "killed": kinds,
        "repeated_after": _repeated_after(killed_at, report.numbers),
        "deliveries": len(report.numbers),
        **outcome,
        "reconciled": reconciled,
        "settings": chosen,
        "seed": scenario.seed,
    }


def kill_at_work(
    job: platform.Job, role: str, customers: receiver.Receiver, rng: random.Random, say: Callable[[str], None]
) -> int:
    """Wait until the job delivers, kill its driver, its JVM or a random worker, and return the number of arrived events."""
    enough = customers.count + PROGRESS
    job.wait_until(lambda: customers.count >= enough, within_s=platform.START_TIMEOUT_S, goal="deliveries before a kill")
    time.sleep(rng.uniform(0, MOMENT_S))
    say(f"killing a {role} after {customers.count:,} deliveries")
    job.kill(role, rng)
    return customers.count


def _repeated_after(killed_at: Sequence[int], arrived: Iterable[int]) -> list[int]:
    """Return the number of repeated deliveries after each kill.

    `killed_at` has, for each kill, the number of different events that had arrived before. Repeats before the first kill count
    for the first kill.
    """
    repeated, known = [0] * len(killed_at), set[int]()
    for number in arrived:
        if number in known:
            repeated[max(0, bisect.bisect_right(killed_at, len(known)) - 1)] += 1
        known.add(number)
    return repeated
