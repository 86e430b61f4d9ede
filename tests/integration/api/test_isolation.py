"""Every route of the OpenAPI document, requested with a wrong API key: it changes nothing, and reveals nothing."""

import json
import re
import uuid

import pytest
from psycopg import sql

from delivery import errors
from subscriptions_db import server_bounds
from subscriptions_db.api.contract import cursors
from subscriptions_db.api.contract.principals import Principal, Scope
from subscriptions_db.api.contract.routes import CustomerQuery
from subscriptions_db.api.documents import openapi
from subscriptions_db.api.server import transactions
from subscriptions_db.api.server.route_table import ROUTES
from subscriptions_db.archive.search import archive_positions
from subscriptions_db.postgres.sql import query
from tests.integration.api import world

pytestmark = pytest.mark.integration

OF_ACME = {"endpoint_id": "acme-orders", "subscription_id": "acme-all", "customer_id": "acme", "tenant_id": "t1",
           "letter_id": world.LETTER, "consumer_id": world.CONSUMER, "event_type_id": "order.created",
           "replay_id": world.REPLAY, "attempt_id": world.ATTEMPT, "webhook_id": world.WEBHOOK_ID,
           "token": "0" * 64}  # fmt: skip
EVERYBODYS = {"getEventType"}
NOBODYS = dict.fromkeys(OF_ACME, "nobodys")
RECEIPTS = {"receipts": [archive_positions.ReceiptHandle(int(world.LETTER), uuid.UUID(int=1)).text()]}
BODIES = {
    "createEndpoint": {"url": "https://hooks.example.com/"},
    "createEndpoints": {"endpoints": [{"url": "https://hooks.example.com/"}]},
    "updateEndpoint": {"max_in_flight": 1},
    "disableEndpoint": {"reason": "none"},
    "changeEndpoints": {"action": "pause", "endpoints": ["acme-orders"]},
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
    "updateConsumer": {"max_receives": 5},
    "unparkDeadLetters": {"everything": True},
    "acknowledgeDeadLetters": RECEIPTS,
    "giveDeadLettersBack": RECEIPTS,
    "extendDeadLetterLeases": RECEIPTS | {"lease_s": 60},
    "publishEvents": {"id": "e1", "type": "order.created", "tenant_id": "t1"},
}
ALL = [
    pytest.param(method.upper(), path, operation, id=operation["operationId"])
    for path, methods in openapi.document(ROUTES)["paths"].items()
    for method, operation in methods.items()
]
OPERATIONS = [case for case in ALL if case.values[2]["security"]]
NOBODYS_ROUTES = {"publishEvents"}
"""No customer's key may call them, and they name no row."""
WITHOUT_A_ROW = {case.id for case in OPERATIONS if case.values[0] == "POST" and "{" not in case.values[1]} - NOBODYS_ROUTES
"""Operations without a row in their path: they create a row, or their body names rows."""
OPEN = [case for case in ALL if not case.values[2]["security"]]
KEPT = ("customers", "endpoints", "secrets", "subscriptions", "scopes", "filters", "customer_tenants", "tenants", "audit_log",
        "dead_letters", "dead_letter_consumers", "dead_letter_leases", "event_types", "validations", "replays")  # fmt: skip
EVERY_ROW = "select to_jsonb(t)::text as row from {} t order by 1"
HINTS = re.compile(rb"acme|hunter2")
OF_OTHER = OF_ACME | {"endpoint_id": "other-orders", "subscription_id": "other-all", "consumer_id": "mine"}
PLATFORMS = "fanout"
"""The platform's own tenant, whose sub-tenants are the customers."""
NAMING = {
    ("createEndpoint", "customer"): 422, ("createEndpoint", "id"): 422,
    ("createEndpoints", "customer"): 422, ("createEndpoints", "endpoints"): 422,
    ("changeEndpoints", "customer"): 422, ("changeEndpoints", "endpoints"): 200, ("changeEndpoints", "cursor"): 200,
    ("createSubscription", "endpoint"): 422, ("createSubscription", "id"): 422,
    ("createSubscription", "sub_tenants"): 422, ("createSubscription", "except_sub_tenants"): 201,
    ("updateSubscription", "sub_tenants"): 422, ("updateSubscription", "except_sub_tenants"): 200,
    ("redriveDeadLetters", "endpoint"): 200, ("redriveDeadLetters", "cursor"): 200,
    ("discardDeadLetters", "endpoint"): 200, ("discardDeadLetters", "cursor"): 200,
    ("recoverEndpoint", "cursor"): 200,
    ("createConsumer", "endpoint"): 201, ("createConsumer", "name"): 201, ("createConsumer", "cursor"): 201,
    ("seekConsumer", "cursor"): 200,
    ("acknowledgeDeadLetters", "receipts"): 200, ("giveDeadLettersBack", "receipts"): 200,
    ("extendDeadLetterLeases", "receipts"): 200,
    ("unparkDeadLetters", "letters"): 200,
}  # fmt: skip
"""The fields of bodies by which a customer can name what is another's, and what is answered to that."""
NAMING_NOBODY = {
    "action", "dry_run", "q", "rotation", "status",
    "auth", "batch", "content_mode", "data", "description", "event", "event_type", "event_types", "everything",
    "except_tenants", "filter", "headers", "lease_s", "limit", "max_in_flight", "max_per_second", "max_receives",
    "metadata", "mode", "order_by", "overlap_s", "payload", "reason", "retry",
    "scheme", "since", "tenant", "tenants", "tls", "to", "type", "until", "url", "validation", "wait_s",
}  # fmt: skip
STANDS_ALONE = {("redriveDeadLetters", "endpoint"), ("discardDeadLetters", "endpoint"), ("seekConsumer", "cursor"),
                ("unparkDeadLetters", "letters")}  # fmt: skip
"""Beside these, the usual body would be refused."""
MADE = re.compile(rb"sub_[0-9a-f]{24}|\d{4}-\d\d-\d\dT[0-9:.]+Z")
"""New in each answer: ids and times."""


def scopes_of(operation):
    return {scope for requirement in operation["security"] for scope in requirement["api_key"]}


def ask(client, method, path, operation, ids):
    body = BODIES.get(operation["operationId"], {}) if "requestBody" in operation else None
    return client.ask(method, path.format(**ids), body)


def everything(served):
    with served.registry() as opened:
        return [opened.execute(sql.SQL(EVERY_ROW).format(sql.Identifier(table))).fetchall() for table in KEPT]


def naming_a_row():
    """Yield (route, field) for each field of a body that a customer's key may send, by the OpenAPI document."""
    document = openapi.document(ROUTES)
    for case in OPERATIONS:
        _, _, operation = case.values
        if "requestBody" in operation and "customer_admin" in scopes_of(operation):
            body = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
            yield from ((case.id, field) for field in document["components"]["schemas"][body]["properties"])


def bodies_naming(name, field, letters):
    """Return two bodies that name a row: one of customer acme, and one that does not exist."""
    values = {
        "customer": ("acme", "nobo"), "endpoint": ("acme-orders", "nobo-orders"), "name": (world.CONSUMER, "nobody"),
        "id": ("acme-orders", "nobo-orders") if name == "createEndpoint" else ("acme-all", "nobo-all"),
        "sub_tenants": ({PLATFORMS: ["acme"]}, {PLATFORMS: ["nobo"]}),
        "except_sub_tenants": ({PLATFORMS: ["acme"]}, {PLATFORMS: ["nobo"]}),
        "endpoints": (["acme-orders"], ["nobo-orders"]), "cursor": letters["cursor"], "receipts": letters["receipts"],
        "letters": ([world.LETTER], [str(int(world.LETTER) - 1)]),
    }[field]  # fmt: skip
    if (name, field) == ("createEndpoints", "endpoints"):
        values = tuple([{"url": "https://hooks.example.com/", "id": row_id}] for row_id in ("acme-orders", "nobo-orders"))
    if (name, field) == ("changeEndpoints", "cursor"):
        values = tuple(map(cursors.encode, ("acme-orders", "nobo-orders")))
    own = {"createSubscription": {"endpoint": "other-orders"}, "createConsumer": {"name": "new"}}
    base = {} if (name, field) in STANDS_ALONE else BODIES[name] | own.get(name, {})
    return [base | {field: value} for value in values]


def without(answer, value):
    """Return the text of an answer without the requested value and without ids that are new in each answer."""
    said = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    text = MADE.sub(b"*", answer.text).replace(said.encode(), b"*")
    for item in filter(lambda item: isinstance(item, str), value if isinstance(value, list) else []):
        text = text.replace(item.encode(), b"*")
    return text


def not_of_other(rows):
    """Return the rows that do not belong to `other`, the only customer that creates subscriptions in this file."""
    own = re.compile(r'"customer_id": "other"|"subscription_id": "(other-all|sub_[0-9a-f]{24})"')
    return [[row["row"] for row in table if not own.search(row["row"])] for table in rows]


@pytest.fixture(scope="module")
def letters(served):
    """Return the cursors and receipt handles of acme's dead letters, each with one of a dead letter that does not exist."""
    poller, other = (served.client(served.keys[name]) for name in ("poller", "other"))
    leased = world.lease(poller, lease_s=3600).json["items"]
    cursors = [poller.get("/v1/dead-letters").json["next_cursor"], archive_positions.letter_cursor(int(world.LETTER) - 1)]
    assert other.post("/v1/dead-letter-consumers", {"name": OF_OTHER["consumer_id"]}).status == 201
    nobodys = archive_positions.ReceiptHandle(int(world.LETTER) - 1, uuid.UUID(int=1)).text()
    return {"cursor": cursors, "receipts": [[letter["receipt"] for letter in leased], [nobodys]]}


@pytest.mark.parametrize(("method", "path", "operation"), [case for case in OPERATIONS if case.id not in WITHOUT_A_ROW])
def test_another_customers_row_looks_like_a_missing_row(served, other, method, path, operation):
    before = everything(served)
    answer = ask(other, method, path, operation, OF_ACME)
    if "customer_admin" not in scopes_of(operation):
        assert answer.status == 403
    elif operation["operationId"] in EVERYBODYS:
        assert answer.status == 200
    elif "{" in path:
        assert answer.status == 404
        assert answer.text == ask(other, method, path, operation, NOBODYS).text
    assert HINTS.search(answer.text) is None
    assert everything(served) == before


def test_every_body_field_that_names_a_row_is_known():
    fields = set(naming_a_row())
    assert {field for field in fields if field[1] not in NAMING_NOBODY} == NAMING.keys()
    assert {name for name, _ in NAMING} >= WITHOUT_A_ROW


@pytest.mark.parametrize(("name", "field"), NAMING, ids=map("-".join, NAMING))
def test_another_customers_row_in_a_body_looks_missing(served, other, letters, name, field):
    [(method, path, _)] = [case.values for case in OPERATIONS if case.id == name]
    before = not_of_other(everything(served))
    assert any(before)
    theirs, nobodys = bodies_naming(name, field, letters)
    said = []
    for body in (theirs, nobodys):
        answer = other.ask(method, path.format(**OF_OTHER), body)
        said.append((answer.status, without(answer, body[field])))
        if name == "createConsumer":
            other.delete(f"{path}/{body['name']}")
    assert said[0] == said[1]
    assert said[0][0] == NAMING[name, field]
    assert not_of_other(everything(served)) == before


QUERIES = [
    pytest.param(case, parameter["name"], id=f"{case.id}-{parameter['name']}")
    for case in OPERATIONS
    for parameter in case.values[2]["parameters"]
    if parameter["in"] == "query" and parameter["name"] in {"customer", "endpoint"}
]


def test_every_route_with_a_customer_parameter_is_tested():
    tried = {query.values[0].id for query in QUERIES if query.values[1] == "customer"}
    assert tried >= {route.name for route in ROUTES if issubclass(route.query, CustomerQuery)}


@pytest.mark.parametrize("ids", [OF_ACME, OF_OTHER], ids=["theirs", "own"])
@pytest.mark.parametrize(("case", "parameter"), QUERIES)
@pytest.mark.usefixtures("letters")
def test_a_customer_parameter_of_another_customer_looks_missing(served, other, case, parameter, ids):
    method, path, operation = case.values
    before = everything(served)
    acmes, nobodys = {"customer": ("acme", "nobo"), "endpoint": ("acme-orders", "nobo-orders")}[parameter]
    answer, wanted = (ask(other, method, f"{path}?{parameter}={value}", operation, ids) for value in (acmes, nobodys))
    assert answer.status == wanted.status
    assert answer.text.replace(acmes.encode(), nobodys.encode()) == wanted.text
    if parameter == "customer":
        assert (answer.status, answer.fields) == (422, ["customer"])
    elif case.id == "countDeadLetters":
        assert answer.json == {"count": 0, "is_exact": True}
    elif case.id == "listParkedDeadLetters" and ids is OF_ACME:
        assert answer.status == 404  # the consumer in the path is another customer's
    else:
        assert answer.json["items"] == []
    assert everything(served) == before


@pytest.mark.parametrize(("method", "path", "operation"), OPERATIONS)
@pytest.mark.parametrize("key", [None, "", "fk_aaaaaaaaaaaa_" + "x" * 43])
def test_every_route_refuses_a_request_without_a_valid_key(served, key, method, path, operation):
    answer = ask(served.client(key), method, path, operation, OF_ACME)
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert HINTS.search(answer.text) is None


@pytest.mark.parametrize(("method", "path", "operation"), OPEN)
@pytest.mark.parametrize("name", [None, "acme", "other", "operator"])
def test_a_route_without_key_needs_a_token_and_no_key_is_a_token(served, name, method, path, operation):
    before = everything(served)
    client = served.client(served.keys.get(name))
    answer = ask(client, method, path, operation, OF_ACME)
    assert "{token}" in path
    assert (answer.status, answer.text) == (404, ask(client, method, path, operation, NOBODYS).text)
    assert HINTS.search(answer.text) is None
    assert everything(served) == before


def test_only_known_routes_need_no_key():
    assert {case.id for case in OPEN} == {"permitDeliveries", "permitDeliveriesByBrowser"}


@pytest.mark.parametrize(("method", "path", "operation"), OPERATIONS)
def test_a_key_that_only_reads_changes_nothing(served, method, path, operation):
    before = everything(served)
    answer = ask(served.client(served.keys["reader"]), method, path, operation, OF_ACME)
    assert answer.status == (200 if "read_only" in scopes_of(operation) else 403)
    assert everything(served) == before


@pytest.mark.parametrize(("method", "path", "operation"), OPERATIONS)
def test_a_pollers_key_reaches_dead_letters_and_no_registry(served, method, path, operation):
    answer = ask(served.client(served.keys["poller"]), method, path, operation, OF_ACME)
    assert answer.status == (200 if "poller" in scopes_of(operation) else 403)
    assert ("poller" in scopes_of(operation)) <= path.startswith("/v1/dead-letter")


@pytest.mark.parametrize(("method", "path", "operation"), OPERATIONS)
def test_a_publishers_key_publishes_and_does_nothing_else(served, method, path, operation):
    before = everything(served)
    answer = ask(served.client(served.keys["publisher of t1"]), method, path, operation, OF_ACME)
    assert (answer.status == 403) == (operation["operationId"] != "publishEvents")
    assert everything(served) == before


def test_list_filters_show_no_row_of_another_customer(other):
    """Regression: some lists answered `customer=acme` with an empty list, and others with 422."""
    assert other.get("/v1/subscriptions?endpoint=acme-orders").json["items"] == []
    for path in ("/v1/subscriptions", "/v1/endpoints", "/v1/audit-log"):
        refused = other.get(f"{path}?customer=acme")
        assert (refused.status, refused.fields) == (422, ["customer"])
        assert other.get(f"{path}?customer=other").status == 200


def test_a_customer_gets_no_dead_letter_of_another_customer(acme, other):
    for path in ("/v1/dead-letters", "/v1/dead-letter-consumers", "/v1/attempts", "/v1/deliveries"):
        assert acme.get(f"{path}?customer=acme").status == 200
        assert b"acme" not in other.get(path).text
        assert world.CONSUMER.encode() not in other.get(path).text
        assert other.get(f"{path}?customer=acme").fields == ["customer"]
        assert other.get(f"{path}?customer=acme").text == other.get(f"{path}?customer=nobo").text.replace(b"nobo", b"acme")
    cursor = acme.get("/v1/dead-letters").json["next_cursor"]
    assert other.get(f"/v1/dead-letters?cursor={cursor}").json["items"] == []
    assert other.post("/v1/dead-letters/discard", {"everything": True}).json["count"] == 0
    assert acme.get(f"/v1/dead-letters/{world.LETTER}").json["state"] == "waiting"


def test_a_reused_connection_shows_each_customer_its_own_rows(acme, other):
    for _ in range(10):  # more often than there are connections
        assert {row["customer"] for row in acme.get("/v1/endpoints").json["items"]} == {"acme"}
        assert {row["customer"] for row in other.get("/v1/endpoints").json["items"]} <= {"other"}


@pytest.mark.parametrize(("kind", "row_id"), [("endpoint", "other-orders"), ("endpoint", "no"), ("subscription", "other-all")])
def test_a_customer_takes_no_lock_of_another_customers_row(served, acme, kind, row_id):
    """Regression: a customer that named another's endpoint in a bulk request delayed changes of it, or made them fail."""
    with served.registry() as opened, opened.transaction():
        opened.execute(query("lock_row"), {"kind": kind, "id": row_id})
        assert acme.delete(f"/v1/{kind}s/{row_id}").status == 404
        bulk = acme.post("/v1/endpoints/bulk", {"action": "pause", "endpoints": [row_id]})
    assert [item["result"] for item in bulk.json["items"]] == ["not_found"]


@pytest.mark.parametrize("fails", [lambda opened: opened.execute("select 1 / 0"), lambda _: 1 / 0], ids=["in Postgres", "here"])
def test_a_pooled_connection_forgets_its_customer_after_an_error(served, fails):
    config = served.config.model_copy(update={"api": served.config.api.model_copy(update={"max_connections": 1})})
    acme, other = (Principal(name, name, Scope.CUSTOMER_ADMIN) for name in ("acme", "other"))
    with transactions.Store(config) as opened:
        with opened.transaction(other) as connection:
            used = connection.info.backend_pid
        with pytest.raises((ZeroDivisionError, errors.RegistrationError)), opened.transaction(acme) as connection:  # noqa: PT012
            assert {row["customer_id"] for row in connection.execute("select customer_id from endpoints")} == {"acme"}
            fails(connection)
        with opened.transaction(other) as connection:
            assert connection.info.backend_pid == used
            assert {row["customer_id"] for row in connection.execute("select customer_id from endpoints")} == {"other"}


def test_without_postgres_every_route_answers_503(own_postgres):
    bounds = server_bounds.ServerBounds(connection_wait_s=0.05, key_cache_s=3600)
    with world.served(own_postgres, bounds=bounds, max_poll_s=1) as served:
        operator, acme = (served.client(served.keys[name]) for name in ("operator", "acme"))
        assert [client.get("/v1/endpoints").status for client in (operator, acme)] == [200, 200]
        own_postgres.kill()
        for case in OPERATIONS:
            method, path, operation = case.values
            answer = ask(operator if "operator" in scopes_of(operation) else acme, method, path, operation, OF_ACME)
            assert (case.id, answer.status) == (case.id, 503)
            assert int(answer.headers["retry-after"]) > 0
