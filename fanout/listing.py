"""Print a list as its reader wants it: a table, a wide one, JSON, YAML, or names alone, as users of kubectl know it.

Runs in the command.
"""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Sequence
from typing import Annotated, Any

import typer
import yaml

from fanout import terminal


class Form(enum.StrEnum):
    """How a list is printed."""

    TABLE = "table"
    """The columns that tell one from another."""
    WIDE = "wide"
    """Every column that is not empty in all rows."""
    JSON = "json"
    YAML = "yaml"
    NAME = "name"
    """KIND/ID, one a line; commands that take an id take this as well."""


Output = Annotated[
    Form | None,
    typer.Option("--output", "-o", help="How it is printed; --json is -o json.", show_default="table", metavar="FORM"),
]


def show(
    rows: Sequence[dict[str, Any]],
    *,
    kind: str,
    key: str,
    form: Form | None,
    as_json: bool = False,
    brief: Sequence[str] = (),
    people: Sequence[dict[str, Any]] | None = None,
) -> None:
    """Print rows with the same keys, of which `key` is the id; `brief` are the columns of a narrow table, by default all.

    `people` are the rows as tables show them, where that is another way than for machines.
    """
    told = list(rows if people is None else people)
    match form or (Form.JSON if as_json else Form.TABLE):
        case Form.JSON:
            terminal.print_json(list(rows))
        case Form.YAML:
            # In ASCII, so that what is invisible is an escape of YAML's own.
            terminal.print_text(yaml.safe_dump(_plain(list(rows)), sort_keys=False, width=120))
        case Form.NAME:
            terminal.print_text("".join(f"{kind}/{row[key]}\n" for row in rows))
        case Form.WIDE:
            filled = [name for name in (told or [{}])[0] if any(row[name] not in (None, {}, [], "") for row in told)]
            terminal.print_table([{name: row[name] for name in filled} for row in told])
        case Form.TABLE:
            terminal.print_table([{name: row[name] for name in brief or row} for row in told])


def id_of(text: str, kind: str) -> str:
    """Return the id that somebody means by it, or by `KIND/ID`."""
    return text.removeprefix(f"{kind}/")


def _plain(value: Any) -> Any:
    """Return a value with what YAML and JSON have in common: texts for times and for members of enumerations."""
    if isinstance(value, dict):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, dt.datetime):
        return value.isoformat()
    return value if value is None or type(value) in {bool, int, float, str} else str(value)
