"""Redocly and Spectral find nothing in the OpenAPI document, and find a mistake that is put into it."""

import subprocess
from pathlib import Path

import orjson
import pytest

from subscriptions_db.api.documents import openapi
from subscriptions_db.api.server.route_table import ROUTES
from tests.support import node_packages

HERE = Path(__file__).parent
LINTERS = {
    "redocly": (
        "@redocly/cli/bin/cli.js", "lint", "--config", str(HERE / "redocly.yaml"), "--max-problems", "1000",
    ),
    "spectral": (
        "@stoplight/spectral-cli/dist/index.js", "lint", "--ruleset", str(HERE / "spectral.yaml"),
        "--fail-severity", "warn",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder():
    return node_packages.installed()


def linted(folder, linter, document, path):
    path.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    command = node_packages.command(folder, *LINTERS[linter], str(path))
    done = subprocess.run(command, env=node_packages.environment(), capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("linter", LINTERS)
def test_the_openapi_document_has_neither_errors_nor_warnings(folder, linter, tmp_path):
    status, report = linted(folder, linter, openapi.document(ROUTES), tmp_path / "openapi.json")
    assert status == 0, report
    assert "warning" not in report.lower(), report


@pytest.mark.parametrize("linter", LINTERS)
def test_a_linter_names_a_missing_operation_id(folder, linter, tmp_path):
    """So a linter that checked nothing would not pass for one that found nothing."""
    document = openapi.document([route for route in ROUTES if route.name == "getTenant"])
    del document["paths"]["/v1/tenants/{tenant_id}"]["get"]["operationId"]
    _, report = linted(folder, linter, document, tmp_path / "openapi.json")
    assert "operation-operationId" in report
