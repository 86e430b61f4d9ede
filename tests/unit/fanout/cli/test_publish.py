"""`fanout publish` refuses options that contradict one another, before it asks Kafka."""

import pytest
from typer.testing import CliRunner

from fanout.cli import main


@pytest.mark.parametrize("besides", [["events.ndjson"], ["--topic", "events.order"]])
def test_generated_events_exclude_a_file_and_a_topic(besides):
    """Regression: the file and the topic were ignored without a message."""
    refused = CliRunner().invoke(main.app, ["publish", "--generate", "10", *besides])
    assert refused.exit_code == 2
    assert "--generate excludes FILE and --topic" in " ".join(refused.output.replace("│", " ").split())


@pytest.mark.parametrize(("option", "value"), [("--tenants", "0"), ("--generate", "-3")])
def test_a_number_below_the_least_is_refused(option, value):
    """Regression: no tenants ended in a traceback."""
    refused = CliRunner().invoke(main.app, ["publish", "--generate", "3", option, value])
    assert refused.exit_code == 2
    assert f"Invalid value for '{option}'" in refused.output


def test_an_empty_input_is_named():
    done = CliRunner().invoke(main.app, ["publish", "-"], input="")
    assert done.output == "nothing was published, because the input has no event: give it one event a line\n"
