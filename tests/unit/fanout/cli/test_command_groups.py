"""A command imports the modules of its own group only. Help and suggestions name all groups."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from fanout.cli import main
from fanout.cli.command_groups import MODULES


@pytest.mark.parametrize(("command", "imported"), [("db", set()), ("replays", {"fanout.cli.replays"})])
def test_a_command_imports_no_group_but_its_own(command, imported):
    code = (
        "import sys; from typer.testing import CliRunner; from fanout.cli import main\n"
        f"assert CliRunner().invoke(main.app, [{command!r}, '--help']).exit_code == 0\n"
        "print(*sys.modules)"
    )
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert set(modules) & set(MODULES.values()) == imported


def test_the_help_lists_every_group_once():
    shown = CliRunner().invoke(main.app, ["--help"]).output
    assert {name for name in MODULES if shown.count(f"│ {name} ") != 1} == set()


@pytest.mark.parametrize("group", MODULES)
def test_each_group_has_commands(group):
    done = CliRunner().invoke(main.app, [group, "--help"])
    assert done.exit_code == 0
    assert f"Usage: root {group} [OPTIONS] COMMAND" in done.output
    assert "Commands" in done.output
    assert "--install-completion" not in done.output


def test_a_mistyped_value_of_an_option_is_suggested():
    """Regression: the refusal began with pydantic's "Value error,", and suggested nothing."""
    refused = CliRunner().invoke(main.app, ["api-keys", "create", "--scope", "poler"])
    output = " ".join(refused.output.replace("│", " ").split())
    assert "Invalid value for '--scope': 'poler' is not one of 'operator'" in output
    assert "'publisher'. Did you mean 'poller'?" in output


def test_a_mistyped_group_is_suggested():
    assert "Did you mean 'replays'" in CliRunner().invoke(main.app, ["replay"]).output
