"""Define the command `fanout smoke-test`: its options and output.

Runs in `fanout` commands.
"""

from __future__ import annotations

import time
from typing import Annotated

import typer

from fanout.terminal import commands
from fanout.terminal.commands import AsJson, console


def smoke_test(
    context: typer.Context,
    endpoint_url: Annotated[
        str | None,
        typer.Option(help="Deliver to this URL, which must answer 2xx. Default: a receiver that this command opens."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address of this machine by which the job reaches the receiver.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of the receiver that this command opens.")] = 8080,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the delivery before the test fails.")] = 60,
    as_json: AsJson = False,
) -> None:
    """Deliver one signed event through the running job, and clean up.

    Exit code 1: the event did not arrive in time, or the command failed. Exit code 2: a setting does not permit the test. The
    tenant, the customer and the topic of the test stay. The login in database.url needs the right to register and delete
    endpoints.
    """
    from fanout.admin import smoke_run  # noqa: PLC0415

    result = smoke_run.run(
        commands.settings_of(context), host=host, port=port, endpoint_url=endpoint_url, timeout_s=timeout, sleep=time.sleep
    )
    if as_json:
        commands.print_json(result.document())
    else:
        console.print(result.text())
    raise typer.Exit(0 if result.delivered_after_s is not None else 1)
