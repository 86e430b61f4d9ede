"""The commands `fanout dead-letters …`: what they are called, what they take, what they print.

Runs in the command.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from delivery import errors
from fanout.redrive import selection
from fanout.terminal import commands, listing
from fanout.terminal.commands import AsJson

app = typer.Typer(help="What was given up: find it, show it, export it, deliver it again.", no_args_is_help=True)

SELECTION = {
    "endpoint_id": Annotated[str | None, typer.Option("--endpoint", help="Only of this endpoint.")],
    "event_type": Annotated[str | None, typer.Option("--type", help="Only events of this type; order.* is all that begin so.")],
    "tenant_id": Annotated[str | None, typer.Option("--tenant", help="Only events of this tenant.")],
    "reason": Annotated[str | None, typer.Option("--reason", help="Only what was given up for this reason, such as timeout.")],
    "since": Annotated[str | None, typer.Option("--since", help="Only what was given up since: 24h, or 2026-05-01T10:00Z.")],
    "until": Annotated[str | None, typer.Option("--until", help="Only what was given up before.")],
}


def selecting(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that say which dead letters are meant, in the place of its parameter `wanted`."""

    @functools.wraps(command)
    def with_options(**given: Any) -> None:
        wanted = selection.Selection.of(**{name: given.pop(name) for name in SELECTION})
        command(**given, wanted=wanted)

    parameters: list[inspect.Parameter] = []
    for own in inspect.signature(command, eval_str=True).parameters.values():
        kind = inspect.Parameter.KEYWORD_ONLY
        if own.name == "wanted":
            parameters += [inspect.Parameter(name, kind, default=None, annotation=one) for name, one in SELECTION.items()]
        else:
            parameters.append(own.replace(kind=kind))
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer reads
    with_options.__annotations__ = {one.name: one.annotation for one in parameters}
    return with_options


@app.command("list")
@selecting
def list_(
    context: typer.Context,
    wanted: selection.Selection,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest.")] = 50,
    output: listing.Output = None,
    as_json: AsJson = False,
) -> None:
    """List dead letters, the newest first."""
    from fanout.redrive import dead_letters  # noqa: PLC0415

    with dead_letters.reading(commands.settings_of(context), commands.progress) as reader:
        found = dead_letters.find(reader, wanted, limit)
    rows, table = [one.summary() for one in found], [one.row() for one in found]
    listing.show(rows, kind="dead-letter", key="letter", form=output, as_json=as_json, table=table)


@app.command()
def show(
    context: typer.Context,
    letter: Annotated[str, typer.Argument(help="Its place (partition:offset, as `list` shows it), or a webhook id.")],
    as_json: AsJson = False,
) -> None:
    """Show one dead letter: event, payload, and what was attempted."""
    from fanout.redrive import dead_letters  # noqa: PLC0415

    with dead_letters.reading(commands.settings_of(context), commands.progress) as reader:
        found = dead_letters.get(reader, listing.id_of(letter, "dead-letter"))
    if as_json:
        commands.print_json(found.document())
    else:
        dead_letters.show(commands.console, found)


@app.command()
@selecting
def export(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="Where to; `-` is standard output.")],
    wanted: selection.Selection,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many.")] = None,
) -> None:
    """Write dead letters to FILE as JSON, one a line, as they are in their topic."""
    from fanout.redrive import dead_letters  # noqa: PLC0415

    with dead_letters.reading(commands.settings_of(context), commands.progress) as reader:
        if str(file) == "-":
            dead_letters.export(reader, wanted, commands.JsonLines(), limit)
            return
        try:
            with file.open("wb") as to:
                count = dead_letters.export(reader, wanted, to, limit)
        except OSError as exc:
            raise errors.SettingsError(f"{file} cannot be written: {exc.strerror}") from exc
    commands.console.print(f"{count} dead letters written to {file}")


@app.command()
@selecting
def redrive(
    context: typer.Context,
    wanted: selection.Selection,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many, the oldest.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All dead letters: without it, one of the options above is needed.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Deliver dead letters again, by what is registered now and with the same webhook ids. Safe to repeat.

    They go to the retry lane, which must run. What was redriven before is left out, unless it was given up again since.
    """
    from fanout.redrive import dead_letters  # noqa: PLC0415

    if wanted.is_everything and not everything:
        raise errors.SettingsError("say which: --endpoint, --type, --tenant, --reason, --since or --until; or --all")
    config = commands.settings_of(context)
    with dead_letters.reading(config, commands.progress) as reader:
        summary = dead_letters.redrive(config, reader, wanted, limit=limit, dry_run=dry_run)
    if as_json:
        commands.print_json(summary.document() | {"dry_run": dry_run})
        return
    if summary.endpoints:
        commands.print_table([{"endpoint": name, "letters": count} for name, count in summary.endpoints.most_common()])
    done = "would be handed" if dry_run else "handed"
    commands.console.print(f"{summary.letters} dead letters {done} to the retry lane, in {summary.requests} requests")
    if summary.redriven_before:
        commands.console.print(f"{summary.redriven_before} were redriven before and are left out")
