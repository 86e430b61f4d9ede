"""`fanout listen` refuses wrong options before it listens."""

import pytest
from typer.testing import CliRunner

from fanout.cli import main


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--secret", "nonsense-hunter2", "--secret does not begin with whsec_"),
        ("--secret", "whsk_" + "A" * 43 + "=", "--secret is an ed25519 key"),
        ("--port", "99999", "Invalid value for '--port'"),
        ("--status", "20", "Invalid value for '--status'"),
    ],
)
def test_a_wrong_option_is_refused(option, value, said):
    """Regression: a wrong secret verified nothing without a reason, and port 99999 was port 34463."""
    refused = CliRunner().invoke(main.app, ["listen", option, value])
    output = " ".join(refused.output.replace("│", " ").split())
    assert refused.exit_code == 2
    assert said in output
    assert "hunter2" not in output
