"""One endpoint of many hangs: how much longer do the others wait?

1. The job is started; some events warm it up, and then some seconds at the pace of what follows: a young JVM is slower, and the
   phase that comes first would look worse than it is.
2. Events come at a steady pace, and 5 % of them are due to one endpoint, which answers like all the others.
3. The same again, but that endpoint takes requests and never answers.
4. It answers again, and what has waited for it is delivered. Nothing may be lost.

Both of the phases that are compared are in one run, because figures of two runs on a shared machine cannot be compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from load_tests import figures, platform, receiver, stage, traffic

SETTINGS = {"spark.master": "local[4,4]", "retry.shards": "2", "retry.max_probe_interval_s": "5"}
"""Of the job: task slots for each of the two lanes, as an operator would give them, so that neither waits for the other's; as
many shards as each lane has slots (one takes 0.06 CPU seconds of each micro-batch of that lane); and the endpoint is to be
noticed soon after it answers again."""
IDLE_S = 30
RECOVERY_S = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """How much of what."""

    endpoints: int = 1_000
    warm_up: int = 20_000
    """Events before those that are measured."""
    settle_s: int = 20
    """Seconds at the pace of the two phases before they begin."""
    per_s: int = 500
    seconds: int = 60
    """Of each of the two phases: so many that a single micro-batch is less than one in a hundred events."""
    share: float = 0.05
    """Of the events, due to the endpoint that will hang."""
    seed: int = 1


def run(scenario: Scenario, terms: stage.Terms) -> dict[str, Any]:
    """Run it and return the figures."""
    chosen = {**SETTINGS, **terms.overrides}
    with terms.stage(traffic.Customers(endpoints=scenario.endpoints), seed=scenario.seed) as (servers, customers, sent):
        sent.publish(scenario.warm_up)
        with servers.job("direct,retry", chosen) as job:

            def wait_for_all(within_s: float, what: str) -> float:
                return job.wait_until(lambda: customers.count >= len(sent.due), within_s=within_s, what=what)

            warm_s = wait_for_all(platform.WORK_TIMEOUT_S, "the warm-up")
            terms.say(f"warm after {warm_s:.1f} s")
            sent.publish_steadily(scenario.per_s, scenario.settle_s, hot=scenario.share)
            healthy = sent.publish_steadily(scenario.per_s, scenario.seconds, hot=scenario.share)
            wait_for_all(IDLE_S, "the deliveries while all answer")
            customers.hang(traffic.HOT_ENDPOINT)
            hanging = sent.publish_steadily(scenario.per_s, scenario.seconds, hot=scenario.share)
            waiting = sum(sent.due[number] == traffic.HOT_ENDPOINT for number in hanging)
            others = len(sent.due) - waiting
            job.wait_until(lambda: customers.count >= others, within_s=IDLE_S, what="the deliveries to the others")
            terms.say(f"the others have theirs; {waiting} events wait for the endpoint that hangs")
            customers.hang(None)
            answers_s = job.elapsed_s()
            recovered_s = wait_for_all(RECOVERY_S, "the deliveries to the endpoint that hung") - answers_s
            job.meter.read()
        report = customers.report()
        reconciled = figures.reconciled(servers.account(), report)
    of_healthy, of_hanging = (_ages_of_others(report, phase) for phase in (healthy, hanging))
    return {
        "scenario": "isolation",
        "deliveries": len(report.numbers),
        "others_p99_ratio": round(of_hanging["p99"] / of_healthy["p99"], 2),
        "others_ms": {"at_per_s": scenario.per_s, "all_answer": of_healthy, "one_hangs": of_hanging},
        "waited_for_the_one": waiting,
        "recovered_s": round(recovered_s, 1),
        **figures.delivered(report, sent.due),
        "reconciled": reconciled,
        "peak_rss_mb": {role: round(peak) for role, peak in job.meter.peak_mb().items()},
        "settings": chosen,
    }


def _ages_of_others(report: receiver.Report, phase: range) -> dict[str, int]:
    """Return how old the events of a phase were when they arrived at any endpoint but the one."""
    arrived = zip(report.numbers, report.endpoints, report.ages_ms, strict=True)
    return figures.percentiles(age for number, to, age in arrived if number in phase and to != traffic.HOT_ENDPOINT)
