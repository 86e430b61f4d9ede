"""`fanout event-type try` shows whether the payload of an event keeps to a schema, before the catalogue has the schema."""

import json

import pytest
from typer.testing import CliRunner

from delivery import errors
from fanout.cli import main

EVENT = '{"id": "e1", "type": "order.created", "tenant_id": "t1", "amount": 700}'
CLOUD_EVENT = (
    '{"specversion": "1.0", "id": "e1", "source": "/shop", "type": "order.paid", "tenantid": "t1", "data": {"amount": "x"}}'
)
SCHEMA = '{"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]}'


def tried(schema, event=EVENT, **more):
    return CliRunner().invoke(main.app, ["event-type", "try", "--schema", schema, "--event", event, "--json"], **more)


@pytest.mark.parametrize(
    ("event", "event_type", "fields"),
    [
        (EVENT, "order.created", []),
        (EVENT.replace("amount", "total"), "order.created", [""]),
        (CLOUD_EVENT, "order.paid", ["amount"]),
    ],
)
def test_a_schema_is_tried_on_the_payload_of_an_event(event, event_type, fields):
    done = tried(SCHEMA, event)
    said = json.loads(done.output)
    assert (said["event_type"], [error["field"] for error in said["errors"]]) == (event_type, fields)
    assert (said["keeps_to_schema"], done.exit_code) == (not fields, 1 if fields else 0)


def test_a_person_reads_each_violation_on_a_line():
    words = ["event-type", "try", "--schema", SCHEMA, "--event"]
    assert CliRunner().invoke(main.app, [*words, EVENT]).output == "the payload keeps to the schema of order.created\n"
    assert CliRunner().invoke(main.app, [*words, CLOUD_EVENT]).output.startswith("amount: ")


def test_a_file_and_standard_input_are_read(tmp_path):
    file = tmp_path / "schema.yaml"
    file.write_text("type: object\nrequired: [amount]\n")
    assert tried(str(file), "-", input=EVENT).exit_code == 0


@pytest.mark.parametrize(
    ("schema", "event", "said"),
    [
        ("[1]", EVENT, "--schema: is not a schema"),
        ('{"type": "thing"}', EVENT, r"--schema.*type"),
        ("missing.json", EVENT, "--schema: is neither JSON nor a readable file .*so the schema was not tried"),
        (SCHEMA, '{"type": "order.created"}', r"--event: the schema was not tried: the job would reject this event"),
    ],
)
def test_an_invalid_schema_or_event_is_refused_with_its_option(schema, event, said):
    with pytest.raises(errors.RegistrationError, match=said):
        raise tried(schema, event).exception
