"""Define the command line of `python -m load_tests curves`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from delivery import errors
from fanout.terminal import commands
from load_tests import options
from load_tests.curves import command
from load_tests.curves.axes import AXES
from load_tests.harness import stopping


def curves(
    axis: Annotated[
        list[str] | None, typer.Option(help=f"One of: {', '.join(AXES)}. May be repeated. Without it: all axes.")
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            callback=commands.output_file,
            help="Figures are written here. The file keeps axes that are not measured now.",
        ),
    ] = None,
    html_file: options.HtmlFile = None,
    svg_folder: Annotated[
        Path | None, typer.Option("--svg", help="Also write curves.md and a plot for each axis into this folder.")
    ] = None,
    from_file: Annotated[
        Path | None, typer.Option("--from", help="Measure nothing: draw the figures that --json has written to this file.")
    ] = None,
    deliveries: Annotated[
        int | None, typer.Option(min=1, help="Deliveries of each measurement of a value. By default: the number of the axis.")
    ] = None,
    at_most: Annotated[
        int | None, typer.Option(min=1, help="Leave out values above this one, except the smallest value of an axis.")
    ] = None,
    folder: options.Folder = None,
    replaced: options.Replaced = None,
) -> None:
    """Measure how the cost of a delivery grows with one variable: the curve, its fit, and where the cost is up by a quarter."""
    stopping.install()
    files = command.Files(json_file=json_file, html_file=html_file, svg_folder=svg_folder)
    try:
        if from_file is not None:
            command.write(command.read(from_file), files)
            return
        axes = command.chosen(axis or (), at_most)
        wrong = command.measure(axes, deliveries, options.terms(folder, replaced), files)
    except errors.RegistrationError as exc:
        raise typer.BadParameter(str(exc)) from None
    for text in wrong:
        options.say(f"WRONG {text}")
    if wrong:
        sys.exit(1)
