"""The examples of docs/api.md and docs/dead-letters.md, requested in their order, get the answers that they show."""

import json
import re
from pathlib import Path

import pytest

from subscriptions_db.api.contract import keys
from subscriptions_db.api.contract.principals import Scope
from subscriptions_db.api.documents import openapi
from subscriptions_db.api.server.route_table import ROUTES
from subscriptions_db.archive.ingest import writer
from tests.integration.api import world
from tests.support import archive
from tests.support.reading import holds

pytestmark = pytest.mark.integration

DOCS = Path(__file__).parents[3] / "docs"
TEXT, LETTERS = (DOCS / "api.md").read_text(), (DOCS / "dead-letters.md").read_text()
EXAMPLE = re.compile(r"```http\n(\w+) (\S+)\n((?:[\w-]+: [^\n]*\n)*)(.*?)```\s+```json\n(.*?)```", re.DOTALL)


def examples(text):
    found = EXAMPLE.findall(text)
    assert len(found) == text.count("```http")
    return found


def filled(text, made):
    """Return a text of the document with the ids and secrets of earlier answers in place of its abbreviations."""
    for shown, given in made.items():
        text = text.replace(f"{shown}…", given)
    return text


def test_the_examples_of_the_api_document_hold(served, operator):
    client, made = operator, {}
    for method, path, headers, body, documented in examples(TEXT):
        named = dict(line.split(": ", 1) for line in headers.splitlines())
        document = json.loads(filled(body, made)) if body else None
        answer = client.ask(method, filled(path, made), document, **named).json
        holds(json.loads(documented), answer)
        if client is operator:
            with served.registry() as opened:
                key = keys.create(opened, customer_id="globex", scope=Scope.CUSTOMER_ADMIN)
            client = served.client(key.text.reveal().decode())
        elif method == "POST" and "id" in answer:
            made[answer["id"].partition("_")[0] + "_"] = answer["id"]


def test_the_examples_of_the_dead_letter_document_hold(served, acme):
    with served.registry() as opened:
        opened.execute("delete from dead_letters")
        of = {"event_type": "order.created", "event_id": "e1"}
        world.letters(opened, 1, **of)
        outcome = archive.outcome(customer="acme", endpoint="acme-orders", **of)
        writer.write(opened, [archive.taken_attempts(0, outcome)], archive.KEPT, now=archive.NOW)
    made = {}
    for method, path, _, body, documented in examples(LETTERS):
        answer = acme.ask(method, filled(path, made), json.loads(filled(body, made)) if body else None).json
        holds(json.loads(documented), answer)
        for item in answer.get("items", []):
            made |= {item[name][:4]: item[name] for name in ("id", "receipt", "webhook_id") if name in item}


def test_the_document_names_every_scope_rule_and_path():
    for scope in Scope:
        assert f"`{scope}`" in TEXT
    paths = {route.path for route in ROUTES} | {"/v1/openapi.json", "/v1/problems"}
    for path in re.findall(r"`(?:GET )?(/v1/[^`]*)`", TEXT):
        assert any(re.sub(r"\{\w+\}", "{id}", known) == path for known in paths), path
    refusals = {int(status) for row in re.findall(r"^\| ([\d, ]+) \|", TEXT, re.MULTILINE) for status in row.split(", ")}
    documented = {
        int(status)
        for methods in openapi.document(ROUTES)["paths"].values()
        for operation in methods.values()
        for status in operation["responses"]
    }
    # 405 is the answer to a method that the document does not have.
    assert refusals == documented - {200, 201, 202, 204, 400} | {405}
