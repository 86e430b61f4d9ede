"""The command `fanout smoke-test`: what it is called, takes and prints.

Runs in the command.
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
        str | None, typer.Option(help="Deliver to this endpoint, which has to answer 2xx. Default: to a receiver in here.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address of this machine at which the job reaches the receiver.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of the receiver.")] = 8080,
    timeout: Annotated[float, typer.Option(help="Seconds until the test has failed.")] = 60,
    as_json: AsJson = False,
) -> None:
    """Deliver one signed event through the job that runs, and clean up. Exit code 1: it did not arrive.

    The tenant, the customer and the topic fanout-smoke-test stay. The login of database.url must be allowed to register.
    """
    from fanout.admin import smoke_testing  # noqa: PLC0415

    result = smoke_testing.run(
        commands.settings_of(context), host=host, port=port, endpoint_url=endpoint_url, timeout_s=timeout, sleep=time.sleep
    )
    if as_json:
        commands.print_json(result.document())
    else:
        console.print(result.text(), markup=False)
    raise typer.Exit(0 if result.delivered_after_s is not None else 1)
