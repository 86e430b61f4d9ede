"""Compute the points, the fit and the knee of an axis from the runs of the delivery job (`JobRun`), as JSON values. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from load_tests.curves import fit
from load_tests.curves.axes import Axis
from load_tests.curves.measuring import JobRun, Pass
from load_tests.scenarios.at_scale import cost_model

WRONG = ("lost", "duplicates", "unexpected", "unverified")
"""Checks that must be 0."""


def document(axis: Axis, jobs: Sequence[JobRun]) -> dict[str, Any]:
    """Return the figures of an axis as JSON values.

    `points` has the figures of each value with a measured pass. `fit` and `knee` are missing if there is no point.
    """
    points = [point for job in jobs for value in job.values if (point := _point(axis, job, value))]
    return {
        "label": axis.label,
        "because": axis.because,
        "unit": axis.unit,
        "one_job": axis.one_job,
        "base": asdict(axis.base),
        "points": points,
        "left_out": {str(value): job.problem for job in jobs if job.problem for value in job.values},
        **(_fitted(points) if points else {}),
    }


def _point(axis: Axis, job: JobRun, value: int) -> dict[str, Any] | None:
    passes = [done for done in job.passes if done.value == value]
    if not passes:
        return None
    return {
        "value": value,
        "events": sum(done.events for done in passes),
        "deliveries": sum(done.deliveries for done in passes),
        "deliveries_per_s": round(statistics.fmean(done.per_s for done in passes)),
        "cpu_us": _cpu_us(axis, passes),
        "cpu_us_by_pass": [_cpu_us(axis, [done])["total"] for done in passes],
        "micro_batches": sum(done.micro_batches for done in passes),
        "slowdown": round(statistics.fmean(done.slowdown for done in passes), 2),
        "registered_s": _rounded(job.registered_s),
        "ready_s": _rounded(job.ready_s),
        "broadcast_mb": None if job.broadcast_mb is None else round(job.broadcast_mb, 3),
        "peak_mb": dict(job.peak_mb),
        "checks": None if job.checks is None else dict(job.checks),
    }


def _cpu_us(axis: Axis, passes: Sequence[Pass]) -> dict[str, float]:
    """Return the CPU µs of one `axis.unit` (delivery or event), by process and in `total`."""
    seconds = {
        "jvm": sum(done.used.jvm_s for done in passes),
        "driver": sum(done.used.driver_s for done in passes),
        "worker": sum(done.used.workers_s for done in passes),
    }
    return cost_model.us_per_delivery(seconds, sum(done.events if axis.unit == "event" else done.deliveries for done in passes))


def _fitted(points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    values, costs = [point["value"] for point in points], [point["cpu_us"]["total"] for point in points]
    found, knee = fit.fitted(values, costs), fit.knee(values, costs)
    return {"fit": {**asdict(found), "text": found.text()}, "knee": None if knee is None else _knee(points, knee)}


def _knee(points: Sequence[Mapping[str, Any]], value: float) -> dict[str, Any]:
    """Return the knee (`value`), and the process whose cost grew most from the smallest value to the knee (`grew_most`).

    `share` is the share of this process in the growth of all processes of the platform.
    """
    first, there = min(points, key=lambda point: point["value"]), next(point for point in points if point["value"] == value)
    grown = {role: there["cpu_us"][role] - first["cpu_us"][role] for role in cost_model.PLATFORM}
    most = max(grown, key=lambda role: grown[role])
    return {"value": value, "grew_most": most, "share": round(grown[most] / sum(grown.values()), 2)}


def broken(axes: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a text for each point whose job failed a check (`JobRun.checks`), or was interrupted before the checks."""
    return [text for name, axis in axes.items() for text in _broken(name, axis["points"])]


def _broken(name: str, points: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    for point in points:
        checks = point["checks"]
        if checks is None:
            yield (
                f"{name} {point['value']:,}: the job was interrupted before its deliveries were compared, so its figures are "
                "not proven: measure this value again"
            )
        elif any(checks[wrong] for wrong in WRONG) or not checks["reconciled"]:
            yield f"{name} {point['value']:,}: {checks}"


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)
