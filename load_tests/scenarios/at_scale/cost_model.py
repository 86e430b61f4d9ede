"""What a delivery costs by process, and the cores that a larger load needs: a line through measured sizes. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PLATFORM = ("jvm", "driver", "worker")
"""The processes of the job. Kafka and the publisher are shown, and do not count in the total."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """One measured size."""

    per_s: float
    """Deliveries a second."""
    cores: Mapping[str, float]
    """CPU seconds a second, by process."""

    def of(self, process: str) -> float:
        """Return the cores of a process, or of the whole job for `total`."""
        return sum(self.cores[role] for role in PLATFORM) if process == "total" else self.cores[process]


def fitted(sizes: Sequence[Size], full_per_s: float) -> dict[str, dict[str, float]]:
    """Return for each process: idle cores, CPU µs of a delivery, the cores at full load, and the worst error of the line.

    The error is a share of the cores that were measured.
    """
    return {process: _line(sizes, process, full_per_s) for process in (*sizes[0].cores, "total")}


def _line(sizes: Sequence[Size], process: str, full_per_s: float) -> dict[str, float]:
    rates, measured = [size.per_s for size in sizes], [size.of(process) for size in sizes]
    if len(set(rates)) > 1:
        slope, idle = statistics.linear_regression(rates, measured)
        if slope < 0:  # noise: the process costs the same at every size
            slope, idle = 0.0, statistics.fmean(measured)
    else:
        slope, idle = measured[0] / max(1.0, rates[0]), 0.0
    errors = [abs(idle + slope * rate - cores) / cores for rate, cores in zip(rates, measured, strict=True) if cores]
    return {
        "idle_cores": round(idle, 3),
        "us_per_delivery": round(slope * 1e6, 1),
        "cores_at_full_load": round(idle + slope * full_per_s, 1),
        "worst_error": round(max(errors, default=0.0), 3),
    }


def us_per_delivery(cores: Mapping[str, float], per_s: float) -> dict[str, float]:
    """Return the CPU microseconds that one delivery took by process, idle cost included."""
    if not per_s:
        return {}
    costs = {role: round(used / per_s * 1e6, 1) for role, used in cores.items()}
    return {**costs, "total": round(sum(costs[role] for role in PLATFORM), 1)}


def document(sizes: Sequence[Size], full_per_s: float) -> dict[str, Any]:
    """Return the cost model for machines; empty if no size was measured."""
    if not sizes:
        return {}
    largest = max(size.per_s for size in sizes)
    return {"full_per_s": full_per_s, "times_largest_size": round(full_per_s / largest, 1), **fitted(sizes, full_per_s)}
