"""Define the command `fanout event-type try`: test a schema on an event.

`--schema` gives the schema, which need not be in the catalogue. Without it, the catalogue's schema for the event's type is
tested. Runs in `fanout` commands. Needs no Kafka, and needs Postgres only without `--schema`.
"""

from __future__ import annotations

from typing import Annotated, Any

import orjson
import typer

from delivery import errors
from delivery.config import settings
from fanout.cli import tried_event
from fanout.cli.tried_event import EventText
from fanout.terminal import commands
from fanout.terminal.commands import AsJson, console
from subscriptions_db.manifest import event_types, yaml_document
from subscriptions_db.postgres import connect, migrate
from subscriptions_db.registration import registered_rows

app = typer.Typer(help="Try schemas of event types.", no_args_is_help=True)


@app.command("try")
def try_(
    context: typer.Context,
    event: EventText,
    schema: Annotated[
        str | None, typer.Option(help="The schema: JSON, or a file with JSON or YAML. Default: the schema in the catalogue.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show whether the payload of an event keeps to a schema.

    Exit code 1: the payload does not keep to the schema, or the command failed. Exit code 2: a setting is wrong. The job checks
    no event against the schemas of the catalogue.
    """
    config = commands.settings_of(context)
    tried = tried_event.read(config, event, "schema")
    wanted = _of_catalogue(config, tried.event_type) if schema is None else _of_option(schema)
    if tried.opaque is not None:
        raise errors.RegistrationError(
            "--event",
            "the schema was not tried: the event's payload is not JSON, and a schema describes JSON only. Name another event",
        )
    try:
        found = event_types.problems(wanted, orjson.loads(tried.data))
    except errors.RegistrationError as exc:
        raise errors.RegistrationError(exc.path, f"{exc.problem}. Nothing was tried").within("--event") from None
    if as_json:
        problems = [{"field": problem.path, "problem": problem.problem} for problem in found]
        commands.print_json({"event_type": tried.event_type, "keeps_to_schema": not found, "errors": problems})
    elif not found:
        console.print(f"the payload keeps to the schema of {tried.event_type}")
    else:
        for problem in found:
            console.print(f"{problem.path or 'the payload'}: {problem.problem}")
    raise typer.Exit(1 if found else 0)


def _of_option(text: str) -> dict[str, Any]:
    wanted: Any = yaml_document.read(tried_event.content("--schema", text, "schema"), "--schema").value
    if not isinstance(wanted, dict):
        raise errors.RegistrationError(
            "--schema", 'is not a schema, so nothing was tried: write an object such as {"type": "object"}'
        )
    try:
        event_types.check(wanted, [])
    except errors.RegistrationError as exc:
        raise errors.RegistrationError(
            "--schema" + exc.path.removeprefix("json_schema"), f"{exc.problem}. Nothing was tried"
        ) from None
    return wanted


def _of_catalogue(config: settings.Settings, event_type: str) -> dict[str, Any]:
    with connect.connect(config.database) as connection, connect.translated_errors():
        migrate.require_current(connection)
        row = registered_rows.rows_of(connection, {"event_type": [event_type]})["event_type"].get(event_type)
    if row is None or row["json_schema"] is None:
        missing = "is not in the catalogue" if row is None else "has no schema in the catalogue"
        raise errors.RegistrationError(
            "--schema",
            f"the schema was not tried: {event_type} {missing}. Name a schema with --schema. `fanout get event-types` "
            "shows the catalogue",
        )
    schema: dict[str, Any] = row["json_schema"]
    return schema
