"""A command that finds no settings says so below the errors that this may cause."""

import os
import sys

import pytest

from fanout.cli import main

ENDPOINT = '{id: e1, customer: c1, url: "http://127.0.0.1:9000/"}'


@pytest.fixture
def said(monkeypatch, capsys, tmp_path):
    """Run a command in an empty folder without settings; return what it writes to standard error."""
    for name in [name for name in os.environ if name.startswith("FANOUT_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["fanout", *words])
        with pytest.raises(SystemExit):
            main.main()
        return capsys.readouterr().err

    return run


def hint(folder):
    return (
        f"No settings file was found in {folder} (fanout.toml or .fanout/local.toml): run this command where `fanout up` runs, "
        "or name the file with --config\n"
    )


def test_an_error_for_lack_of_settings_ends_with_a_hint(said, tmp_path):
    """Regression: the error named `fanout keys generate`, and a newcomer made a second key ring."""
    assert said("serve").endswith(f"prints a new key\n{hint(tmp_path)}")
    (tmp_path / "two.yaml").write_text(f"customers: [{{id: c1}}]\nendpoints: [{ENDPOINT}, {ENDPOINT.replace('e1', 'e2')}]")
    assert said("apply", "two.yaml").endswith(f"endpoints[1].url: must begin with https://\n{hint(tmp_path)}")


def test_apply_hints_at_missing_settings_below_a_single_mistake(said, tmp_path):
    (tmp_path / "one.yaml").write_text(f"customers: [{{id: c1}}]\nendpoints: [{ENDPOINT}]")
    assert said("apply", "one.yaml").endswith(f"must begin with https://\nNothing was changed.\n{hint(tmp_path)}")


def test_apply_gives_no_hint_below_a_mistake_that_settings_cannot_cause(said):
    assert said("apply", "missing.yaml").endswith("Nothing was changed.\n")


def test_a_command_with_any_settings_gives_no_hint(said, tmp_path, monkeypatch):
    (tmp_path / "other.toml").write_text("")
    assert "No settings file" not in said("--config", "other.toml", "serve")
    monkeypatch.setenv("FANOUT_LOGS_LEVEL", "INFO")
    assert "No settings file" not in said("serve")
    monkeypatch.delenv("FANOUT_LOGS_LEVEL")
    (tmp_path / "fanout.toml").write_text("")
    assert "No settings file" not in said("serve")


def test_a_mistake_that_needs_no_settings_gets_no_hint(said):
    assert "No settings file" not in said("filter", "try", "--filter", "x", "--event", "y")
