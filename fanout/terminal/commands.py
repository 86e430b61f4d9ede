"""Read settings, print for people and machines, and stop on signals: functions that all commands share.

Runs in `fanout` commands. All output of a command goes through this module, which escapes control characters of foreign text
(delivery.observability.safe_text). A test keeps other modules from writing to standard output.
"""

from __future__ import annotations

import codecs
import io
import json
import os
import signal
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import orjson
import rich.console
import rich.segment
import rich.table
import typer

from delivery.config import settings, settings_loader
from delivery.observability import logs, safe_text

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


PIPE_COLUMNS = 100_000
"""Width for output that is not a terminal, so that no table is folded."""


class Console(rich.console.Console):
    """Rich's console, for foreign text. Control characters become visible escapes, and all other characters stay as they are.

    With markup, Rich would leave out `[kafka]`, and fail at `[/order]`. With emoji codes, it would print a picture for `:bank:`
    of the id `acme:bank:eu`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False} | options)

    def render(
        self, renderable: rich.console.RenderableType, options: rich.console.ConsoleOptions | None = None
    ) -> Iterable[rich.segment.Segment]:
        """Yield the segments of the base class, with control characters in their text escaped.

        Rich's own control codes stay.
        """
        for segment in super().render(renderable, options):
            yield segment if segment.control else rich.segment.Segment(safe_text.text(segment.text), segment.style)


console = Console(soft_wrap=True, highlight=False)
progress = Console(stderr=True)
"""Console for progress, which is shown on a terminal only."""


def escape_unencodable() -> None:
    """Let standard output write each character that its encoding lacks as an escape of JSON.

    Otherwise Python would end the command at the first of these characters, after the command's work and before the rest of the
    output.
    """
    codecs.register_error("fanout", _escaped)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="fanout")


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def output_file(path: Path | None) -> Path | None:
    """Return `path` if a command can write this file when it ends. None: the command writes no file.

    Typer calls this function, the `callback` of an option, before the command begins to work. Raise typer.BadParameter if the
    file cannot be written.
    """
    if path is None:
        return None
    try:
        is_writable = os.access(path, os.W_OK) if path.exists() else os.access(path.parent, os.W_OK | os.X_OK)
        is_file = path.parent.is_dir() and not path.is_dir()
    except OSError:  # the name is too long, or this login may not search a folder
        is_writable = is_file = False
    if not (is_writable and is_file):
        raise typer.BadParameter(
            f"{path} cannot be written, so nothing was done: name a file in a folder that exists, with the right to write it"
        )
    return path


WITHOUT_SETTINGS = "fanout.without_settings"
"""Key of the dictionary `meta` of a command's context. Its value is a hint for the operator: no settings file was found."""


def settings_of(context: typer.Context) -> settings.Settings:
    """Read the settings of a command, configure logging with them, and return them.

    If there are no settings, store a hint in the context. `fanout` shows the hint below an error that missing settings may
    cause.
    """
    loaded = settings_loader.read(os.environ, context.obj)
    if context.obj is None and settings_loader.finds_nothing(os.environ):
        context.meta[WITHOUT_SETTINGS] = (
            f"No settings file was found in {Path.cwd()} (fanout.toml or {settings_loader.LOCAL_FILE}): run this command where "
            "`fanout up` runs, or name the file with --config"
        )
    logs.configure(loaded.logs.level, loaded.logs.format)
    return loaded


def print_json(value: Any) -> None:
    """Print a value as JSON for machines."""
    sys.stdout.write(safe_text.json(orjson.dumps(value, option=orjson.OPT_INDENT_2, default=str).decode()) + "\n")


def print_text(text: str) -> None:
    """Print text, and add no newline. Control characters except newlines and tabs become visible escapes."""
    sys.stdout.write(safe_text.text(text))


class JsonLines:
    """Write JSON lines to standard output, by a method `write` as of a binary file. Control characters become JSON escapes."""

    def write(self, line: bytes) -> None:
        """Print one JSON line, which ends with a newline."""
        sys.stdout.write(safe_text.json(line.decode()))
        sys.stdout.flush()  # without this, a pipe gets the line only together with later lines, and there may be none


def say(text: str) -> None:
    """Print a message to standard error: progress, a hint, or an error."""
    sys.stderr.write(safe_text.text(text) + "\n")


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print rows, which all have the same keys, as a table. Without rows, print `none`."""
    if not rows:
        console.print("none")
        return
    table = rich.table.Table(*rows[0])
    for row in rows:
        table.add_row(*("" if value is None else safe_text.line(str(value)) for value in row.values()))
    show(console, table)


def show(to: rich.console.Console, table: rich.table.Table) -> None:
    """Print a whole table: long cells are folded on a terminal, and not at all in a pipe or file."""
    for column in table.columns:
        column.overflow = "fold"
    if not to.is_terminal:
        to.width = PIPE_COLUMNS
    to.print(table, soft_wrap=False)


def stop_event() -> threading.Event:
    """Return an event that SIGTERM and Ctrl-C (SIGINT) set. A second signal of the same kind ends the process at once."""
    stop = threading.Event()

    def ask(number: int, _: object) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    signal.signal(signal.SIGTERM, ask)
    signal.signal(signal.SIGINT, ask)
    return stop
