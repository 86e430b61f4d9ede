"""Define the commands for a developer's own machine: `fanout up`, `fanout demo` and `fanout listen`.

Runs in `fanout` commands.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from delivery import errors
from delivery.config import settings_loader
from delivery.registry_model import SignatureScheme
from fanout.terminal import commands
from fanout.terminal.commands import AsJson, console


def up(
    root: Annotated[Path, typer.Option(help="Folder for the data.")] = Path(".fanout"),
    kafka_port: Annotated[int, typer.Option(help="Port of Kafka.")] = 9092,
) -> None:
    """Start Postgres and Kafka on this machine, for development, until Ctrl-C.

    Writes local.toml in the folder: the servers' addresses, an encryption key, and settings that permit local receivers.
    """
    from fanout.local import stack  # noqa: PLC0415  # needs the extra `local`, which a production image leaves out

    with stack.Stack(root, kafka_port=kafka_port) as running:
        stack.write_local_settings(root, running)
        console.print(f"Postgres  {running.postgres.url}\nKafka     {running.kafka.bootstrap_servers}")
        file = root / "local.toml"
        use = (
            "read by every command started in this folder"
            if file == settings_loader.LOCAL_FILE
            else f"use it by --config {file}"
        )
        console.print(f"Settings  {file} ({use})\nCtrl-C stops both.")
        commands.stop_event().wait()


def demo(
    events: Annotated[int, typer.Option(min=100, help="Number of events to publish.")] = 5000,
    seed: Annotated[int, typer.Option(help="Seed of the generated tenants, subscriptions and events.")] = 1,
    json_file: Annotated[
        Path | None, typer.Option("--json", callback=commands.output_file, help="Also write the result to this file.")
    ] = None,
) -> None:
    """Run the whole platform on this machine and prove that nothing is lost."""
    from fanout.demo import run as demo_run  # noqa: PLC0415

    result = demo_run.run(events=events, seed=seed, console=console, stop=commands.stop_event())
    if json_file is not None:
        json_file.write_bytes(orjson.dumps(result.document(), option=orjson.OPT_INDENT_2))
    raise typer.Exit(0 if result.holds else 1)


def listen(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1. 0: a free one.")] = 9000,
    secret: Annotated[
        list[str] | None,
        typer.Option(
            help="Signing secret (whsec_…) for verification; may be repeated. A request that is not signed with it is shown as "
            "NOT VERIFIED, and answered like any other. Default: no request is verified."
        ),
    ] = None,
    status: Annotated[int, typer.Option(min=200, max=599, help="Answer every request with this status.")] = 200,
    as_json: AsJson = False,
) -> None:
    """Receive webhooks on this machine: print each request, and verify it if --secret is given."""
    from delivery.webhooks.sending import signing  # noqa: PLC0415
    from fanout.local import receiver  # noqa: PLC0415

    for text in secret or ():
        try:
            key = signing.from_text(text)
        except errors.RegistrationError as exc:
            raise typer.BadParameter(f"--secret {exc.problem}. Nothing was started") from None
        if key.scheme is not SignatureScheme.HMAC:
            raise typer.BadParameter(
                "--secret is an ed25519 key, which `fanout listen` cannot verify, so nothing was started: use a whsec_… secret"
            )

    def show(received: receiver.Received) -> None:
        wrong = f"NOT VERIFIED: not signed with this --secret (answered {received.status} all the same)"
        verified = "verified" if received.is_verified else wrong if secret else "not checked (no --secret)"
        events = None if received.batch is None else len(received.batch)
        if as_json:
            document: dict[str, Any] = {
                "path": received.path,
                "webhook_id": received.webhook_id,
                "verified": received.is_verified if secret else None,
            }
            signed = {name: value for name, value in received.headers.items() if name.startswith("webhook-")}
            document |= {"events": events, "body": received.body.decode(errors="replace"), "headers": signed}
            commands.JsonLines().write(orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE))
        elif events is not None:
            packed = ", gzip" if "content-encoding" in received.headers else ""
            console.print(
                f"{received.path} {received.webhook_id} {verified}: {events} events, {len(received.body)} bytes{packed}"
            )
        else:
            console.print(f"{received.path} {received.webhook_id} {verified}")
            console.print(received.body.decode(errors="replace"))

    with receiver.Receiver(
        secrets_of=lambda _: secret or [], on_received=show, answer=lambda _: status, port=port
    ) as listening:
        commands.say(f"listening on {listening.url}; Ctrl-C stops")
        commands.stop_event().wait()
