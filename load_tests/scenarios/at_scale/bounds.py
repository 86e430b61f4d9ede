"""Check the bounds of a scenario: find the figure of each bound by its dotted path in the figures, and compare. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from delivery import errors


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The largest or the smallest value that a figure may have."""

    figure: str
    """Path of the figure in the JSON document, such as `phases.spike.direct_latency_ms.p99`."""
    at_most: float = math.inf
    """Largest value, inclusive."""
    at_least: float = -math.inf
    """Smallest value, inclusive."""

    def __str__(self) -> str:
        """Return the bound as text, for the verdict and the page."""
        limits = [f"≥ {self.at_least:g}"] if self.at_least > -math.inf else []
        limits += [f"≤ {self.at_most:g}"] if self.at_most < math.inf else []
        return f"{self.figure} {' and '.join(limits)}"


class Verdict(NamedTuple):
    """A bound, and the measured value of its figure."""

    bound: Bound
    value: float | None
    """None if the figures have no number at the path of the bound. The bound does not hold then."""

    @property
    def holds(self) -> bool:
        """Return True if the value exists and is within the bound."""
        return self.value is not None and self.bound.at_least <= self.value <= self.bound.at_most

    def document(self) -> dict[str, Any]:
        """Return the verdict as JSON values."""
        return {"bound": str(self.bound), "value": self.value, "holds": self.holds}


def check(wanted: Iterable[Bound], figures: Mapping[str, Any]) -> list[Verdict]:
    """Return the verdict of each bound on the figures of a run."""
    return [Verdict(bound, _number(figures, bound.figure)) for bound in wanted]


def replaced(wanted: Iterable[Bound], pairs: Iterable[str]) -> tuple[Bound, ...]:
    """Return the bounds, with new limits from `pairs`, each as `figure=limit`. A new limit of an upper bound is an upper limit.

    Raise RegistrationError for a figure without a bound and for a limit that is no number.
    """
    by_figure = {bound.figure: bound for bound in wanted}
    for pair in pairs:
        figure, _, limit = pair.partition("=")
        if figure not in by_figure:
            problem = f"has no bound in this scenario, so nothing was started; these figures have one: {', '.join(by_figure)}"
            raise errors.RegistrationError(figure, problem)
        try:
            value = float(limit)
        except ValueError:
            raise errors.RegistrationError(
                figure, f"its limit {limit!r} is no number, so nothing was started: write figure=number"
            ) from None
        is_upper = by_figure[figure].at_most < math.inf
        by_figure[figure] = Bound(figure=figure, **({"at_most": value} if is_upper else {"at_least": value}))
    return tuple(by_figure.values())


def _number(figures: Mapping[str, Any], path: str) -> float | None:
    found: Any = figures
    for name in path.split("."):
        if not isinstance(found, Mapping) or name not in found:
            return None
        found = found[name]
    return float(found) if isinstance(found, int | float) else None
