"""`fanout filter try` shows whether a filter matches an event, which fields differ, and fields that can never match."""

import json

import pytest
from typer.testing import CliRunner

from delivery import errors
from fanout.cli import main

EVENT = '{"id": "e1", "type": "order.created", "tenant_id": "t1", "amount": 700}'
CLOUD_EVENT = (
    '{"specversion": "1.0", "id": "e1", "source": "/shop", "type": "order.created", "tenantid": "t1", "region": "eu", '
    '"data": {"amount": 700}}'
)
LARGE = '{"data": {"amount": [{"numeric": [">=", 500]}]}}'


def tried(pattern, event=EVENT, **more):
    return CliRunner().invoke(main.app, ["filter", "try", "--filter", pattern, "--event", event, "--json"], **more)


def test_a_filter_that_is_not_utf8_is_refused():
    """Regression: the command ended with a traceback."""
    result = tried('{"a": ["\udcff"]}')
    assert isinstance(result.exception, errors.RegistrationError)


@pytest.mark.parametrize(
    ("pattern", "event", "matches", "detail"),
    [
        (LARGE, EVENT, True, "the filter matches the event"),
        (LARGE, EVENT.replace("700", "7"), False, "the filter does not take data.amount"),
        ('{"data": {"amount": [7.0e2]}}', EVENT, True, "the filter matches the event"),
        ('{"region": ["eu"]}', CLOUD_EVENT, True, "the filter matches the event"),
        ('{"tenant_id": ["t2"], "data": {"amount": [700]}}', CLOUD_EVENT, False, "the filter does not take tenant_id"),
    ],
)
def test_a_filter_is_tried_on_an_event(pattern, event, matches, detail):
    done = tried(pattern, event)
    said = json.loads(done.output)
    assert (said["matches"], said["detail"], done.exit_code) == (matches, detail, 0 if matches else 1)


def test_a_payload_field_without_data_is_warned_of():
    [warning] = json.loads(tried('{"amount": [700]}').output)["warnings"]
    assert "data.amount" in warning


def test_files_and_standard_input_are_read(tmp_path):
    file = tmp_path / "filter.yaml"
    file.write_text("data:\n  amount: [{numeric: ['>=', 500]}]\n")
    assert tried(str(file), "-", input=EVENT).exit_code == 0


def test_standard_input_is_read_for_one_option_only():
    """Regression: the second option was empty, and the message said that the event is not JSON."""
    with pytest.raises(errors.RegistrationError, match="--event: standard input is empty, or another option has read it"):
        raise tried("-", "-", input=LARGE).exception


@pytest.mark.parametrize(
    ("pattern", "event", "said"),
    [
        ("[1]", EVENT, "--filter: is not a filter"),
        ('{"data": {"amount": 5}}', EVENT, r"--filter.*data\.amount"),
        ("missing.json", EVENT, "--filter: is neither JSON nor a readable file"),
        (
            LARGE,
            '{"type": "order.created"}',
            r"--event: the filter was not tried: the job would reject this event \(missing_attribute",
        ),
        (LARGE, "{", r"--event: the filter was not tried: the job would reject this event \(not_json"),
    ],
)
def test_an_invalid_filter_or_event_is_refused_with_its_option(pattern, event, said):
    with pytest.raises(errors.RegistrationError, match=said):
        raise tried(pattern, event).exception
