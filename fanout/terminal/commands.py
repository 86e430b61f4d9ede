"""What the commands share: settings, printing for people and machines, and the signal to end.

Runs in the command. All that a command prints goes through here, where foreign text loses its control characters
(delivery.observability.safe_text): a test keeps other modules from writing to standard output by themselves.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterable
from typing import Annotated, Any

import orjson
import rich.console
import rich.markup
import rich.segment
import rich.table
import typer

from delivery.config import loader, settings
from delivery.observability import logs, safe_text

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


PIPE_COLUMNS = 100_000
"""Columns of what is no terminal. A table takes as many as it needs."""


class Console(rich.console.Console):
    """Rich's, which shows the control characters of foreign text instead of obeying them."""

    def render(
        self, renderable: rich.console.RenderableType, options: rich.console.ConsoleOptions | None = None
    ) -> Iterable[rich.segment.Segment]:
        """Render as the base class does. Only Rich's own control sequences are left."""
        for one in super().render(renderable, options):
            yield one if one.control else rich.segment.Segment(safe_text.text(one.text), one.style)


console = Console(soft_wrap=True, highlight=False)
progress = Console(stderr=True)
"""For what is seen on a terminal only, and never in a file."""


def settings_of(context: typer.Context) -> settings.Settings:
    """Return the settings, and set up the log."""
    loaded = loader.read(os.environ, context.obj)
    logs.configure(loaded.logs.level, loaded.logs.format)
    return loaded


def print_json(value: Any) -> None:
    """Print for machines."""
    sys.stdout.write(safe_text.json(orjson.dumps(value, option=orjson.OPT_INDENT_2, default=str).decode()) + "\n")


def print_text(text: str) -> None:
    """Print text. Control characters except newlines and tabs become visible escapes."""
    sys.stdout.write(safe_text.text(text))


class JsonLines:
    """Standard output, for JSON documents each of which is a line."""

    def write(self, line: bytes) -> None:
        """Print a document with its newline."""
        sys.stdout.write(safe_text.json(line.decode()))


def say(text: str) -> None:
    """Tell a person something beside the output: progress, a hint, what went wrong."""
    sys.stderr.write(safe_text.text(text) + "\n")


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print rows with the same keys."""
    if not rows:
        console.print("none")
        return
    table = rich.table.Table(*rows[0])
    for row in rows:
        table.add_row(*("" if value is None else rich.markup.escape(safe_text.line(str(value))) for value in row.values()))
    show(console, table)


def show(to: rich.console.Console, table: rich.table.Table) -> None:
    """Print a table, whole: what does not fit into a terminal's line goes on in the next, and a pipe has no width."""
    for column in table.columns:
        column.overflow = "fold"
    if not to.is_terminal:
        to.width = PIPE_COLUMNS
    to.print(table, soft_wrap=False)


def stop_event() -> threading.Event:
    """Return an event that SIGTERM and Ctrl-C set. A second Ctrl-C ends the process at once."""
    stop = threading.Event()

    def ask(number: int, _: object) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    signal.signal(signal.SIGTERM, ask)
    signal.signal(signal.SIGINT, ask)
    return stop
