"""The manifests of the documents, applied one after the other by the commands that the documents name."""

import types

import orjson
import pytest
from typer.testing import CliRunner

from fanout.cli import main
from fanout.local import stack
from tests.support import reading

pytestmark = pytest.mark.integration


@pytest.fixture
def fanout(kafka, empty_database, tmp_path):
    """Return a function that runs a command with the settings that `fanout up` writes."""
    stack.write_local_settings(tmp_path, types.SimpleNamespace(postgres=types.SimpleNamespace(url=empty_database), kafka=kafka))

    def run(*words, exit_code=0):
        done = CliRunner().invoke(main.app, ["--config", str(tmp_path / "local.toml"), *words])
        assert done.exit_code == exit_code, done.output
        return done

    return run


def test_the_manifests_of_the_documents_are_applied_one_after_another(fanout, tmp_path):
    first, second = str(tmp_path / "first.yaml"), str(tmp_path / "second.yaml")
    [example] = reading.blocks("README.md", "yaml")
    (tmp_path / "first.yaml").write_text(example)
    (tmp_path / "second.yaml").write_text(reading.registering())

    assert "fanout db migrate" in str(fanout("apply", first, exit_code=1).exception)
    assert "0001_registry" in fanout("db", "migrate").stdout
    assert len(orjson.loads(fanout("apply", first, "--dry-run", "--json").stdout)["changes"]) == 7
    made = orjson.loads(fanout("apply", first, "--json").stdout)
    assert made["new_secrets"]["acme-orders"].startswith("whsec_")
    assert orjson.loads(fanout("apply", first, "--json").stdout)["changes"] == []
    [endpoint] = orjson.loads(fanout("get", "endpoints", "--json").stdout)
    assert (endpoint["id"], endpoint["auth_secret"], endpoint["signing_secrets"]) == ("acme-orders", "***", "***")
    assert "0 secrets encrypted again" in fanout("keys", "rotate").stdout

    assert orjson.loads(fanout("apply", second, "--strict", "--json").stdout)["warnings"] == []
