"""Write the curves: a page for the documents with a plot for each axis, or one HTML page. Pure, except `write_folder`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from load_tests.curves import curve_plots, fit
from load_tests.reports import pages

PAGE = "curves.md"
"""Name of the page in the folder of the plots."""
ROLES = {"jvm": "the JVM", "driver": "the driver's Python", "worker": "the workers"}
"""Role of a process → its name in sentences."""
HEAD = ("value", "CPU µs: JVM", "driver", "worker", "total", "by pass", "deliveries/s", "ready, s", "broadcast, MB",
        "peak MB: JVM", "driver", "worker", "lost", "twice", "machine")  # fmt: skip
"""Head of the table of an axis."""


def write_folder(axes: Mapping[str, Mapping[str, Any]], folder: Path) -> None:
    """Write `curves.md`, and a plot as SVG for each axis with a measured point. Create the folder if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, figures in drawable(axes).items():
        (folder / f"{name}.svg").write_text(curve_plots.svg(figures))
    (folder / PAGE).write_text(markdown(axes))


def drawable(axes: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the axes that have a measured point."""
    return {name: figures for name, figures in axes.items() if figures["points"]}


def markdown(axes: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the text of `curves.md`, a page of the documents."""
    lines = ["# How cost grows", "", "<!-- Written by `python -m load_tests curves`. -->", ""]
    lines += ["[Load tests](../load-tests.md#how-cost-grows) explains the figures."]
    for name, figures in drawable(axes).items():
        lines += ["", f"## {name}", "", *(f"* {text}" for text in sentences(figures))]
        lines += ["", f"![{figures['label']}]({name}.svg)", ""]
        lines += ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
        lines += ["| " + " | ".join(row) + " |" for row in _rows(figures)]
    return "\n".join(lines) + "\n"


def html(axes: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page as HTML, with the plots in it."""
    parts = ["<h1>How cost grows</h1>"]
    for name, figures in drawable(axes).items():
        text = " ".join(sentences(figures))
        parts += [
            f"<h2>{name}</h2>",
            f"<p>{text}</p>",
            pages.inline(curve_plots.svg(figures)),
            pages.table(HEAD, _rows(figures)),
        ]
    return pages.page("How cost grows", parts)


def sentences(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield sentences about an axis: why cost depends on it, the fit, the knee (fit.KNEE), and the values that are left out."""
    found, knee, unit = figures["fit"], figures["knee"], figures["unit"]
    yield figures["because"]
    yield f"CPU µs of one {unit}, with x = {figures['label']}: {found['text']} (residual {found['residual']:.2g} µs)."
    if knee is None:
        yield f"No knee: no value costs more than {fit.KNEE} times as much as the smallest value."
    else:
        share = f"{knee['share']:.0%} of the growth is in {ROLES[knee['grew_most']]}"
        first = f"from {knee['value']:,} on, a value costs more than {fit.KNEE} times as much as the smallest value"
        yield f"Knee: {first}; {share}."
    for value, problem in figures["left_out"].items():
        yield f"{int(value):,} is left out: {problem}."


def _rows(figures: Mapping[str, Any]) -> Iterator[list[str]]:
    for point in figures["points"]:
        cost, peak, checks = point["cpu_us"], point["peak_mb"], point["checks"] or {}
        yield [
            f"{point['value']:,}",
            *(f"{cost[role]:,.1f}" for role in ("jvm", "driver", "worker", "total")),
            " · ".join(f"{total:,.1f}" for total in point["cpu_us_by_pass"]),
            f"{point['deliveries_per_s']:,}",
            *("" if point[name] is None else f"{point[name]:,}" for name in ("ready_s", "broadcast_mb")),
            *(f"{peak[role]:,}" if role in peak else "" for role in ROLES),
            *(f"{checks[name]:,}" if checks else "not compared" for name in ("lost", "duplicates")),
            f"{point['slowdown']:.1f} ×" if "slowdown" in point else "",
        ]
