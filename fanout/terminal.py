"""What the commands share: settings, printing for people and machines, and the signal to end.

Runs in the command.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Annotated, Any

import orjson
import rich.console
import rich.table
import typer

from delivery import configuration, logs, settings

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
console = rich.console.Console(soft_wrap=True, highlight=False)
progress = rich.console.Console(stderr=True)
"""For what is seen on a terminal only, and never in a file."""


def settings_of(context: typer.Context) -> settings.Settings:
    """Return the settings, and set up the log."""
    loaded = configuration.read(os.environ, context.obj)
    logs.configure(loaded.logs.level, loaded.logs.format)
    return loaded


def print_json(value: Any) -> None:
    """Print for machines."""
    sys.stdout.write(orjson.dumps(value, option=orjson.OPT_INDENT_2, default=str).decode() + "\n")


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print rows with the same keys."""
    if not rows:
        console.print("none")
        return
    table = rich.table.Table(*rows[0])
    for row in rows:
        table.add_row(*("" if value is None else str(value) for value in row.values()))
    console.print(table)


def stop_event() -> threading.Event:
    """Return an event that SIGTERM and Ctrl-C set. A second Ctrl-C ends the process at once."""
    stop = threading.Event()

    def ask(number: int, _: object) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    signal.signal(signal.SIGTERM, ask)
    signal.signal(signal.SIGINT, ask)
    return stop
