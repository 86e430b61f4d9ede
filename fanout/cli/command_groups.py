"""Import the module of a command group, such as `fanout replays`, only when it is needed.

Runs in `fanout` commands. A command of a group in MODULES imports the module of this group only. Any other command imports none
of these modules. Help and completion of `fanout` itself, and an unknown command, import all of them in 0.5 CPU seconds.
"""

from __future__ import annotations

import difflib
import importlib
import re
from typing import Any

import typer.core
import typer.main

from delivery import errors
from fanout.terminal import commands

MODULES = {
    "endpoints": "fanout.cli.endpoints",
    "dead-letters": "fanout.cli.dead_letters",
    "rejected": "fanout.cli.rejected",
    "replays": "fanout.cli.replays",
    "filter": "fanout.cli.filters",
    "event-type": "fanout.cli.event_types",
}
"""The name of each group, and the module that has its commands as `app`."""

DUE_TO_SETTINGS = (errors.SettingsError, errors.RegistryUnavailable, errors.KafkaUnavailable)
"""Errors that a missing settings file may cause: the defaults have no key, and their addresses may lead to no server."""


class CommandGroups(typer.core.TyperGroup):
    """The root of all commands: the commands that `main` adds to this group, and the groups in MODULES.

    The types of `ctx` and of the returned command are in a private module of Typer, so they are annotated as Any.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the command, and improve the messages of two kinds of errors.

        1. An error of DUE_TO_SETTINGS, if the command found no settings: the hint of `commands.settings_of` is added.
        2. A refused value of an option: the message loses pydantic's prefix, and suggests the closest permitted value.
        """
        try:
            return super().invoke(ctx)
        except typer.BadParameter as exc:
            exc.message = _in_plain_words(exc.message)
            raise
        except DUE_TO_SETTINGS as exc:
            if hint := ctx.meta.get(commands.WITHOUT_SETTINGS):
                exc.add_note(hint)
            raise

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands and groups."""
        return [*(name for name in super().list_commands(ctx) if name not in MODULES), *MODULES]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command or the group with this name; None if there is none."""
        # For an unknown name, Typer suggests similar names in `commands`. All groups are added there, to be suggested too.
        wanted = {cmd_name} if cmd_name in self.list_commands(ctx) else set(MODULES)
        for name in (wanted & MODULES.keys()) - self.commands.keys():
            group = typer.main.get_group(importlib.import_module(MODULES[name]).app)
            group.name = name
            self.add_command(group)
        return super().get_command(ctx, cmd_name)


def _in_plain_words(message: str) -> str:
    """Return Typer's message for a refused value without pydantic's prefix, and with the closest permitted value, if any."""
    message = message.removeprefix("Value error, ")
    given, _, known = message.partition(" is not one of ")
    close = difflib.get_close_matches(given.strip("'"), re.findall("'([^']*)'", known), n=1)
    return f"{message} Did you mean '{close[0]}'?" if close else message
