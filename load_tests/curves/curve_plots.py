"""Draw the curves of an axis: the figures over the values of one variable. The same figures give the same file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from load_tests.curves import fit
from load_tests.reports import drawing
from load_tests.scenarios.at_scale import cost_model

KNEE_COLOUR = "#b3261e"
STEPS = 200
"""Pieces of the drawn line of the fit."""


def svg(figures: Mapping[str, Any]) -> str:
    """Return an SVG document with plots of cost and throughput over the values of one variable, such as the fan-out.

    If each value was measured in a job of its own, there are also plots of memory and of the time until the job was ready.
    """
    points = sorted(figures["points"], key=lambda point: point["value"])
    rows = 1 if figures["one_job"] else 2
    sheet = drawing.sheet(9.0, 2.9 * rows)
    panels = sheet.subplots(rows, 2, squeeze=False)
    _draw_cost(panels[0][0], points, figures)
    _draw_line(panels[0][1], points, "deliveries_per_s", "deliveries a second")
    if not figures["one_job"]:
        _draw_memory(panels[1][0], points)
        _draw_start(panels[1][1], points)
    for axes in panels.flat:
        _scale(axes, [point["value"] for point in points])
        axes.set_xlabel(figures["label"])
        axes.set_ylim(0, None)
        drawing.tidy(axes)
    return drawing.svg(sheet)


def _draw_cost(axes: Any, points: Sequence[Mapping[str, Any]], figures: Mapping[str, Any]) -> None:
    values = [point["value"] for point in points]
    for role in (*cost_model.PLATFORM, "total"):
        costs = [point["cpu_us"][role] for point in points]
        axes.plot(values, costs, color=drawing.COLOURS[role], linewidth=0.8, marker="o", markersize=3, label=role)
    found = {name: figures["fit"][name] for name in ("form", "constant", "slope", "residual")}
    line = fit.Fit(**found)
    xs = _between(values)
    axes.plot(xs, [line.at(x) for x in xs], color="black", linestyle=":", linewidth=1, label=line.text())
    if figures["knee"] is not None:
        axes.axvline(figures["knee"]["value"], color=KNEE_COLOUR, linewidth=0.8, linestyle="--", label="knee")
    axes.set_title(f"CPU µs of one {figures['unit']}")


def _draw_line(axes: Any, points: Sequence[Mapping[str, Any]], name: str, title: str) -> None:
    known = [point for point in points if point[name] is not None]
    axes.plot([point["value"] for point in known], [point[name] for point in known], color="black", marker="o", markersize=3)
    axes.set_title(title)


def _draw_memory(axes: Any, points: Sequence[Mapping[str, Any]]) -> None:
    for role in cost_model.PLATFORM:
        known = [point for point in points if role in point["peak_mb"]]
        sizes = [point["peak_mb"][role] for point in known]
        axes.plot([point["value"] for point in known], sizes, color=drawing.COLOURS[role], marker="o", markersize=3, label=role)
    _add_broadcast(axes, points)
    axes.set_title("peak memory of a process, MB")


def _add_broadcast(axes: Any, points: Sequence[Mapping[str, Any]]) -> None:
    known = [point for point in points if point["broadcast_mb"] is not None]
    sizes = [point["broadcast_mb"] for point in known]
    axes.plot([point["value"] for point in known], sizes, color="black", linestyle=":", label="broadcast of the registry")


def _draw_start(axes: Any, points: Sequence[Mapping[str, Any]]) -> None:
    _draw_line(axes, points, "ready_s", "seconds from the start until ready")


def _scale(axes: Any, values: Sequence[float]) -> None:
    if max(values) < 10 * max(1, min(values)):
        axes.set_xticks(values)
    elif min(values) > 0:
        axes.set_xscale("log")
    else:
        axes.set_xscale("symlog", linthresh=min(value for value in values if value > 0))


def _between(values: Sequence[float]) -> list[float]:
    """Return STEPS + 1 numbers from the smallest to the largest value. Each step multiplies number + 1 by the same factor."""
    first, ratio = 1 + min(values), (1 + max(values)) / (1 + min(values))
    return [first * ratio ** (step / STEPS) - 1 for step in range(STEPS + 1)]
