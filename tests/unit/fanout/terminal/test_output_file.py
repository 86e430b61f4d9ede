"""A file that a command writes when it ends is checked before the command works."""

import pytest
from typer.testing import CliRunner

from fanout.cli import main


@pytest.mark.parametrize("name", ["absent/figures.json", ".", "x" * 300], ids=["in no folder", "a folder", "name too long"])
def test_a_file_that_cannot_be_written_is_refused_at_once(tmp_path, name):
    """Regression: the demo ran for minutes, and then ended with a traceback and without its result."""
    refused = CliRunner().invoke(main.app, ["demo", "--json", str(tmp_path / name)])
    assert refused.exit_code == 2
    # The message is in a box, whose lines may end anywhere.
    assert "cannot be written" in " ".join(refused.output.replace("│", " ").split())
    assert list(tmp_path.iterdir()) == []
