"""The commands `fanout endpoints …`: what they are called, what they take, what they print.

Runs in the command.
"""

from __future__ import annotations

from typing import Annotated

import typer

from delivery.model import SignatureScheme
from fanout.terminal import commands, listing
from fanout.terminal.commands import AsJson, console

EndpointId = Annotated[str, typer.Argument(metavar="ID", parser=lambda text: listing.id_of(text, "endpoint"))]

app = typer.Typer(help="Endpoints that are registered.", no_args_is_help=True)


@app.command("rotate-secret")
def rotate_secret(
    context: typer.Context,
    endpoint_id: EndpointId,
    overlap: Annotated[str, typer.Option(help="How long the secrets before it go on to sign: 30s, 15m, 24h, 7d.")] = "24h",
    scheme: Annotated[SignatureScheme, typer.Option(help="v1: HMAC. v1a: ed25519, with a public key for the customer.")] = (
        SignatureScheme.HMAC
    ),
    as_json: AsJson = False,
) -> None:
    """Give an endpoint a new signing secret, shown once. Until the overlap ends, old and new ones both sign.

    Doing it again makes another secret and gives none of the others more time; five may hold at once. With `--overlap 0s` the
    others end now. What a document of `fanout apply` names under `signing_secrets` is rotated there instead.
    """
    from fanout.admin import registry_commands  # noqa: PLC0415

    config, time = commands.settings_of(context), registry_commands.overlap_of(overlap)
    rotated = registry_commands.rotate_secret(config, endpoint_id, scheme=scheme, overlap=time)
    if as_json:
        commands.print_json(rotated)
    else:
        registry_commands.show_rotation(console, rotated)


@app.command("enable")
def enable(context: typer.Context, endpoint_id: EndpointId) -> None:
    """Make an endpoint active again: one that was disabled or paused. What waits for it is attempted soon."""
    from fanout.admin import registry_commands  # noqa: PLC0415

    registry_commands.enable(commands.settings_of(context), endpoint_id)
    console.print(f"{endpoint_id} is active")


@app.command("disable")
def disable(
    context: typer.Context,
    endpoint_id: EndpointId,
    reason: Annotated[str, typer.Option(help="Why, for who asks later; `fanout get endpoints` shows it.")],
) -> None:
    """Disable an endpoint: nothing is sent to it, and what is due to it waits. `fanout apply` alone does not enable it."""
    from fanout.admin import registry_commands  # noqa: PLC0415

    registry_commands.disable(commands.settings_of(context), endpoint_id, reason)
    console.print(f"{endpoint_id} is disabled")


@app.command("validate")
def validate(context: typer.Context, endpoint_id: EndpointId, as_json: AsJson = False) -> None:
    """Ask the endpoint's receiver whether it wants deliveries (OPTIONS). Until it has permitted them, what is due waits."""
    from fanout.admin import registry_commands  # noqa: PLC0415

    reply = registry_commands.validate(commands.settings_of(context), endpoint_id)
    if as_json:
        commands.print_json({"state": reply.state, "permitted_per_minute": reply.per_minute, "reason": reply.reason})
    else:
        registry_commands.show_reply(console, endpoint_id, reply)
