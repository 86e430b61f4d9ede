"""Define the options that several commands of the load tests share."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from fanout.terminal import commands
from load_tests.harness import stage
from load_tests.profiling import profiler

JsonFile = Annotated[
    Path | None, typer.Option("--json", callback=commands.output_file, help="Also write the figures to this file.")
]
HtmlFile = Annotated[
    Path | None, typer.Option("--html", callback=commands.output_file, help="Also write a page with plots to this file.")
]
SvgFile = Annotated[Path | None, typer.Option(callback=commands.output_file, help="Draw the first day into this SVG file.")]
Folder = Annotated[Path | None, typer.Option(help="Folder for data and logs. It is emptied first.")]
Replaced = Annotated[list[str] | None, typer.Option("--set", help="Setting of the job, as area.field=value. May be repeated.")]


def terms(folder: Path | None, replaced: Iterable[str] | None, profiled: profiler.Profiler | None = None) -> stage.Terms:
    """Return the parameters that all scenarios share. `replaced` are settings of the job, each as `area.field=value`.

    Raise typer.BadParameter for a setting without `=`.
    """
    pairs = [pair.partition("=") for pair in replaced or ()]
    if wrong := [name for name, separator, _ in pairs if not separator]:
        raise typer.BadParameter(f"--set {wrong[0]} has no value, so nothing was started: write area.field=value")
    overrides = {name: value for name, _, value in pairs}
    return stage.Terms(say=say, folder=folder, overrides=overrides, profiler=profiled)


def say(text: str) -> None:
    """Print a line about the progress to standard error."""
    sys.stderr.write(text + "\n")
