"""Define the commands `fanout replays …`: their names, options and output.

Runs in `fanout` commands. Customers request replays over the API; `fanout archive` executes them.
"""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any

import typer

from delivery import errors
from fanout.terminal import commands, listing
from fanout.terminal.commands import AsJson
from subscriptions_db.api.deliveries import replays
from subscriptions_db.postgres import audit, connect, migrate
from subscriptions_db.replays import requests

app = typer.Typer(help="List, show and cancel replays: past events that a customer asked for again.", no_args_is_help=True)
ReplayId = Annotated[str, typer.Argument(metavar="ID", parser=lambda text: listing.id_of(text, "replay"))]
BRIEF = ("id", "endpoint", "state", "created_at", "handed_over", "delivered", "dead_lettered", "skipped")
"""The columns of the narrow table of `fanout replays list`."""


@app.command("list")
def list_(
    context: typer.Context,
    endpoint: Annotated[str | None, typer.Option(help="Only replays to this endpoint.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many replays, the newest.")] = 50,
    output: listing.Output = None,
    as_json: AsJson = False,
) -> None:
    """List replays of all customers, the newest first."""
    with connect.connect(commands.settings_of(context).database) as connection:
        migrate.require_current(connection)
        rows = [_row(replay) for replay in requests.newest(connection, endpoint_id=endpoint, limit=limit)]
    listing.show(rows, kind="replay", key="id", form=output, as_json=as_json, table=listing.columns(rows, BRIEF))


@app.command()
def show(context: typer.Context, replay_id: ReplayId, as_json: AsJson = False) -> None:
    """Show one replay: its request and its progress."""
    with connect.connect(commands.settings_of(context).database) as connection:
        migrate.require_current(connection)
        row = _row(_found(connection, replay_id))
    if as_json:
        commands.print_json(row)
    else:
        commands.print_table([{"field": name, "value": value} for name, value in row.items() if value is not None])


@app.command()
def cancel(context: typer.Context, replay_id: ReplayId, as_json: AsJson = False) -> None:
    """Cancel a replay: no more of its deliveries are enqueued. Deliveries that are enqueued already are still delivered."""
    with connect.connect(commands.settings_of(context).database) as connection:
        migrate.require_current(connection)
        with connection.transaction():
            before = _found(connection, replay_id)
            if not requests.cancel(connection, before.customer_id, replay_id, now=dt.datetime.now(dt.UTC)):
                raise errors.RegistrationError(replay_id, f"is {before.state} already, so there is nothing to cancel")
            audit.note(
                connection, audit.COMMAND, "cancel", "replay", replay_id, customer_id=before.customer_id,
                before={"state": before.state}, after={"state": requests.ReplayState.CANCELLED},
            )  # fmt: skip
        row = _row(_found(connection, replay_id))
    if as_json:
        commands.print_json(row)
    else:
        commands.console.print(f"{replay_id} is cancelled; {row['handed_over']} deliveries were enqueued before", markup=False)


def _found(connection: connect.Connection, replay_id: str) -> requests.ReplayRequest:
    found = requests.get_any(connection, replay_id)
    if found is None:
        raise errors.RegistrationError(replay_id, "there is no such replay; `fanout replays list` lists them")
    return found


def _row(replay: requests.ReplayRequest) -> dict[str, Any]:
    return {"customer": replay.customer_id, **replays.shown(replay).model_dump()}
