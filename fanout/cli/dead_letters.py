"""Define the commands `fanout dead-letters …`: their names, options and output.

Runs in `fanout` commands.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from delivery import errors
from fanout.redrive import selection
from fanout.terminal import commands, listing
from fanout.terminal.commands import AsJson

app = typer.Typer(help="Find, show, export and redeliver dead letters: deliveries that were given up.", no_args_is_help=True)

CONSUMER_BRIEF = ("name", "endpoint", "event_type", "waiting", "leased", "parked", "max_receives")
"""The columns of the narrow table of `fanout dead-letters consumers`."""
OfEndpoint = Annotated[str | None, typer.Option("--endpoint", help="Only dead letters of this endpoint.")]
OfEventType = Annotated[
    str | None, typer.Option("--type", help="Only events of this type. order.* selects every type that begins with `order.`.")
]
OfTenant = Annotated[str | None, typer.Option("--tenant", help="Only events of this tenant.")]
OfReason = Annotated[str | None, typer.Option("--reason", help="Only deliveries given up for this reason, such as timeout.")]
Since = Annotated[
    str | None, typer.Option("--since", help="Only deliveries given up at or after this time: 24h (ago), or 2026-05-01T10:00Z.")
]
Until = Annotated[str | None, typer.Option("--until", help="Only deliveries given up before this time, written like --since.")]


@app.command("list")
def list_(
    context: typer.Context,
    endpoint_id: OfEndpoint = None,
    event_type: OfEventType = None,
    tenant_id: OfTenant = None,
    reason: OfReason = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many dead letters, the newest.")] = 50,
    output: listing.Output = None,
    as_json: AsJson = False,
) -> None:
    """List dead letters, the newest first."""
    from fanout.redrive import dead_letter_search  # noqa: PLC0415

    wanted = selection.Selection.from_options(endpoint_id, event_type, tenant_id, reason, since=since, until=until)
    with dead_letter_search.reading(commands.settings_of(context), commands.progress) as reader:
        found = dead_letter_search.find(reader, wanted, limit)
    rows, table = [letter.summary() for letter in found], [letter.row() for letter in found]
    listing.show(rows, kind="dead-letter", key="letter", form=output, as_json=as_json, table=table)


@app.command()
def consumers(
    context: typer.Context,
    customer: Annotated[str, typer.Argument(help="The customer whose consumers are listed.")],
    output: listing.Output = None,
    as_json: AsJson = False,
) -> None:
    """List a customer's consumers in the archive: how many dead letters wait, are leased and are parked for each."""
    from subscriptions_db.api.deliveries import consumers as api  # noqa: PLC0415
    from subscriptions_db.archive.search import consumers as archived  # noqa: PLC0415
    from subscriptions_db.postgres import connect, migrate  # noqa: PLC0415

    with connect.connect(commands.settings_of(context).database) as connection:
        migrate.require_current(connection)
        found = api.shown(connection, customer, archived.list_consumers(connection, customer))
    rows = [letter.model_dump() for letter in found]
    table = listing.columns([_with_bounds(row) for row in rows], CONSUMER_BRIEF)
    listing.show(rows, kind="consumer", key="name", form=output, as_json=as_json, table=table)


def _with_bounds(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a consumer with a `+` after each count that is only a lower bound."""
    counts = {name: row[name] if row[f"{name}_is_exact"] else f"{row[name]}+" for name in ("waiting", "parked")}
    return row | counts


@app.command()
def show(
    context: typer.Context,
    letter: Annotated[str, typer.Argument(help="The dead letter: partition:offset (as `list` shows it), or a webhook id.")],
    as_json: AsJson = False,
) -> None:
    """Show one dead letter: its event, its payload and its attempts."""
    from fanout.redrive import dead_letter_search  # noqa: PLC0415

    with dead_letter_search.reading(commands.settings_of(context), commands.progress) as reader:
        found = dead_letter_search.get(reader, listing.id_of(letter, "dead-letter"))
    if as_json:
        commands.print_json(found.document())
    else:
        dead_letter_search.show(commands.console, found)


@app.command()
def export(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="File to write; `-` is standard output.")],
    endpoint_id: OfEndpoint = None,
    event_type: OfEventType = None,
    tenant_id: OfTenant = None,
    reason: OfReason = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Write at most this many dead letters. Default: all.")] = None,
) -> None:
    """Write dead letters to FILE as JSON lines, unchanged from their topic.

    On standard output, control characters in texts become JSON escapes.
    """
    from fanout.redrive import dead_letter_search  # noqa: PLC0415

    wanted = selection.Selection.from_options(endpoint_id, event_type, tenant_id, reason, since=since, until=until)
    if str(file) != "-":
        commands.output_file(file)
    with dead_letter_search.reading(commands.settings_of(context), commands.progress) as reader:
        if str(file) == "-":
            dead_letter_search.export(reader, wanted, commands.JsonLines(), limit)
            return
        try:
            with tempfile.TemporaryFile() as whole:
                count = dead_letter_search.export(reader, wanted, whole, limit)
                whole.seek(0)
                with file.open("wb") as to:  # only now: a failed search leaves the file of an earlier export unchanged
                    shutil.copyfileobj(whole, to)
        except OSError as exc:
            raise errors.SettingsError(
                f"{file}, or a temporary file before it, cannot be written ({exc.strerror}). The export stopped, and the file "
                "may be incomplete: name another file, or make room in the folder TMPDIR"
            ) from exc
    commands.console.print(f"{_counted(count, 'dead letter')} written to {file}")


@app.command(context_settings={"allow_extra_args": True})
def redrive(
    context: typer.Context,
    endpoint_id: OfEndpoint = None,
    event_type: OfEventType = None,
    tenant_id: OfTenant = None,
    reason: OfReason = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Redrive at most this many dead letters, the oldest. Default: all.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Redrive all dead letters. Required when no other option selects them.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be redriven, and change nothing.")] = False,
    may_repeat: Annotated[
        bool, typer.Option("--may-repeat", help="Redrive also where Kafka may have lost the notes of earlier redrives.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Deliver dead letters again, by the present registry. Safe to repeat.

    The command writes the dead letters to the retries topic, and the retry lane of the job delivers them. An event that was
    sent alone keeps its webhook id. A batch keeps its webhook id only if one request has all of its events again. The newest
    dead letter of each delivery is redriven, if the options select this dead letter and it was not redriven before. Older dead
    letters are not redriven. A redriven delivery that is given up again has a new dead letter.
    """
    from fanout.redrive import dead_letter_search  # noqa: PLC0415

    if context.args:
        raise typer.BadParameter(
            f"redrive takes options such as --endpoint and --since, not the id of a dead letter ({context.args[0]}), so "
            "nothing was redriven. The HTTP API redrives a single one, by the id in GET /v1/dead-letters: "
            "POST /v1/dead-letters/{id}/redrive"
        )
    wanted = selection.Selection.from_options(endpoint_id, event_type, tenant_id, reason, since=since, until=until)
    if wanted.is_everything and not everything:
        raise errors.SettingsError(
            "no dead letters are selected, and nothing was redriven: "
            "add --endpoint, --type, --tenant, --reason, --since or --until; or --all for all of them"
        )
    config = commands.settings_of(context)
    with dead_letter_search.reading(config, commands.progress) as reader:
        summary = dead_letter_search.redrive(config, reader, wanted, limit=limit, dry_run=dry_run, may_repeat=may_repeat)
    if as_json:
        commands.print_json(summary.document() | {"dry_run": dry_run})
        return
    if summary.endpoints:
        commands.print_table([{"endpoint": name, "letters": count} for name, count in summary.endpoints.most_common()])
    done = "would be enqueued" if dry_run else "enqueued"
    letters, requests = _counted(summary.letters, "dead letter"), _counted(summary.requests, "request")
    commands.console.print(f"{letters} {done} for the retry lane, in {requests}")
    if before := summary.redriven_before:
        are_out = "was redriven before and is left out" if before == 1 else "were redriven before and are left out"
        commands.console.print(f"{_counted(before, 'dead letter')} {are_out}")


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
