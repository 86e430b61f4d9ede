"""Lists are printed in the forms of kubectl: a table, a wide table, JSON, YAML, names."""

import datetime as dt
import json

import pytest
import yaml
from typer.testing import CliRunner

from delivery import errors
from fanout.admin import registry_commands
from fanout.cli import main
from fanout.terminal import listing

ROWS = [
    {"id": "ep1", "url": "https://a.example/", "auth": None, "at": dt.datetime(2026, 5, 10, tzinfo=dt.UTC)},
    {"id": "ep2", "url": "evil\x1b[2J\u202e", "auth": None, "at": None},
]


def printed(capsys, form=None, **more):
    more = {"as_json": False, "table": listing.columns(ROWS, ("id", "url"))} | more
    listing.show(ROWS, kind="endpoint", key="id", form=form, **more)
    return capsys.readouterr().out


def test_a_wide_table_has_all_columns_that_are_not_empty(capsys):
    table, wide = printed(capsys), printed(capsys, listing.Form.WIDE)
    assert "ep1" in table
    assert "at" not in table.split("\n")[1]
    assert "2026-05-10" in wide
    assert "auth" not in wide


def test_json_and_yaml_have_all_fields(capsys):
    said = json.loads(printed(capsys, listing.Form.JSON))
    assert said[0] == {"id": "ep1", "url": "https://a.example/", "auth": None, "at": "2026-05-10T00:00:00+00:00"}
    assert [row["at"] for row in yaml.safe_load(printed(capsys, listing.Form.YAML))] == ["2026-05-10T00:00:00+00:00", None]
    assert yaml.safe_load(printed(capsys, listing.Form.YAML))[1]["url"] == "evil\x1b[2J\u202e"
    assert json.loads(printed(capsys, as_json=True)) == said


def test_the_form_name_prints_one_name_a_line(capsys):
    assert printed(capsys, listing.Form.NAME) == "endpoint/ep1\nendpoint/ep2\n"
    assert listing.id_of("endpoint/ep1", "endpoint") == listing.id_of("ep1", "endpoint") == "ep1"


@pytest.mark.parametrize("form", [None, *listing.Form])
def test_no_form_prints_a_control_character(capsys, form):
    text = printed(capsys, form)
    assert not {"\x1b", "\u202e"} & set(text)


@pytest.mark.parametrize("text", ["event-types", "event_types", "event-type", "event_type"])
def test_a_kind_is_known_by_its_plural_and_its_singular(text):
    assert registry_commands.kind_of(text).kind == "event_type"


def test_an_unknown_kind_is_refused_with_the_known_kinds():
    with pytest.raises(errors.RegistrationError, match="event-types"):
        registry_commands.kind_of("pods")


def test_an_unknown_form_is_refused_with_the_known_forms():
    done = CliRunner().invoke(main.app, ["get", "endpoints", "-o", "xml"])
    assert done.exit_code == 2
    assert "'wide'" in done.output


def test_two_ids_for_one_row_are_refused():
    done = CliRunner().invoke(main.app, ["get", "endpoint/a", "b"])
    assert done.exit_code == 2
    assert "two ids are given" in done.output
