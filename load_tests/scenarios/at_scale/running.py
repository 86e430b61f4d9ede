"""Run a scenario on a platform of its own, and return its figures with the verdicts of its bounds.

1. The registry and the topics are made, the job starts, and some events warm it up.
2. The phases run one after another. A scenario with `capacity` instead tries a rate, its half, and so on. The search stops
   after enough carried rates, after the smallest rate, or when a backlog does not drain. The machine carries a rate if the
   backlog does not keep growing.
3. All events must arrive. Then the topics and the receiver are compared, event by event.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from load_tests.harness import figures, receiver, stage, traffic
from load_tests.scenarios import mission
from load_tests.scenarios.at_scale import bounds, cost_model, plan, timeline
from load_tests.scenarios.at_scale.phase_run import PhaseRun, Runner
from load_tests.scenarios.at_scale.population import ZipfPopulation
from load_tests.scenarios.at_scale.sampling import Sample, Sampler

SPARE = 100
"""Number of spare endpoints, and of their subscriptions, in scenarios that change the registry."""
SAMPLES = 900
"""Number of regular samples of a run whose phases take more than 900 s together. A shorter run has one sample a second."""
WARM_UP_S = 300
"""Seconds within which the events of the warm-up must arrive."""
RECOVERED = 1.5
"""A later phase has recovered when the undelivered events stay within this multiple of their largest number in the first
phase."""


def run(scenario: plan.ScaleScenario, terms: stage.Terms) -> dict[str, Any]:
    """Run the scenario, and return its figures, with `series` for the plots and the `verdicts` of its bounds."""
    chosen = {**scenario.settings, **terms.overrides}
    shape, is_churning = scenario.shape, any(phase.changes_per_s for phase in scenario.phases)
    population = ZipfPopulation(
        topics=shape.topics,
        tenants=shape.tenants,
        endpoints=shape.endpoints,
        behaviour=scenario.behaviour,
        spare=SPARE if is_churning else 0,
    )
    staged = terms.stage(population, seed=scenario.seed, topics=traffic.Topics(partitions=1), disturbed=scenario.behaviour)
    with staged as (servers, customers, sent):
        with servers.job(mission.LANES, chosen) as job:
            ready_s = job.wait_until_ready()
            terms.say(f"ready after {ready_s:.1f} s")
            sent.publish(scenario.warm_up)
            job.wait_until(lambda: customers.count >= len(sent.due), within_s=WARM_UP_S, goal="the warm-up")
            sampler = Sampler(job, servers.kafka_pid, lambda: len(sent.due), lambda: customers.count, _every_s(scenario))
            with sampler:
                runner = Runner(
                    scenario=scenario,
                    servers=servers,
                    customers=customers,
                    sent=sent,
                    job=job,
                    sampler=sampler,
                    population=population,
                    say=terms.say,
                )
                runs = _sizes(runner, scenario.capacity) if scenario.capacity else _phases(runner)
                drained_s = runner.drain()
                sampler.take()
            peak_mb = job.meter.peak_mb()
        report = customers.report()
        reconciled = figures.reconciled(servers.account(), report)
    found = {
        "scenario": scenario.name,
        "question": scenario.question,
        "per_s": scenario.per_s,
        "shape": {"topics": shape.topics, "tenants": shape.tenants, "endpoints": shape.endpoints},
        "ready_s": round(ready_s, 1),
        **_of_phases(scenario, runner, runs, report),
        "drained_s": round(drained_s, 1) if drained_s < math.inf else None,
        **_of_all(report, sent.due),
        "reconciled": reconciled,
        "receiver": figures.of_receiver(report),
        "peak_rss_mb": {role: round(peak) for role, peak in peak_mb.items()},
        "settings": chosen,
    }
    return {**found, "verdicts": [verdict.document() for verdict in bounds.check(scenario.bounds, found)]}


def _every_s(scenario: plan.ScaleScenario) -> float:
    return max(1.0, sum(phase.seconds for phase in scenario.phases) / SAMPLES)


def _phases(runner: Runner) -> list[PhaseRun]:
    """Run the phases in their order, and return the runs of the measured phases."""
    runs, before = [], 1.0
    settling = plan.PlannedPhase(name="settle", seconds=runner.scenario.settle_s, is_measured=False)
    for phase in (settling, *runner.scenario.phases):
        done = runner.run(phase, before)
        before = phase.factor
        if phase.is_measured:
            runs.append(done)
    return runs


def _sizes(runner: Runner, capacity: plan.Capacity) -> list[PhaseRun]:
    """Halve the share of the rate until enough shares are carried. Return the runs of all tried shares, the largest first.

    Stop earlier after the smallest share, or when the events of a share do not arrive within `drain_s`.
    """
    runs: list[PhaseRun] = []
    share = capacity.first_share
    while sum(run.is_carried for run in runs) < capacity.sizes and share >= capacity.smallest_share:
        settling = plan.PlannedPhase(name=f"{share:g}", seconds=runner.scenario.settle_s, factor=share)
        done = runner.run(settling, share, replace(capacity, overload_s=capacity.settling_overload_s))
        if not done.is_cut:
            measured = plan.PlannedPhase(name=f"{share:g}", seconds=runner.scenario.seconds, factor=share)
            done = runner.run(measured, share, capacity)
        runner.say(f"share {share:g} is {'carried' if done.is_carried else 'more than the machine carries'}")
        runs.append(done)
        if math.isinf(runner.drain()):
            break  # a backlog that does not drain would be measured with every smaller share
        share /= 2
    return runs


def _of_phases(
    scenario: plan.ScaleScenario, runner: Runner, runs: Sequence[PhaseRun], report: receiver.ReceiverReport
) -> dict[str, Any]:
    """Return the figures of the runs, and `series` for the plots.

    Without `capacity`, the figures are `phases`, each compared with the first phase, and `growth` in the last phase. With
    `capacity`, the figures are the result of `_of_sizes`.
    """
    due, population, samples = runner.sent.due, runner.population, runner.sampler.samples
    ages = timeline.first_ages_ms(report, len(due))
    documents = {run.name: run.document(ages, due, population) for run in runs}
    bucket_s = timeline.bucket_s(samples)
    counted = {
        "others": population.is_other,
        "batch": population.is_batch,
        "disturbed": lambda endpoint: not population.behaviour.is_healthy(endpoint),
    }
    latency = {name: timeline.latency(runner.marks, ages, due, is_in, bucket_s) for name, is_in in counted.items()}
    series = {
        "phases": [{"name": run.name, "from_s": round(run.first.at_s, 1), "to_s": round(run.last.at_s, 1)} for run in runs],
        "samples": [sample.document() for sample in samples],
        "latency_ms": {name: rows for name, rows in latency.items() if rows},
        "cores": timeline.cores(samples, bucket_s),
    }
    if scenario.capacity is not None:
        return {**_of_sizes(scenario, runs, documents), "series": series}
    _compare(documents, runs, samples)
    within = [sample for sample in samples if runs[-1].first.at_s <= sample.at_s <= runs[-1].last.at_s]
    last = [row for row in latency["others"] if runs[-1].first.at_s <= row["at_s"] <= runs[-1].last.at_s]
    return {"phases": documents, "growth": timeline.growth(within, last), "series": series}


def _compare(documents: dict[str, dict[str, Any]], runs: Sequence[PhaseRun], samples: Sequence[Sample]) -> None:
    """Add two figures to the document of each phase after the first.

    `others_p99_ratio`: the p99 latency of the endpoints of `ZipfPopulation.is_other`, divided by their p99 latency in the first
    phase. If this divisor is 0, the figure is missing. `recovered_s`: seconds from the beginning of the phase until the number
    of undelivered events stays at most RECOVERED times its maximum in the first phase.
    """
    first, *others = runs
    base = documents[first.name]
    for run in others:
        document = documents[run.name]
        if base["others_latency_ms"]["p99"]:
            ratio = document["others_latency_ms"]["p99"] / base["others_latency_ms"]["p99"]
            document["others_p99_ratio"] = round(ratio, 2)
        document["recovered_s"] = timeline.recovered_s(samples, run.first.at_s, RECOVERED * base["undelivered_max"])


def _of_sizes(scenario: plan.ScaleScenario, runs: Sequence[PhaseRun], documents: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return `sizes`, the figures of all tried shares by name, and four figures of the carried shares.

    1. `sizes_carried` is the number of carried shares.
    2. `largest_share` is the largest carried share; 0 if none is carried.
    3. `worst` has the highest `direct_p99_ms` of all carried shares.
    4. `cost_model` has the CPU of each process, fitted over the carried shares.
    """
    carried = [run for run in runs if run.is_carried]
    sizes = [cost_model.MeasuredSize(per_s=run.per_s, cores=run.cores) for run in carried]
    return {
        "sizes": {run.name: {"is_carried": run.is_carried, **documents[run.name]} for run in runs},
        "sizes_carried": len(carried),
        "largest_share": float(carried[0].name) if carried else 0.0,
        "worst": {"direct_p99_ms": max((documents[run.name]["direct_latency_ms"]["p99"] for run in carried), default=0)},
        "cost_model": cost_model.document(sizes, scenario.per_s),
    }


def _of_all(report: receiver.ReceiverReport, due: Sequence[int]) -> dict[str, Any]:
    found = figures.delivered(report, due)
    return {"events": len(due), **found}
