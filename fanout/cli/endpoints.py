"""Define the commands `fanout endpoints …`: their names, options and output.

Runs in `fanout` commands.
"""

from __future__ import annotations

from typing import Annotated

import typer

from delivery.registry_model import SignatureScheme
from fanout.terminal import commands, listing
from fanout.terminal.commands import AsJson, console
from subscriptions_db.archive.search.statistics import Granularity

EndpointId = Annotated[str, typer.Argument(metavar="ID", parser=lambda text: listing.id_of(text, "endpoint"))]

app = typer.Typer(
    help="Rotate secrets of endpoints; enable, disable and validate endpoints; show statistics.", no_args_is_help=True
)


@app.command("rotate-secret")
def rotate_secret(
    context: typer.Context,
    endpoint_id: EndpointId,
    overlap: Annotated[str, typer.Option(help="How long the older secrets still sign: 30s, 15m, 24h, 7d.")] = "24h",
    scheme: Annotated[
        SignatureScheme, typer.Option(help="v1: HMAC. v1a: ed25519; the customer verifies with a public key.")
    ] = (SignatureScheme.HMAC),
    as_json: AsJson = False,
) -> None:
    """Create a new signing secret for an endpoint. Until the overlap ends, old and new secrets both sign.

    The secret, or the public key of scheme v1a, is shown once.

    Running the command again creates another secret, and never postpones the end of an older secret. At most five secrets may
    be valid at once. With `--overlap 0s` the older secrets end now, and the job stops using them with the next revision of the
    registry. If a manifest has the endpoint's `signing_secrets`, rotate the secrets in the manifest instead.
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
    """Activate an endpoint that was disabled or paused. The retry lane soon attempts the endpoint's waiting deliveries.

    The command fails and changes nothing if the endpoint needs its receiver's permission and does not have it.
    """
    from fanout.admin import registry_commands  # noqa: PLC0415

    registry_commands.enable(commands.settings_of(context), endpoint_id)
    console.print(f"{endpoint_id} is active")


@app.command("disable")
def disable(
    context: typer.Context,
    endpoint_id: EndpointId,
    reason: Annotated[str, typer.Option(help="Why it is disabled; `fanout get endpoints` shows this text.")],
) -> None:
    """Disable an endpoint: the job sends nothing to it, and its deliveries wait until they expire.

    `fanout apply` enables the endpoint again only if the manifest says `status: active` for it.
    """
    from fanout.admin import registry_commands  # noqa: PLC0415

    registry_commands.disable(commands.settings_of(context), endpoint_id, reason)
    console.print(f"{endpoint_id} is disabled")


@app.command("validate")
def validate(context: typer.Context, endpoint_id: EndpointId, as_json: AsJson = False) -> None:
    """Ask the receiver of an endpoint for permission to deliver, by an OPTIONS request.

    If an endpoint needs permission, its deliveries wait until its receiver has permitted deliveries once.
    """
    from fanout.admin import registry_commands  # noqa: PLC0415

    reply = registry_commands.validate(commands.settings_of(context), endpoint_id)
    if as_json:
        commands.print_json({"state": reply.state, "permitted_per_minute": reply.per_minute, "reason": reply.reason})
    else:
        registry_commands.show_reply(console, endpoint_id, reply)


@app.command("statistics")
def statistics(
    context: typer.Context,
    endpoint_id: EndpointId,
    since: Annotated[str, typer.Option(help="A time ago (24h, 7d), or a moment (2026-05-01T10:00:00Z).")] = "24h",
    by: Annotated[Granularity, typer.Option(help="By hour, for at most 7 days, or by day in UTC, for at most 31.")] = (
        Granularity.HOUR
    ),
    as_json: AsJson = False,
) -> None:
    """Show deliveries and attempts of an endpoint by hour or day, with estimated percentiles of durations and latencies.

    `fanout archive` counts the deliveries and attempts.
    """
    from fanout.admin import statistics as of_admin  # noqa: PLC0415
    from subscriptions_db.api.deliveries import statistics as answers  # noqa: PLC0415

    found = of_admin.of_endpoint(commands.settings_of(context), endpoint_id, since=since, by=by)
    document = answers.shown(found, by).model_dump(mode="json")
    if as_json:
        commands.print_json(document)
    else:
        commands.print_table(of_admin.table(document))
        for word, count in document["total"]["error_classes"].items():
            console.print(f"failed with {word}: {count}")
