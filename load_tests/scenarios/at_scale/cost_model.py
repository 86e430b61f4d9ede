"""Fit the CPU of each process by a line through measured sizes, and compute the cores for a larger load. Pure.

A size is a load that was measured, in deliveries a second.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

PLATFORM = ("jvm", "driver", "worker")
"""Processes that count in the total. Kafka and the publisher have figures of their own, and do not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSize:
    """One measured load, and the cores that it took."""

    per_s: float
    """Deliveries a second."""
    cores: Mapping[str, float]
    """CPU seconds a second, by process."""


class _Line(NamedTuple):
    """Cores as a linear function of deliveries a second."""

    idle: float
    """Cores at no delivery."""
    slope: float
    """CPU seconds of one delivery."""

    def at(self, per_s: float) -> float:
        """Return the cores at `per_s` deliveries a second."""
        return self.idle + self.slope * per_s


def fitted(sizes: Sequence[MeasuredSize], full_per_s: float) -> dict[str, dict[str, float]]:
    """Return for each process `idle_cores`, `us_per_delivery` (of CPU), `cores_at_full_load` and `worst_error`.

    `worst_error` is the largest distance of a measured size from the line, as a share of the measured cores. `total` adds the
    lines of the processes in PLATFORM. `idle_cores` is 0 if all sizes have the same deliveries a second. The full load is
    `full_per_s` deliveries a second.
    """
    lines = {role: _line([size.per_s for size in sizes], [size.cores[role] for size in sizes]) for role in sizes[0].cores}
    found = {role: _described(line, sizes, [role], full_per_s) for role, line in lines.items()}
    total = _Line(*(sum(parts) for parts in zip(*(lines[role] for role in PLATFORM), strict=True)))
    return {**found, "total": _described(total, sizes, PLATFORM, full_per_s)}


def _line(rates: Sequence[float], measured: Sequence[float]) -> _Line:
    if len(set(rates)) == 1:
        return _Line(0.0, statistics.fmean(measured) / max(1.0, rates[0]))
    slope, idle = statistics.linear_regression(rates, measured)
    if slope < 0:  # noise: the process costs the same at every size
        return _Line(statistics.fmean(measured), 0.0)
    return _Line(idle, slope)


def _described(line: _Line, sizes: Sequence[MeasuredSize], roles: Sequence[str], full_per_s: float) -> dict[str, float]:
    measured = [(size.per_s, sum(size.cores[role] for role in roles)) for size in sizes]
    errors = [abs(line.at(per_s) - cores) / cores for per_s, cores in measured if cores]
    return {
        "idle_cores": round(line.idle, 3),
        "us_per_delivery": round(line.slope * 1e6, 1),
        "cores_at_full_load": round(line.at(full_per_s), 1),
        "worst_error": round(max(errors, default=0.0), 3),
    }


def us_per_delivery(cores: Mapping[str, float], per_s: float) -> dict[str, float]:
    """Return the CPU microseconds of one delivery by process, idle CPU included; empty if nothing was delivered.

    `total` is the sum over the processes in PLATFORM.
    """
    if not per_s:
        return {}
    costs = {role: round(used / per_s * 1e6, 1) for role, used in cores.items()}
    return {**costs, "total": round(sum(costs[role] for role in PLATFORM), 1)}


def document(sizes: Sequence[MeasuredSize], full_per_s: float) -> dict[str, Any]:
    """Return the figures of `fitted`, and also `full_per_s` and `times_largest_size`; empty without a measured size.

    `full_per_s` is the load to compute cores for. `times_largest_size` is `full_per_s` divided by the largest measured size.
    """
    if not sizes:
        return {}
    largest = max(size.per_s for size in sizes)
    return {"full_per_s": full_per_s, "times_largest_size": round(full_per_s / largest, 1), **fitted(sizes, full_per_s)}
