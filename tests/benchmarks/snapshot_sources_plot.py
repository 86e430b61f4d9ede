"""Draw what tests.benchmarks.snapshot_sources found.

Run: `python -m tests.benchmarks.snapshot_sources_plot FIGURES.json PLOT.svg`. The same figures give the same file.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import orjson
from matplotlib import figure

BROADCAST, LOOK_UP, BOUND = "#0b6e99", "#c4570a", "#888888"
TTL_S = 30
EVENTS_PER_S = 2_500


def draw(figures: dict[str, Any], file: Path) -> None:
    """Write the plot: memory, start and CPU by the number of subscriptions, and the time until a change is in effect."""
    rows = figures["sizes"]
    sizes = [row["subscriptions"] for row in rows]
    [queries_per_s] = [
        row["queries_per_s"] for row in figures["queries_per_s"] if (row["ttl_s"], row["events_per_s"]) == (TTL_S, EVENTS_PER_S)
    ]
    missed = queries_per_s / EVENTS_PER_S
    mpl.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "fanout", "font.size": 9, "font.family": "sans-serif"}
    sheet = figure.Figure(figsize=(8.4, 6.2), layout="constrained")
    (memory, start), (cpu, effect) = sheet.subplots(2, 2)

    _lines(
        memory,
        sizes,
        "memory of a worker for the registry, MB",
        ("broadcast", BROADCAST, "-", [row["broadcast"]["registry_mb"] for row in rows]),
        ("look-up", LOOK_UP, "-", [row["look_up"]["registry_mb"] for row in rows]),
    )
    memory.axhline(150, color=BOUND, linewidth=0.8, linestyle=":")
    memory.annotate("bound at 100,000", (sizes[0], 150), (2, 3), textcoords="offset points", color=BOUND)
    _lines(
        start,
        sizes,
        "time to the first event, s",
        ("broadcast", BROADCAST, "-", [row["broadcast"]["read_s"] + row["broadcast"]["first_event_s"] for row in rows]),
        ("look-up", LOOK_UP, "-", [row["look_up"]["first_event_s"] for row in rows]),
    )
    _lines(
        cpu,
        sizes,
        "CPU of a worker per event, µs",
        ("broadcast", BROADCAST, "-", [row["broadcast"]["warm_us"] for row in rows]),
        ("broadcast, 10 changes/s", BROADCAST, "--", [row["broadcast"]["churn_us"]["10"] for row in rows]),
        ("broadcast, 1,000 changes/s", BROADCAST, ":", [row["broadcast"]["churn_us"]["1000"] for row in rows]),
        ("look-up, all answers kept", LOOK_UP, "--", [row["look_up"]["warm_us"] for row in rows]),
        (
            f"look-up, TTL {TTL_S} s, {EVENTS_PER_S:,} events/s",
            LOOK_UP,
            "-",
            [row["look_up"]["warm_us"] + missed * row["look_up"]["look_up_worker_us"] for row in rows],
        ),
    )
    _lines(
        effect,
        sizes,
        "time until a change is known, s (worst)",
        *(
            (
                f"broadcast, {int(churn):,} changes/s",
                BROADCAST,
                style,
                [row["broadcast_effect_s"][churn]["worst"] for row in rows],
            )
            for churn, style in (("0", "-"), ("10", "--"), ("1000", ":"))
        ),
        (f"look-up, TTL {TTL_S} s", LOOK_UP, "-", [TTL_S for _ in rows]),
    )
    cpu.set_ylim(top=1e5)  # room for the legends
    effect.set_ylim(bottom=1e-5)
    effect.legend(frameon=False, fontsize=7.5, loc="lower left")
    sheet.savefig(file, format="svg", metadata={"Date": None, "Creator": None})


def _lines(axes: Any, sizes: list[int], title: str, *lines: tuple[str, str, str, list[float]]) -> None:
    for label, color, style, values in lines:
        axes.plot(sizes, values, style, color=color, marker="o", markersize=3, linewidth=1.4, label=label)
    axes.set(xscale="log", yscale="log", title=title, xlabel="subscriptions")
    axes.grid(visible=True, linewidth=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=7.5)


if __name__ == "__main__":
    draw(orjson.loads(Path(sys.argv[1]).read_bytes()), Path(sys.argv[2]))
