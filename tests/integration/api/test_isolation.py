"""Every route that the OpenAPI document names, tried with the wrong key: nothing is done, and nothing is told."""

import re
import uuid

import pytest
from psycopg import sql

from subscriptions_db.api import openapi
from subscriptions_db.api.table import ROUTES
from subscriptions_db.archive.cursor import Receipt
from tests.integration.api import world

pytestmark = pytest.mark.integration

OF_ACME = {"endpoint_id": "acme-orders", "subscription_id": "acme-all", "customer_id": "acme", "tenant_id": "t1",
           "letter_id": world.LETTER, "consumer_id": world.CONSUMER, "event_type_id": "order.created",
           "replay_id": world.REPLAY, "attempt_id": world.ATTEMPT, "token": "0" * 64}  # fmt: skip
EVERYBODYS = {"getEventType"}
NOBODYS = dict.fromkeys(OF_ACME, "nobodys")
RECEIPTS = {"receipts": [Receipt(int(world.LETTER), uuid.UUID(int=1)).text()]}
BODIES = {
    "createEndpoint": {"url": "https://hooks.example.com/"},
    "updateEndpoint": {"max_in_flight": 1},
    "disableEndpoint": {"reason": "none"},
    "createSubscription": {"endpoint": "acme-orders", "event_type": "*", "everything": True},
    "updateSubscription": {"event_type": "*"},
    "testEndpoint": {},
    "explainForEndpoint": {"event": {"type": "order.made", "tenant_id": "t1"}},
    "explainForSubscription": {"event": {"type": "order.made", "tenant_id": "t1"}},
    "redriveDeadLetters": {"everything": True},
    "discardDeadLetters": {"everything": True},
    "recoverEndpoint": {"since": "2026-01-01T00:00:00Z"},
    "createReplay": {"since": "2026-05-10T00:00:00Z", "until": "2026-05-11T00:00:00Z"},
    "createConsumer": {"name": "mine"},
    "seekConsumer": {"to": "end"},
    "acknowledgeDeadLetters": RECEIPTS,
    "giveDeadLettersBack": RECEIPTS,
}
ALL = [
    pytest.param(method.upper(), path, operation, id=operation["operationId"])
    for path, methods in openapi.document(ROUTES)["paths"].items()
    for method, operation in methods.items()
]
OPERATIONS = [case for case in ALL if case.values[2]["security"]]
OPEN = [case for case in ALL if not case.values[2]["security"]]
KEPT = ("customers", "endpoints", "secrets", "subscriptions", "scopes", "filters", "customer_tenants", "tenants", "audit_log",
        "dead_letters", "dead_letter_consumers", "dead_letter_leases", "event_types", "validations", "replays")  # fmt: skip
EVERY_ROW = "select to_jsonb(t)::text as row from {} t order by 1"
HINTS = re.compile(rb"acme|hunter2")


def scopes_of(operation):
    return {scope for requirement in operation["security"] for scope in requirement["api_key"]}


def ask(client, method, path, operation, ids):
    body = BODIES.get(operation["operationId"], {}) if "requestBody" in operation else None
    return client.ask(method, path.format(**ids), body)


def everything(served):
    with served.registry() as opened:
        return [opened.execute(sql.SQL(EVERY_ROW).format(sql.Identifier(table))).fetchall() for table in KEPT]


@pytest.mark.parametrize(("method", "path", "operation"), OPERATIONS)
def test_another_customers_key_is_told_what_it_would_be_of_nobodys_row(served, other, method, path, operation):
    before = everything(served)
    answer = ask(other, method, path, operation, OF_ACME)
    if "customer_admin" not in scopes_of(operation):
        assert answer.status == 403
    elif operation["operationId"] in EVERYBODYS:
        assert answer.status == 200
    elif "{" in path:
        assert answer.status == 404
        assert answer.text == ask(other, method, path, operation, NOBODYS).text
    if method == "POST" and "{" not in path:
        return  # makes a row of its own, or names one of somebody else's: see test_subscriptions
    assert HINTS.search(answer.text) is None
    assert everything(served) == before


@pytest.mark.parametrize(("method", "path", "operation"), OPERATIONS)
@pytest.mark.parametrize("key", [None, "", "fk_aaaaaaaaaaaa_" + "x" * 43])
def test_without_a_key_there_is_nothing(served, key, method, path, operation):
    answer = ask(served.client(key), method, path, operation, OF_ACME)
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert HINTS.search(answer.text) is None


@pytest.mark.parametrize(("method", "path", "operation"), OPEN)
@pytest.mark.parametrize("name", [None, "acme", "other", "operator"])
def test_what_takes_no_key_takes_a_token_and_no_key_is_one(served, name, method, path, operation):
    before = everything(served)
    client = served.client(served.keys.get(name))
    answer = ask(client, method, path, operation, OF_ACME)
    assert "{token}" in path
    assert (answer.status, answer.text) == (404, ask(client, method, path, operation, NOBODYS).text)
    assert HINTS.search(answer.text) is None
    assert everything(served) == before


def test_few_routes_take_no_key():
    assert {case.id for case in OPEN} == {"permitDeliveries", "permitDeliveriesByBrowser"}


@pytest.mark.parametrize(("method", "path", "operation"), OPERATIONS)
def test_a_key_that_only_reads_changes_nothing(served, method, path, operation):
    before = everything(served)
    answer = ask(served.client(served.keys["reader"]), method, path, operation, OF_ACME)
    assert answer.status == (200 if "read_only" in scopes_of(operation) else 403)
    assert everything(served) == before


@pytest.mark.parametrize(("method", "path", "operation"), OPERATIONS)
def test_a_pollers_key_takes_dead_letters_and_sees_no_registry(served, method, path, operation):
    answer = ask(served.client(served.keys["poller"]), method, path, operation, OF_ACME)
    assert answer.status == (200 if "poller" in scopes_of(operation) else 403)
    assert ("poller" in scopes_of(operation)) <= path.startswith("/v1/dead-letter")


def test_filters_of_a_list_lead_to_nobody_else(other):
    for query in ("customer=acme", "endpoint=acme-orders"):
        assert other.get(f"/v1/subscriptions?{query}").json["items"] == []
    assert other.get("/v1/endpoints?customer=acme").json["items"] == []
    assert other.get("/v1/audit-log?customer=acme").json["items"] == []


def test_a_customer_that_names_another_is_told_nothing_of_its_letters(acme, other):
    for path in ("/v1/dead-letters", "/v1/dead-letter-consumers", "/v1/attempts"):
        assert acme.get(f"{path}?customer=acme").status == 200
        assert b"acme" not in other.get(path).text
        assert world.CONSUMER.encode() not in other.get(path).text
        assert other.get(f"{path}?customer=acme").fields == ["customer"]
        assert other.get(f"{path}?customer=acme").text == other.get(f"{path}?customer=nobo").text.replace(b"nobo", b"acme")
    cursor = acme.get("/v1/dead-letters").json["next_cursor"]
    assert other.get(f"/v1/dead-letters?cursor={cursor}").json["items"] == []
    assert other.post("/v1/dead-letters/discard", {"everything": True}).json["count"] == 0
    assert acme.get(f"/v1/dead-letters/{world.LETTER}").json["state"] == "waiting"


def test_a_customer_that_asks_after_another_on_the_same_connection_sees_its_own(acme, other):
    for _ in range(10):  # more often than there are connections
        assert {row["customer"] for row in acme.get("/v1/endpoints").json["items"]} == {"acme"}
        assert {row["customer"] for row in other.get("/v1/endpoints").json["items"]} <= {"other"}
