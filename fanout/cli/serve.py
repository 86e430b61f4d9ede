"""Define `fanout serve`, `fanout openapi` and `fanout api-keys …`, the commands of the HTTP API.

Runs in `fanout` commands.
"""

from __future__ import annotations

import datetime as dt
import time
from typing import Annotated

import typer

from delivery import errors
from fanout.terminal import commands, listing, times
from fanout.terminal.commands import AsJson, console
from subscriptions_db.api.contract.principals import Scope

NEVER = "never"
"""The value of `--expires` for a key that does not expire."""

app = typer.Typer(help="Create, list and revoke keys of the HTTP API, for operators and customers.", no_args_is_help=True)


def serve(context: typer.Context) -> None:
    """Serve the HTTP API until SIGTERM or Ctrl-C. Requests in flight then have up to 15 s to be answered."""
    from subscriptions_db.api.server import run  # noqa: PLC0415

    config = commands.settings_of(context)
    run.run(config, commands.stop_event())


def openapi(context: typer.Context) -> None:
    """Print the OpenAPI document of the HTTP API. The document's server is `api.public_url`, or `/` without this setting."""
    from subscriptions_db.api.documents import openapi as document  # noqa: PLC0415
    from subscriptions_db.api.server.route_table import ROUTES  # noqa: PLC0415

    commands.print_json(document.document(ROUTES, commands.settings_of(context).api.public_url))


@app.command()
def create(
    context: typer.Context,
    scope: Annotated[Scope, typer.Option(help="What the key permits.")],
    customer: Annotated[
        str | None, typer.Option(help="Customer who owns the key. Scopes operator, executor and publisher have none.")
    ] = None,
    tenant: Annotated[
        list[str] | None,
        typer.Option(help="Scope publisher: a tenant whose events the key may publish; repeat it. Default: every tenant."),
    ] = None,
    endpoint: Annotated[
        list[str] | None,
        typer.Option(help="An endpoint of the customer to which the key is limited; repeat it. Default: every endpoint."),
    ] = None,
    name: Annotated[str, typer.Option(help="What the key is for; only people read it.")] = "",
    expires: Annotated[
        str | None,
        typer.Option(
            help="When the key expires: 90d (from now), 2027-01-01T00:00Z, or never. Default: after api.key_lifetime_days."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a key and show it once. The platform stores the key's digest, and the key's first characters as the key's id."""
    from subscriptions_db.api.contract import keys  # noqa: PLC0415
    from subscriptions_db.postgres import connect, migrate  # noqa: PLC0415

    config = commands.settings_of(context)
    ends = _expiry(f"{config.api.key_lifetime_days}d" if expires is None else expires)
    with connect.connect(config.database) as connection:
        migrate.require_current(connection)
        limits = {"tenants": tenant or [], "endpoints": endpoint or []}
        made = keys.create(connection, customer_id=customer, scope=scope, name=name, expires_at=ends, **limits)
    text = made.text.reveal().decode()
    if as_json:
        shown = {"key_id": made.key_id, "key": text, "customer": customer, "scope": scope, "expires_at": ends}
        commands.print_json(shown | {field: named for field, named in limits.items() if named})
    else:
        until = "never expires" if ends is None else f"expires at {keys.shown_expiry(ends)}"
        console.print(f"{made.key_id} is created and {until}. Keep the key now; it is not shown again:\n  {text}")


@app.command("list")
def list_(
    context: typer.Context,
    customer: Annotated[str | None, typer.Option(help="Only keys of this customer.")] = None,
    output: listing.Output = None,
    as_json: AsJson = False,
) -> None:
    """List the ids and states of keys, the oldest first, revoked and expired keys included.

    A key in the state `expiring` expires within 14 days.
    """
    from subscriptions_db.api.contract import keys  # noqa: PLC0415
    from subscriptions_db.postgres import connect, migrate  # noqa: PLC0415

    with connect.connect(commands.settings_of(context).database) as connection:
        migrate.require_current(connection)
        rows = keys.list_keys(connection, customer)
    brief = ("key_id", "customer_id", "scope", "name", "state", "expires_at", "last_used_at")
    listing.show(rows, kind="api-key", key="key_id", form=output, as_json=as_json, table=listing.columns(rows, brief))


@app.command()
def revoke(
    context: typer.Context,
    key: Annotated[str, typer.Argument(help="The key's id (fk_…, as `list` shows it), or the whole key.")],
    as_json: AsJson = False,
) -> None:
    """Revoke a key for good. Within 5 s the API refuses every request that uses it."""
    from subscriptions_db.api.contract import keys  # noqa: PLC0415
    from subscriptions_db.postgres import connect, migrate  # noqa: PLC0415

    with connect.connect(commands.settings_of(context).database) as connection:
        migrate.require_current(connection)
        key = listing.id_of(key, "api-key")
        keys.revoke(connection, key)
    key_id = keys.key_id_of(key) or key
    if as_json:
        commands.print_json({"key_id": key_id, "revoked": True})
    else:
        console.print(f"{key_id} is revoked")


def _expiry(text: str) -> dt.datetime | None:
    """Return the moment that `text` names: a duration from now, or a date or time. None: `text` is `never`.

    Raise SettingsError for any other text, and for a moment that is not in the future.
    """
    if text == NEVER:
        return None
    now_ms = round(time.time() * 1000)
    moment_ms = times.moment_ms("--expires", text, now_ms=now_ms, is_ahead=True)
    if moment_ms <= now_ms:
        raise errors.SettingsError(f"--expires must be in the future, and {text} is not: no key was created")
    return dt.datetime.fromtimestamp(moment_ms / 1000, dt.UTC)
