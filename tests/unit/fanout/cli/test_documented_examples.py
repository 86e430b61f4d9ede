"""The examples of commands in docs/registering.md have the output that stands below them."""

import pathlib
import re
import shlex

import pytest
from typer.testing import CliRunner

from fanout.cli import main

REGISTERING = pathlib.Path(__file__).parents[4] / "docs" / "registering.md"


@pytest.mark.parametrize("command", ["event-type try", "filter try"])
def test_the_example_in_the_document_has_its_output(command):
    example = rf"```sh\n(fanout {command}.*?)```\s+```\n(.*?)```"
    [words, output] = re.search(example, REGISTERING.read_text(), re.DOTALL).groups()
    assert CliRunner().invoke(main.app, shlex.split(words.replace("\\\n", ""))[1:]).output == output
