"""A key that is limited to endpoints reaches these endpoints and what belongs to them, and nothing else of its customer."""

import dataclasses

import pytest

from subscriptions_db.api.contract import keys
from subscriptions_db.api.contract.principals import Scope
from subscriptions_db.archive.ingest import writer
from subscriptions_db.archive.search import archive_positions, archived_dead_letters
from tests.integration.api import world
from tests.integration.api.test_isolation import NOBODYS, OF_ACME, OPERATIONS, ask, everything, scopes_of
from tests.support import archive

pytestmark = pytest.mark.integration

ORDERS = "acme-orders"
OF_THE_CUSTOMER = {"getEventType", "getCustomer"}
"""Operations of rows that belong to no endpoint. A limited key may call them."""
OF_ALL_ENDPOINTS = {"getStatistics"}
"""Sums over all endpoints of a customer, which no limited key reads."""


@pytest.fixture(scope="module")
def second(served, operator):
    """Register a second endpoint of acme with a subscription, a dead letter, a consumer and a replay; return its id."""
    made = operator.post("/v1/endpoints", {"customer": "acme", "id": "acme-second", "url": "https://hooks.example.com/2"})
    assert made.status == 201
    wanted = {"id": "acme-second-all", "endpoint": "acme-second", "event_type": "*", "everything": True}
    assert operator.post("/v1/subscriptions", wanted).status == 201
    world.write(served, endpoint="acme-second")
    return "acme-second"


def limited_to(served, *endpoints, scope=Scope.CUSTOMER_ADMIN):
    with served.registry() as opened:
        made = keys.create(opened, customer_id="acme", scope=scope, endpoints=endpoints)
    return served.client(made.text.reveal().decode())


@pytest.fixture(scope="module")
def limited(served, second):
    """Return a client with a key of acme that is limited to its second endpoint."""
    return limited_to(served, second)


@pytest.mark.parametrize(("method", "path", "operation"), [case for case in OPERATIONS if "{" in case.values[1]])
def test_a_row_of_another_endpoint_looks_like_a_missing_row(served, limited, method, path, operation):
    before = everything(served)
    answer = ask(limited, method, path, operation, OF_ACME)
    if "customer_admin" not in scopes_of(operation):
        assert answer.status == 403
    elif operation["operationId"] in OF_THE_CUSTOMER:
        assert answer.status == 200
    else:
        missing = ask(limited, method, path, operation, NOBODYS)
        assert (answer.status, answer.text) == (404, missing.text)
    assert everything(served) == before


@pytest.mark.parametrize(
    ("method", "path", "operation"), [case for case in OPERATIONS if case.values[0] == "GET" and "{" not in case.values[1]]
)
def test_no_list_shows_another_endpoint(limited, method, path, operation):
    answer = ask(limited, method, path, operation, {})
    is_allowed = "customer_admin" in scopes_of(operation) and operation["operationId"] not in OF_ALL_ENDPOINTS
    assert answer.status == (200 if is_allowed else 403)
    assert ORDERS.encode() not in answer.text


LISTS = {
    "/v1/endpoints": ["acme-second"], "/v1/subscriptions": ["acme-second-all"], "/v1/dead-letters": None,
    "/v1/dead-letter-consumers": [], "/v1/deliveries": [], "/v1/attempts": [], "/v1/replays": [],
}  # fmt: skip


@pytest.mark.parametrize("path", LISTS)
def test_lists_have_only_rows_of_the_endpoints(acme, limited, path):
    found = limited.get(path)
    assert found.status == 200
    assert ORDERS.encode() not in found.text
    assert ORDERS.encode() in acme.get(path).text or path == "/v1/dead-letter-consumers"
    if LISTS[path] is not None:
        assert [item["id"] for item in found.json["items"]] == LISTS[path]
    assert limited.get("/v1/endpoints?total=true").json["total"] == 1
    assert limited.get("/v1/dead-letters/count").json["count"] == 1


@pytest.mark.parametrize("path", ["/v1/subscriptions", "/v1/deliveries"])
def test_an_item_is_expanded_by_endpoints_of_the_key_only(served, limited, second, path):
    attempted = archive.outcome(customer="acme", endpoint=second, event_id="expanded")
    with served.registry() as opened:
        taken = dataclasses.replace(archive.taken_attempts(0, attempted), topic=f"of{path.replace('/', '.')}")
        writer.write(opened, [taken], archive.KEPT, now=archive.NOW)
    found = limited.get(f"{path}?expand=endpoint")
    assert {item["expanded"]["endpoint"]["id"] for item in found.json["items"]} == {second}
    assert ORDERS.encode() not in found.text
    with served.registry() as opened:
        opened.execute("delete from attempts where endpoint_id = %s", [second])


def test_the_endpoints_of_the_key_are_changed_as_with_any_key(served, limited, second):
    path = f"/v1/endpoints/{second}"
    assert limited.patch(path, {"description": "ours"}).json["description"] == "ours"
    made = limited.post("/v1/subscriptions", {"endpoint": second, "event_type": "*", "tenants": ["t1"]})
    assert made.status == 201
    entries = limited.get("/v1/audit-log").json["items"]
    assert {entry["entity_id"] for entry in entries} == {second, "acme-second-all", made.json["id"]}
    assert limited.delete(f"/v1/subscriptions/{made.json['id']}").status == 204
    [entry] = [entry for entry in served.audit(made.json["id"]) if entry["action"] == "delete"]
    assert entry["customer_id"] == "acme"
    wanted = {"since": "2026-05-10T00:00:00Z", "until": "2026-05-11T00:00:00Z"}
    replay = limited.post(f"{path}/replays", wanted).json["id"]
    assert [item["id"] for item in limited.get("/v1/replays").json["items"]] == [replay]
    assert limited.post(f"/v1/replays/{replay}/cancel").json["state"] == "cancelled"
    with served.registry() as opened:
        opened.execute("delete from replays where replay_id = %s", [replay])


def test_one_request_changes_only_endpoints_of_the_key(served, acme, limited, second):
    named = {"action": "pause", "endpoints": [ORDERS, "nobodys", second]}
    results = {item["endpoint"]: item["result"] for item in limited.post("/v1/endpoints/bulk", named).json["items"]}
    assert results == {ORDERS: "not_found", "nobodys": "not_found", second: "changed"}
    assert limited.post("/v1/endpoints/bulk", {"action": "resume", "everything": True}).json["changed"] == 1
    assert acme.get(f"/v1/endpoints/{ORDERS}").json["status"] == "active"
    assert [entry["action"] for entry in served.audit(ORDERS)] == []


def test_dead_letters_of_other_endpoints_are_not_marked(served, acme, limited):
    before = acme.get(f"/v1/dead-letters/{world.LETTER}").json
    [own] = limited.get("/v1/dead-letters").json["items"]
    assert limited.post("/v1/dead-letters/discard", {"everything": True}).json["count"] == 1
    assert limited.get(f"/v1/dead-letters/{own['id']}").json["state"] == "discarded"
    assert acme.get(f"/v1/dead-letters/{world.LETTER}").json == before
    world.write(served, endpoint="acme-second")


def test_a_limited_key_does_not_subscribe_to_operational_events(limited, second):
    wanted = {"endpoint": second, "event_type": "fanout.*", "sub_tenants": {"fanout": ["acme"]}}
    assert limited.post("/v1/subscriptions", wanted).fields == ["sub_tenants"]
    assert limited.patch("/v1/subscriptions/acme-second-all", {"sub_tenants": {"fanout": ["acme"]}}).fields == ["sub_tenants"]


def test_a_limited_key_creates_no_endpoint_and_names_only_its_own(limited):
    assert limited.post("/v1/endpoints", {"url": "https://hooks.example.com/"}).status == 403
    for endpoint in (ORDERS, "nobodys"):
        refused = limited.post("/v1/subscriptions", {"endpoint": endpoint, "event_type": "*", "tenants": ["t1"]})
        assert (refused.status, refused.fields) == (422, ["endpoint"])
        assert limited.post("/v1/dead-letter-consumers", {"name": "mine", "endpoint": endpoint}).fields == ["endpoint"]
    assert limited.post("/v1/dead-letter-consumers", {"name": "mine"}).fields == ["endpoint"]


def test_a_limited_key_reads_the_statistics_of_its_endpoints_only(acme, limited, second):
    asked = "since=2026-05-10T00:00:00Z&until=2026-05-11T00:00:00Z"
    own = limited.get(f"/v1/endpoints/{second}/statistics?{asked}").json["total"]["dead_lettered"]
    assert 1 <= own < acme.get(f"/v1/statistics?{asked}").json["total"]["dead_lettered"]
    assert limited.get(f"/v1/statistics?{asked}").status == 403


def test_a_limited_poller_shares_a_consumer_of_its_endpoint(served, acme, limited, second):
    poller = limited_to(served, second, scope=Scope.POLLER)
    for name, endpoint in (("seconds", second), ("orders", ORDERS), ("whole", None)):
        assert acme.post("/v1/dead-letter-consumers", {"name": name, "endpoint": endpoint}).status == 201
    assert [item["name"] for item in poller.get("/v1/dead-letter-consumers").json["items"]] == ["seconds"]
    for name in ("orders", "whole", world.CONSUMER):
        assert poller.post(f"/v1/dead-letter-consumers/{name}/lease", {}).status == 404
        taken = limited.post("/v1/dead-letter-consumers", {"name": name, "endpoint": second})
        assert (taken.status, taken.fields) == (409, ["name"])  # the one answer that tells of a consumer out of sight
    [leased] = poller.post("/v1/dead-letter-consumers/seconds/lease", {}).json["items"]
    assert leased["record"]["endpoint_id"] == second
    settled = poller.post("/v1/dead-letter-consumers/seconds/ack", {"receipts": [leased["receipt"]]})
    assert [result["result"] for result in settled.json["results"]] == ["acknowledged"]
    for name in ("seconds", "orders", "whole"):
        assert acme.delete(f"/v1/dead-letter-consumers/{name}").status == 204


@pytest.fixture
def quiet(served, acme, second):
    """Let acme create a consumer of its second endpoint that begins after all present dead letters; return its path.

    Later dead letters are deleted after the test.
    """
    path = "/v1/dead-letter-consumers/quiet"
    made = acme.post("/v1/dead-letter-consumers", {"name": "quiet", "endpoint": second, "to": "end"})
    assert made.status == 201
    yield path
    assert acme.delete(path).status == 204
    with served.registry() as opened:
        opened.execute("delete from dead_letters where position > %s", [archive_positions.letter_position(made.json["cursor"])])


def test_a_limited_poll_reads_past_letters_of_other_endpoints_once(served, acme, second, quiet):
    """Regression: each poll of a limited key read all dead letters of the other endpoints, and its consumer never moved on."""
    poller = limited_to(served, second, scope=Scope.POLLER)
    world.write(served, archived_dead_letters.MAX_LOOKED_AT + 1, endpoint=ORDERS)
    places, polls = [], []
    for _ in range(3):
        polls.append(poller.post(f"{quiet}/lease", {}).json)
        places.append(archive_positions.letter_position(acme.get(quiet).json["cursor"]))
    assert polls == [{"items": [], "has_more": has_more} for has_more in (True, False, False)]
    assert places == [places[2] - 1, places[2], places[2]]
    world.write(served, endpoint=second)
    assert len(poller.post(f"{quiet}/lease", {}).json["items"]) == 1


def test_a_limited_poll_gives_letters_of_its_endpoint_only(served, second, quiet):
    """The search of a poll sees all dead letters of the customer, and the answer has none of another endpoint."""
    poller = limited_to(served, second, scope=Scope.POLLER)
    for endpoint in (ORDERS, second, ORDERS):
        world.write(served, endpoint=endpoint)
    answer = poller.post(f"{quiet}/lease", {"limit": 100})
    [leased] = answer.json["items"]
    assert (leased["record"]["endpoint_id"], answer.json["has_more"]) == (second, False)
    assert ORDERS.encode() not in answer.text + poller.get("/v1/dead-letters").text


def test_the_limit_of_a_key_holds_beyond_the_search_of_its_poll(served, second, quiet, monkeypatch):
    """Only the search sees the other endpoints: the dead letters of the answer are read with the limit of the key."""
    limits = {}
    for name in ("find", "waiting"):
        monkeypatch.setattr(archived_dead_letters, name, noting(limits, name, getattr(archived_dead_letters, name)))
    world.write(served, endpoint=second)
    poller = limited_to(served, second, scope=Scope.POLLER)
    assert len(poller.post(f"{quiet}/lease", {}).json["items"]) == 1
    assert limits == {"find": "", "waiting": second}


def noting(limits, name, function):
    """Return the function, which also notes by its name the limit that its transaction has."""

    def noted(connection, *args, **kwargs):
        [row] = connection.execute("select current_setting('fanout.endpoint_ids', true) as held").fetchall()
        limits[name] = row["held"]
        return function(connection, *args, **kwargs)

    return noted


def test_a_first_answer_is_repeated_only_for_the_same_limit(served, acme, limited, second):
    path, body = f"/v1/endpoints/{second}", {"max_in_flight": 7}
    first = acme.patch(path, body, idempotency_key="one")
    assert (first.status, "idempotency-replayed" in first.headers) == (200, False)
    for asked in (limited, limited_to(served, ORDERS, second)):
        answers = [asked.patch(path, body, idempotency_key="one") for _ in range(2)]
        assert [answer.status for answer in answers] == [200, 200]
        assert ["idempotency-replayed" in answer.headers for answer in answers] == [False, True]
    assert limited_to(served, second).patch(path, body, idempotency_key="one").headers["idempotency-replayed"] == "true"
    assert limited.patch(path, {"max_in_flight": 8}, idempotency_key="one").status == 422


def test_quotas_count_the_rows_of_the_whole_customer(postgres):
    with world.served(postgres, max_subscriptions_per_customer=1) as served:
        operator = served.client(served.keys["operator"])
        operator.post("/v1/endpoints", {"customer": "acme", "id": "acme-second", "url": "https://hooks.example.com/2"})
        wanted = {"endpoint": "acme-second", "event_type": "*", "tenants": ["t1"]}
        assert limited_to(served, "acme-second").post("/v1/subscriptions", wanted).status == 429


def test_a_key_whose_endpoint_is_deleted_reaches_nothing(served, acme):
    made = acme.post("/v1/endpoints", {"url": "https://hooks.example.com/"}).json["id"]
    client = limited_to(served, made)
    assert acme.delete(f"/v1/endpoints/{made}").status == 204
    assert client.get("/v1/endpoints").json["items"] == []
    assert client.get("/v1/dead-letters").json["items"] == []


def test_a_registrars_key_registers_and_reads_no_delivery(served):
    registrar = limited_to(served, scope=Scope.REGISTRAR)
    endpoint = registrar.post("/v1/endpoints", {"url": "https://hooks.example.com/"}).json["id"]
    assert registrar.post("/v1/subscriptions", {"endpoint": endpoint, "event_type": "*", "tenants": ["t1"]}).status == 201
    for path in ("/v1/dead-letters", "/v1/deliveries", "/v1/attempts", "/v1/replays", "/v1/audit-log"):
        assert registrar.get(path).status == 403
    assert registrar.delete(f"/v1/endpoints/{endpoint}").status == 204
