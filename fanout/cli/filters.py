"""Define the command `fanout filter try`: test a filter on an event before a subscription uses the filter.

Runs in `fanout` commands. Needs neither Kafka nor Postgres.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from delivery import errors
from delivery.config import worker_plans
from delivery.model import Record
from delivery.webhooks.events import parsing
from delivery.webhooks.filters import event_pattern
from delivery.webhooks.routing import explain, matching
from fanout.terminal import commands
from fanout.terminal.commands import AsJson, console
from subscriptions_db.manifest import lint, yaml_document

_STRUCTURED = (("content-type", parsing.STRUCTURED.encode() + b"+json"),)
"""The Kafka header by which a producer marks a CloudEvent in structured mode."""

app = typer.Typer(help="Test filters of subscriptions.", no_args_is_help=True)


@app.command("try")
def try_(
    context: typer.Context,
    pattern: Annotated[str, typer.Option("--filter", help="The filter: JSON, or a file with JSON or YAML.")],
    event: Annotated[str, typer.Option(help="The event as its producer writes it: JSON, a file, or `-` (standard input).")],
    as_json: AsJson = False,
) -> None:
    """Show whether a filter matches an event, and which fields differ. Exit code 1: the filter does not match."""
    config = commands.settings_of(context)
    wanted: Any = yaml_document.read(_content("--filter", pattern), "--filter").value
    if not isinstance(wanted, dict):
        raise errors.RegistrationError("--filter", 'is not a filter: write an object such as {"data": {"amount": [5]}}')
    try:
        compiled = event_pattern.compile_pattern(wanted)
    except errors.FilterError as exc:
        raise exc.within("--filter") from None
    value = _content("--event", event)
    headers = _STRUCTURED if b'"specversion"' in value else ()
    record = Record(
        topic=config.source.topic_prefix + "tried", partition=0, offset=0, appended_at_ms=0, value=value, headers=headers
    )
    try:
        tried = parsing.parse(record, worker_plans.layout_of(config))
    except errors.EventRejected as exc:
        raise errors.RegistrationError(
            "--event",
            f"the filter was not tried: the job would reject this event ({exc.reason}: {exc.detail}). Correct the event",
        ) from None
    document = matching.filter_document(tried)
    is_match = compiled.matches(document)
    detail = "the filter matches the event" if is_match else explain.filter_detail(wanted, tried, document)
    warnings = [str(warning) for warning in lint.filter_roots(wanted)]
    if as_json:
        commands.print_json({"matches": is_match, "detail": detail, "warnings": warnings})
    else:
        console.print(detail, markup=False)
        for warning in warnings:
            console.print(f"warning: {warning}", markup=False)
    raise typer.Exit(0 if is_match else 1)


def _content(option: str, text: str) -> bytes:
    """Return the JSON of an option, or the content of the file that the option names."""
    if text == "-":
        return sys.stdin.buffer.read()
    if text.lstrip().startswith(("{", "[")):
        return text.encode()
    try:
        return Path(text).read_bytes()
    except OSError as exc:
        raise errors.RegistrationError(
            option,
            f"is neither JSON nor a readable file ({exc.strerror}), so the filter was not tried: write JSON that begins with "
            "{ or [, or name a file",
        ) from None
