"""Print a list as a table, a wide table, JSON, YAML or names, with the options of kubectl.

Runs in `fanout` commands.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Annotated, Any

import orjson
import typer
import yaml

from fanout.terminal import commands


class Form(enum.StrEnum):
    """The forms in which a command prints a list."""

    TABLE = "table"
    """The few columns that identify a row to a person."""
    WIDE = "wide"
    """All columns except those that are empty in every row."""
    JSON = "json"
    YAML = "yaml"
    NAME = "name"
    """`KIND/ID`, one a line. Commands with an id argument also accept this form."""


Output = Annotated[
    Form | None,
    typer.Option(
        "--output",
        "-o",
        help=f"Output format: {', '.join(Form)}. --json is the same as -o json.",
        show_default="table",
        metavar="FORM",
    ),
]


def show(
    rows: Sequence[dict[str, Any]],
    *,
    kind: str,
    key: str,
    form: Form | None,
    as_json: bool,
    table: Sequence[dict[str, Any]],
    wide: Sequence[dict[str, Any]] | None = None,
) -> None:
    """Print rows in a form. `form` None: JSON if `as_json`, else the form `table`.

    All rows have the same keys. `key` is the key whose value is the row's id. `kind` is the KIND of the form `name`. `table`
    are the rows of the form `table`. `wide` are the rows of the form `wide`; None: `rows` themselves.
    """
    plain = orjson.loads(orjson.dumps(list(rows), default=str))
    match form or (Form.JSON if as_json else Form.TABLE):
        case Form.JSON:
            commands.print_json(plain)
        case Form.YAML:
            # PyYAML writes ASCII, in which every invisible character is an escape.
            commands.print_text(yaml.safe_dump(plain, sort_keys=False, width=120))
        case Form.NAME:
            commands.print_text("".join(f"{kind}/{row[key]}\n" for row in plain))
        case Form.WIDE:
            full = list(rows if wide is None else wide)
            commands.print_table(
                columns(full, [name for name in (full or [{}])[0] if any(_has_content(row[name]) for row in full)])
            )
        case Form.TABLE:
            commands.print_table(list(table))


def columns(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows with these columns only."""
    return [{name: row[name] for name in names} for row in rows]


def id_of(text: str, kind: str) -> str:
    """Return the id from `ID` or `KIND/ID`."""
    return text.removeprefix(f"{kind}/")


def _has_content(value: Any) -> bool:
    return value not in (None, {}, [], "")
