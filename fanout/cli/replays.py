"""Define the commands `fanout replays …`: their names, options and output.

Runs in `fanout` commands. Customers request replays over the API, operators also by these commands. `fanout archive` executes
the replays.
"""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any

import typer

from delivery import errors
from fanout.terminal import commands, listing, times
from fanout.terminal.commands import AsJson
from subscriptions_db.api.deliveries import replays
from subscriptions_db.postgres import audit_entries, connect, migrate
from subscriptions_db.postgres.sql import query
from subscriptions_db.replays import requests

app = typer.Typer(help="Request, list, show and cancel replays: past events that are delivered again.", no_args_is_help=True)
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
def ask(
    context: typer.Context,
    endpoint_id: Annotated[str, typer.Argument(metavar="ENDPOINT", parser=lambda text: listing.id_of(text, "endpoint"))],
    since: Annotated[str, typer.Option(help="A time ago (24h, 7d), or a moment (2026-05-01T10:00:00Z).")],
    until: Annotated[str | None, typer.Option(help="The end, written like --since. Default: now.")] = None,
    event_type: Annotated[
        list[str] | None, typer.Option(help="An exact type, or a prefix such as order.*; repeat it. Default: every type.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Request the replay of a time range for an endpoint. `fanout archive` executes the replay.

    An event is replayed if it is due to a subscription that the endpoint has when `fanout archive` reads the event.
    """
    now = dt.datetime.now(dt.UTC)
    begin, end = _moment("--since", since, now), None if until is None else _moment("--until", until, now)
    try:
        asked = requests.range_of(begin, end, event_type or None, now=now)
    except errors.RegistrationError as exc:
        raise errors.RegistrationError(f"--{exc.path}", exc.problem) from None
    with connect.connect(commands.settings_of(context).database) as connection, connect.translated_errors():
        migrate.require_current(connection)
        with connection.transaction():
            made = requests.ask(connection, _owner(connection, endpoint_id), endpoint_id, asked)
            if made is None:
                raise errors.RegistrationError(
                    endpoint_id,
                    "has an unfinished replay, so no other was requested. Wait, or cancel it by `fanout replays cancel`; "
                    f"`fanout replays list --endpoint {endpoint_id}` shows it",
                )
            row = _row(made)
            fields = {name: row[name] for name in ("endpoint", "since", "until", "event_types") if row[name] is not None}
            audit_entries.note(
                connection,
                audit_entries.COMMAND,
                "create",
                "replay",
                made.replay_id,
                customer_id=made.customer_id,
                after=fields,
            )
    if as_json:
        commands.print_json(row)
    else:
        commands.console.print(f"{made.replay_id} is requested; `fanout replays show` shows its progress")


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
        with connect.translated_errors(), connection.transaction():
            before = _found(connection, replay_id)
            if not requests.cancel(connection, before.customer_id, replay_id, now=dt.datetime.now(dt.UTC)):
                state = _found(connection, replay_id).state  # it may have changed since `before`
                raise errors.RegistrationError(
                    replay_id, f"is {state} already, so there is nothing to cancel, and nothing was changed"
                )
            audit_entries.note(
                connection, audit_entries.COMMAND, "cancel", "replay", replay_id, customer_id=before.customer_id,
                before={"state": before.state}, after={"state": requests.ReplayState.CANCELLED},
            )  # fmt: skip
        row = _row(_found(connection, replay_id))
    if as_json:
        commands.print_json(row)
    else:
        commands.console.print(f"{replay_id} is cancelled; {row['handed_over']} deliveries were enqueued before")


def _moment(option: str, text: str, now: dt.datetime) -> dt.datetime:
    """Return the time in `text`, the value of `option`: a date, a time, or a duration such as `24h` before `now`.

    Raise SettingsError for any other text, and for a time outside of the years 1970 to 9999.
    """
    return dt.datetime.fromtimestamp(times.moment_ms(option, text, now_ms=round(now.timestamp() * 1000)) / 1000, dt.UTC)


def _owner(connection: connect.Connection, endpoint_id: str) -> str:
    """Return the customer of an endpoint; raise RegistrationError if there is no such endpoint."""
    found = connection.execute(query("customers_of_endpoints"), {"ids": [endpoint_id]}).fetchone()
    if found is None:
        raise errors.RegistrationError(
            endpoint_id, "there is no such endpoint, so no replay was requested; `fanout get endpoints` lists them"
        )
    return str(found["customer_id"])


def _found(connection: connect.Connection, replay_id: str) -> requests.ReplayRequest:
    found = requests.get_any(connection, replay_id)
    if found is None:
        raise errors.RegistrationError(
            replay_id, "there is no such replay, so nothing was done; `fanout replays list` lists the newest"
        )
    return found


def _row(replay: requests.ReplayRequest) -> dict[str, Any]:
    return {"customer": replay.customer_id, **replays.shown(replay).model_dump()}
