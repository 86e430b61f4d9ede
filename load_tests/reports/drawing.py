"""Draw plots as SVG with matplotlib. The same data gives the same bytes."""

from __future__ import annotations

import io
from typing import Any

import matplotlib as mpl
from matplotlib import figure

COLOURS = {
    "jvm": "#0b6e99",
    "driver": "#c4570a",
    "worker": "#3a7d44",
    "kafka": "#8a6fb0",
    "publisher": "#8c8c8c",
    "total": "black",
}
"""Colour of each process in all plots."""


def sheet(width: float, height: float) -> figure.Figure:
    """Return an empty sheet of this size in inches."""
    mpl.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "fanout", "font.size": 9, "font.family": "sans-serif"}
    return figure.Figure(figsize=(width, height), layout="constrained")


def tidy(axes: Any) -> None:
    """Add a grid to a plot, remove its upper and right edge, and show a legend if lines have labels."""
    axes.grid(visible=True, linewidth=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=7.5)


def svg(drawn: figure.Figure) -> str:
    """Return the sheet as the text of an SVG document."""
    text = io.StringIO()
    drawn.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()
