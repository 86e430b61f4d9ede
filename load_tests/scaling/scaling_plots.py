"""Draw a simulated day of `load_tests.scaling.simulated_days`. The same figures give the same file."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from load_tests.reports import drawing

SCALED, FIXED = "#0b6e99", "#c4570a"
"""Colours of the number of executors that follows the load, and of the fixed number."""
ZOOM_BEFORE_S, ZOOM_AFTER_S = 120.0, 1200.0
"""Seconds before and after the beginning of the first spike that the right column shows."""


def draw(figures: dict[str, Any], file: Path) -> None:
    """Draw load, executors and lag, over the first day and around the first spike; write the plot as SVG."""
    rows = figures["shown"]
    spike = figures["scenario"]["spike"]
    began_s = next(now["at_s"] for before, now in itertools.pairwise(rows) if now["per_s"] > spike / 2 * before["per_s"])
    zoomed = [row for row in rows if began_s - ZOOM_BEFORE_S <= row["at_s"] <= began_s + ZOOM_AFTER_S]
    sheet = drawing.sheet(9.0, 6.4)
    axes = sheet.subplots(3, 2, sharex="col")
    _column(axes[:, 0], figures, [row["at_s"] / 3600 for row in rows], rows, "hour of the day")
    _column(axes[:, 1], figures, [row["at_s"] - began_s for row in zoomed], zoomed, "seconds since the first spike began")
    file.write_text(drawing.svg(sheet))


def _column(axes: Any, figures: dict[str, Any], times: list[float], rows: list[dict[str, float]], label: str) -> None:
    coming, executors, lag = axes
    coming.plot(times, [row["per_s"] / 1000 for row in rows], color="black", linewidth=1)
    coming.set(title="events, thousand a second")
    executors.step(times, [row["executors"] for row in rows], where="post", color=SCALED, linewidth=1.2, label="by what waits")
    executors.axhline(figures["fixed"]["executors"], color=FIXED, linewidth=1, linestyle="--", label="fixed for the peak")
    executors.set(title="executors of 2 cores", ylim=(0, None))
    lag.plot(times, [row["lag"] / 1e6 for row in rows], color=SCALED, linewidth=1)
    lag.set(title="lag, million events", xlabel=label, ylim=(0, None))
    for axis in axes:
        drawing.tidy(axis)
