"""Define the commands `fanout rejected …`: their names, options and output.

Runs in `fanout` commands.
"""

from __future__ import annotations

from typing import Annotated

import typer

from fanout.redrive import selection
from fanout.terminal import commands, listing
from fanout.terminal.commands import AsJson

app = typer.Typer(
    help="Find and show rejected records: records of event topics that the job delivers to nobody.",
    no_args_is_help=True,
)

OfReason = Annotated[
    str | None, typer.Option("--reason", help="Only records rejected for this reason, such as unknown_tenant.")
]
OfTopic = Annotated[str | None, typer.Option("--topic", help="Only records of this event topic.")]
Since = Annotated[
    str | None, typer.Option("--since", help="Only records rejected at or after this time: 24h (ago), or 2026-05-01T10:00Z.")
]
Until = Annotated[str | None, typer.Option("--until", help="Only records rejected before this time, written like --since.")]


@app.command("list")
def list_(
    context: typer.Context,
    reason: OfReason = None,
    topic: OfTopic = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many records, the newest.")] = 50,
    output: listing.Output = None,
    as_json: AsJson = False,
) -> None:
    """List rejected records, the newest first: why each was rejected, and its topic, partition and offset."""
    from fanout.redrive import rejected_search  # noqa: PLC0415

    wanted = selection.RejectedSelection.from_options(reason, topic, since=since, until=until)
    with rejected_search.reading(commands.settings_of(context), commands.progress) as reader:
        found = rejected_search.find(reader, wanted, limit)
    rows, table = [rejected.summary() for rejected in found], [rejected.row() for rejected in found]
    listing.show(rows, kind="rejected", key="rejected", form=output, as_json=as_json, table=table)


@app.command()
def show(
    context: typer.Context,
    rejected: Annotated[str, typer.Argument(help="The rejected record: partition:offset, as `list` shows it.")],
    as_json: AsJson = False,
) -> None:
    """Show one rejected record: the reason, its headers and its value."""
    from fanout.redrive import rejected_search  # noqa: PLC0415

    with rejected_search.reading(commands.settings_of(context), commands.progress) as reader:
        found = reader.get(listing.id_of(rejected, "rejected"))
    if as_json:
        commands.print_json(found.document())
    else:
        rejected_search.show(commands.console, found)
