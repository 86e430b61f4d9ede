"""Write the figures of a run as one page: verdicts, tables, and plots as SVG inside it. The page loads nothing."""

from __future__ import annotations

import html
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from load_tests.reports import drawing, pages

SHOWN = ("published", "published_share", "deliveries_per_s", "undelivered_max", "others_p99_ratio", "recovered_s")
"""Figures of a phase that are columns of the table, besides latency and CPU."""


def write(figures: Mapping[str, Any], file: Path) -> None:
    """Write the page of a run to the file."""
    file.write_text(page(figures))


def page(figures: Mapping[str, Any]) -> str:
    """Return the HTML page of a run. `figures` is the JSON document of the run."""
    series = figures["series"]
    holds = all(verdict["holds"] for verdict in figures["verdicts"])
    shape = ", ".join(f"{count:,} {name}" for name, count in figures["shape"].items())
    parts = [
        f"<h1>{html.escape(figures['scenario'])}: {'all bounds hold' if holds else 'a bound is broken'}</h1>",
        f"<p>{html.escape(figures['question'])} {figures['per_s']:,g} events a second, {shape}.</p>",
        _verdicts(figures["verdicts"]),
        _phases(figures.get("phases") or figures.get("sizes", {})),
    ]
    if figures.get("cost_model"):
        parts += ["<h2>Cores by load</h2>", _cost_table(figures["cost_model"]), _cost_plot(figures)]
    parts += ["<h2>Over time</h2>", _plot(series, _draw_latency, "Latency by the time of publishing, milliseconds")]
    parts.append(_plot(series, _draw_lag, "Lag: events and records that wait"))
    parts.append(_plot(series, _draw_load, "Events a second: published and delivered"))
    parts.append(_plot(series, _draw_cores, "CPU: cores by process"))
    for group, title in (("memory_mb", "Memory, MB"), ("files", "Open files"), ("threads", "Threads")):
        parts.append(_plot(series, _draw_group(group), title))
    others = {name: value for name, value in figures.items() if name not in {"series", "verdicts"}}
    text = orjson.dumps(others, option=orjson.OPT_INDENT_2).decode()
    parts.append(f"<h2>All figures</h2><pre>{html.escape(text)}</pre>")
    return pages.page(figures["scenario"], parts)


def _verdicts(verdicts: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for verdict in verdicts:
        word, css = ("holds", "holds") if verdict["holds"] else ("broken", "broken")
        value = "missing" if verdict["value"] is None else f"{verdict['value']:g}"
        bound = html.escape(verdict["bound"])
        rows.append(f'<tr><td>{bound}</td><td>{value}</td><td class="{css}">{word}</td></tr>')
    return "<table><tr><th>bound</th><th>measured</th><th></th></tr>\n" + "\n".join(rows) + "</table>"


def _phases(phases: Mapping[str, Mapping[str, Any]]) -> str:
    shown = [name for name in SHOWN if any(name in phase for phase in phases.values())]
    head = ["phase or share", *shown, "others p50", "others p99", "batch p99", "CPU µs a delivery"]
    rows = [
        [
            name,
            *(f"{phase[figure]:,g}" if figure in phase else "" for figure in shown),
            f"{phase['others_latency_ms']['p50']:,} ms",
            f"{phase['others_latency_ms']['p99']:,} ms",
            f"{phase['batch_age_ms']['p99']:,} ms",
            f"{phase['cpu_us_per_delivery'].get('total', 0):,g}",
        ]
        for name, phase in phases.items()
    ]
    return pages.table([name.replace("_", " ") for name in head], rows)


def _cost_table(model: Mapping[str, Any]) -> str:
    lines = {name: line for name, line in model.items() if isinstance(line, Mapping)}
    head = ["process", "idle cores", "µs a delivery", f"cores at {model['full_per_s']:,} a second", "worst error"]
    rows = [
        [
            name,
            f"{line['idle_cores']}",
            f"{line['us_per_delivery']}",
            f"{line['cores_at_full_load']}",
            f"{line['worst_error']:.0%}",
        ]
        for name, line in lines.items()
    ]
    return pages.table(head, rows)


def _svg(draw: Callable[[Any], None], title: str) -> str:
    sheet = drawing.sheet(9.0, 2.8)
    axes = sheet.subplots()
    draw(axes)
    axes.set_title(title)
    drawing.tidy(axes)
    return pages.inline(drawing.svg(sheet))


def _plot(series: Mapping[str, Any], draw: Callable[[Any, Mapping[str, Any]], None], title: str) -> str:
    def with_phases(axes: Any) -> None:
        draw(axes, series)
        for phase in series["phases"]:
            axes.axvline(phase["from_s"], color="#bbb", linewidth=0.8)
            axes.annotate(phase["name"], (phase["from_s"], 1), xycoords=("data", "axes fraction"), fontsize=7.5, va="top")
        axes.set_xlabel("seconds")

    return _svg(with_phases, title)


def _draw_latency(axes: Any, series: Mapping[str, Any]) -> None:
    for (name, rows), colour in zip(series["latency_ms"].items(), ("#0b6e99", "#c4570a", "#3a7d44"), strict=False):
        times = [row["at_s"] for row in rows]
        axes.plot(times, [max(1, row["p50"]) for row in rows], color=colour, linewidth=1, label=f"{name}, p50")
        axes.plot(times, [max(1, row["p99"]) for row in rows], color=colour, linewidth=1, linestyle=":", label=f"{name}, p99")
    axes.set_yscale("log")


def _draw_lag(axes: Any, series: Mapping[str, Any]) -> None:
    samples = series["samples"]
    times = [sample["at_s"] for sample in samples]
    axes.plot(times, [sample["undelivered"] for sample in samples], color="black", linewidth=1, label="undelivered events")
    for lane in sorted({lane for sample in samples for lane in sample["lag"]}):
        known = [sample for sample in samples if lane in sample["lag"]]
        lags = [sample["lag"][lane] for sample in known]
        axes.plot([sample["at_s"] for sample in known], lags, linewidth=0.8, label=f"records, {lane}")
    axes.set_ylim(0, None)


def _draw_load(axes: Any, series: Mapping[str, Any]) -> None:
    samples = series["samples"]
    pairs = [(before, now) for before, now in itertools.pairwise(samples) if now["at_s"] - before["at_s"] > 0.5]
    for name, colour in (("published", "#8c8c8c"), ("delivered", "#0b6e99")):
        rates = [(now[name] - before[name]) / (now["at_s"] - before["at_s"]) for before, now in pairs]
        axes.plot([now["at_s"] for _, now in pairs], rates, color=colour, linewidth=1, label=name)
    axes.set_ylim(0, None)


def _draw_cores(axes: Any, series: Mapping[str, Any]) -> None:
    rows = series["cores"]
    for role in [role for role in drawing.COLOURS if rows and role in rows[0]]:
        axes.plot(
            [row["at_s"] for row in rows], [row[role] for row in rows], color=drawing.COLOURS[role], linewidth=1, label=role
        )
    axes.set_ylim(0, None)


def _draw_group(group: str) -> Callable[[Any, Mapping[str, Any]], None]:
    def draw(axes: Any, series: Mapping[str, Any]) -> None:
        samples = series["samples"]
        for role in sorted({role for sample in samples for role in sample[group]}):
            known = [sample for sample in samples if role in sample[group]]
            values = [sample[group][role] for sample in known]
            axes.plot([sample["at_s"] for sample in known], values, color=drawing.COLOURS[role], linewidth=1, label=role)
        axes.set_ylim(0, None)

    return draw


def _cost_plot(figures: Mapping[str, Any]) -> str:
    model = figures["cost_model"]
    carried = [size for size in figures["sizes"].values() if size["is_carried"]]

    def draw(axes: Any) -> None:
        rates = [size["deliveries_per_s"] for size in carried]
        for role in ("jvm", "driver", "worker"):
            line = model[role]
            axes.scatter(rates, [size["cores"][role] for size in carried], color=drawing.COLOURS[role], s=16)
            ends = [0.0, max(rates)]
            fitted = [line["idle_cores"] + line["us_per_delivery"] / 1e6 * rate for rate in ends]
            axes.plot(ends, fitted, color=drawing.COLOURS[role], linewidth=1, label=role)
        axes.set_xlabel("deliveries a second")
        axes.set_ylim(0, None)

    return _svg(draw, "Cores by process: measured sizes, and the line through them")
