"""Fit a cost by a line over a variable or over its logarithm, and find the knee. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

KNEE = 1.25
"""The knee is the smallest value at which the cost exceeds this multiple of the cost at the smallest value."""
FORMS: Mapping[str, Callable[[float], float]] = {"x": float, "log10(1 + x)": lambda x: math.log10(1 + x)}
"""The forms that are tried: text of the form → function of the variable x. 1 is added because x may be 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A fitted line: cost = constant + slope · f(x). x is the variable, and f a function of FORMS, such as its logarithm."""

    form: str
    """Key of FORMS."""
    constant: float
    """Cost where f(x) is 0."""
    slope: float
    residual: float
    """Root of the mean square of the distances of the measured costs from the fit, in the unit of the cost."""

    def at(self, x: float) -> float:
        """Return the fitted cost at `x`."""
        return self.constant + self.slope * FORMS[self.form](x)

    def text(self) -> str:
        """Return the formula, such as `50.1 + 0.2 · x`."""
        return f"{self.constant:.4g} {'-' if self.slope < 0 else '+'} {abs(self.slope):.3g} · {self.form}"


def fitted(values: Sequence[float], costs: Sequence[float]) -> Fit:
    """Return the fit by the form in FORMS with the smallest residual; by the first form if the residuals are equal.

    With a single value the fit is a constant. Raise ValueError without a value.
    """
    if not values:
        raise ValueError("a fit needs a measured value")
    return min((_fitted(form, values, costs) for form in FORMS), key=lambda fit: fit.residual)


def _fitted(form: str, values: Sequence[float], costs: Sequence[float]) -> Fit:
    xs = [FORMS[form](value) for value in values]
    slope, constant = statistics.linear_regression(xs, costs) if len(set(xs)) > 1 else (0.0, statistics.fmean(costs))
    squares = [(constant + slope * x - cost) ** 2 for x, cost in zip(xs, costs, strict=True)]
    return Fit(form=form, constant=constant, slope=slope, residual=math.sqrt(statistics.fmean(squares)))


def knee(values: Sequence[float], costs: Sequence[float]) -> float | None:
    """Return the smallest value whose cost exceeds KNEE times the cost at the smallest value. None: no cost does."""
    points = sorted(zip(values, costs, strict=True))
    return next((value for value, cost in points if cost > KNEE * points[0][1]), None)
