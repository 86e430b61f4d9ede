"""The command that runs a load with profilers attached, and draws flame graphs."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from load_tests import options
from load_tests.harness import machine_speed, stage, stopping
from load_tests.profiling import profiler
from load_tests.scenarios import batch, direct, latency, mission


class ProfiledLoad(enum.StrEnum):
    """A load to profile."""

    DIRECT = "direct"
    BATCH = "batch"
    MISSION = "mission"
    LATENCY = "latency"


LOADS: dict[ProfiledLoad, Callable[[stage.Terms], dict[str, Any]]] = {
    ProfiledLoad.DIRECT: lambda terms: direct.run(direct.DirectScenario(events=300_000, steady_s=1), terms),
    ProfiledLoad.BATCH: lambda terms: batch.run(batch.BatchScenario(settle_s=1, steady_s=1), terms),
    ProfiledLoad.MISSION: lambda terms: mission.run(mission.MissionScenario(per_s=(200,), seconds=60), terms),
    ProfiledLoad.LATENCY: lambda terms: latency.run(latency.LatencyScenario(seconds=60, kills=0), terms),
}
"""The scenario of each load. The loads at full speed have enough events for several hundred samples of each worker."""


def profile(
    load: Annotated[
        ProfiledLoad,
        typer.Argument(
            help="Single events or batches at full speed; the mission's shape at no load and 200 events a second; or the "
            "real-time lane at 50, 200 and 1,000 events a second."
        ),
    ],
    into: Annotated[Path, typer.Argument(help="Folder for the profiles. Each measured part gets a folder of its own.")],
    folder: options.Folder = None,
    replaced: options.Replaced = None,
) -> None:
    """Profile a load: flame graphs of the JVM, the driver and the workers, and their CPU by thread and component.

    The profilers take CPU too. So do not compare the figures with those of a run without profilers.
    """
    stopping.install()
    terms = options.terms(folder, replaced, profiler.Profiler(into, options.say))
    figures = machine_speed.beside(lambda: LOADS[load](terms))
    sys.stdout.write(orjson.dumps(figures, option=orjson.OPT_INDENT_2).decode() + "\n")
    if figures["lost"] or not figures["reconciled"]["holds"]:
        raise typer.Exit(1)
