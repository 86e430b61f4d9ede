"""Define the command `fanout filter try`: test a filter on an event before a subscription uses the filter.

Runs in `fanout` commands. Needs neither Kafka nor Postgres.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from delivery import errors
from delivery.webhooks.filters import event_pattern
from delivery.webhooks.routing import explain, matching
from fanout.cli import tried_event
from fanout.cli.tried_event import EventText
from fanout.terminal import commands
from fanout.terminal.commands import AsJson, console
from subscriptions_db.manifest import lint, yaml_document

app = typer.Typer(help="Test filters of subscriptions.", no_args_is_help=True)


@app.command("try")
def try_(
    context: typer.Context,
    pattern: Annotated[str, typer.Option("--filter", help="The filter: JSON, or a file with JSON or YAML.")],
    event: EventText,
    as_json: AsJson = False,
) -> None:
    """Show whether a filter matches an event, and which fields differ.

    Exit code 1: the filter does not match, or the filter or the event is refused. Exit code 2: a setting is wrong.
    """
    config = commands.settings_of(context)
    wanted: Any = yaml_document.read(tried_event.content("--filter", pattern, "filter"), "--filter").value
    if not isinstance(wanted, dict):
        raise errors.RegistrationError(
            "--filter", 'is not a filter, so nothing was tried: write an object such as {"data": {"amount": [5]}}'
        )
    try:
        compiled = event_pattern.compile_pattern(wanted)
    except errors.FilterError as exc:
        raise errors.FilterError(exc.path, f"{exc.problem}. Nothing was tried").within("--filter") from None
    tried = tried_event.read(config, event, "filter")
    document = matching.filter_document(tried)
    is_match = compiled.matches(document)
    detail = "the filter matches the event" if is_match else explain.filter_detail(wanted, tried, document)
    warnings = [str(warning) for warning in lint.filter_roots(wanted)]
    if as_json:
        commands.print_json({"matches": is_match, "detail": detail, "warnings": warnings})
    else:
        console.print(detail)
        for warning in warnings:
            console.print(f"warning: {warning}")
    raise typer.Exit(0 if is_match else 1)
