"""The command line of the load tests."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import orjson
import typer

from load_tests import direct as direct_scenario

app = typer.Typer(help="Load tests: the whole platform on this machine, and what it costs.", no_args_is_help=True)
JsonFile = Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")]
_DEFAULTS = direct_scenario.Scenario()


@app.callback()
def _common() -> None:
    pass


@app.command()
def direct(
    json_file: JsonFile = None,
    events: Annotated[int, typer.Option(min=1000, help="Events that are measured.")] = _DEFAULTS.events,
    warm_up: Annotated[int, typer.Option(min=0, help="Events before those.")] = _DEFAULTS.warm_up,
    steady_per_s: Annotated[int, typer.Option(help="Events a second for the latency.")] = _DEFAULTS.steady_per_s,
    steady_s: Annotated[int, typer.Option(help="For so many seconds.")] = _DEFAULTS.steady_s,
    folder: Annotated[Path | None, typer.Option(help="Keep data and logs here; it is emptied first.")] = None,
    replaced: Annotated[list[str] | None, typer.Option("--set", help="A setting of the job, as area.field=value.")] = None,
) -> None:
    """Deliver single events to 100 endpoints at full speed, then at a steady pace."""
    scenario = direct_scenario.Scenario(events=events, warm_up=warm_up, steady_per_s=steady_per_s, steady_s=steady_s)
    overrides = dict(pair.split("=", 1) for pair in replaced or ())
    _finish(direct_scenario.run(scenario, _say, folder=folder, overrides=overrides), json_file)


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


def _finish(figures: dict[str, object], json_file: Path | None) -> None:
    document = orjson.dumps(figures, option=orjson.OPT_INDENT_2)
    sys.stdout.write(document.decode() + "\n")
    if json_file is not None:
        json_file.write_bytes(document)
    if figures["lost"] or figures.get("unexpected") or figures.get("unverified"):
        raise typer.Exit(1)


app(prog_name="python -m load_tests")
