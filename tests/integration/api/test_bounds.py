"""The API bounds sizes, times, rates and numbers, and refuses with a problem document that says so."""

import contextlib
import json
import socket
import threading
import time

import pytest

from subscriptions_db import answer_size
from subscriptions_db.api.contract import keys, problems
from subscriptions_db.api.contract.principals import Scope
from subscriptions_db.api.server import answer_sender, handler
from tests.integration.api import test_validation, world

pytestmark = pytest.mark.integration

NEW = {"url": "https://hooks.acme.example.com/"}
LARGE_ROWS = """
insert into event_types (event_type, description, examples)
select 'large.' || n, '', json_build_array(repeat('x', 60000)) from generate_series(1, 50) n;
insert into customers (customer_id) select 'large' || n from generate_series(1, 50) n;
insert into customer_tenants (customer_id, tenant_id)
select 'large' || n, 't' || t || repeat('x', 50) from generate_series(1, 50) n, generate_series(1, 1000) t;
insert into audit_log (key_id, action, entity, entity_id, after)
select 'somebody', 'create', 'thing', 'large' || n, jsonb_build_object('x', repeat('x', 60000)) from generate_series(1, 50) n;
"""
END_IDLE = """
select pg_terminate_backend(pid, 10000) as has_ended from pg_stat_activity
where datname = current_database() and application_name = 'fanout api'
"""


@pytest.fixture(scope="module")
def served(postgres):
    with world.served(postgres, max_body_bytes=4096, request_timeout_s=1) as made:
        yield made


def test_a_repeated_query_parameter_is_refused(served):
    client = served.client(served.keys["operator"])
    answer = client.get("/v1/dead-letters?customer=acme&limit=1&customer=other")
    assert (answer.status, answer.fields) == (422, ["customer"])
    assert client.get("/v1/dead-letters?customer=acme&limit=1").status == 200


@pytest.fixture(scope="module")
def large_rows(served):
    with served.registry() as opened:
        opened.execute(LARGE_ROWS)
    return 50


@pytest.mark.parametrize("path", ["/v1/event-types", "/v1/customers", "/v1/audit-log"])
def test_a_list_of_large_rows_is_paged_by_bytes(served, large_rows, path):
    client, found, cursor = served.client(served.keys["operator"]), [], ""
    while cursor is not None:
        page = client.get(f"{path}?limit=200&cursor={cursor}")
        assert page.status == 200, page.text
        assert len(page.text) < 1.1 * answer_size.MAX_BYTES
        found += [item.get("id") or item["entity_id"] for item in page.json["items"]]
        cursor = page.json["next_cursor"]
    assert sum(row.startswith("large") for row in found) == large_rows
    assert len(set(found)) == len(found)


def cut_off_after_s(served, first, drip=b""):
    """Return the seconds for which the server keeps a connection on which no more than this arrives."""
    with contextlib.closing(socket.create_connection(("127.0.0.1", served.port))) as client:
        client.settimeout(0.1)
        began = time.monotonic()
        client.sendall(first)
        while time.monotonic() < began + 20:
            try:
                if client.recv(65_536) == b"":
                    break
                continue
            except TimeoutError:
                pass
            except ConnectionError:
                break
            with contextlib.suppress(ConnectionError):
                client.sendall(drip)
        return time.monotonic() - began


@pytest.mark.parametrize(
    ("first", "drip"),
    [
        pytest.param(b"", b"", id="nothing at all"),
        pytest.param(b"GET /healthz HTTP/1.1\r\n", b"X", id="a head of a byte at a time"),
        pytest.param(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\nGET ", b"X", id="the same after a request"),
    ],
)
def test_a_slowly_sent_request_is_cut_off(served, first, drip):
    assert cut_off_after_s(served, first, drip) < 5


def test_a_client_that_does_not_read_its_answer_is_cut_off(served, monkeypatch):
    """Regression: the log line about it named neither the request nor the next step."""
    is_cut_off, answers, logged = threading.Event(), 500, {}

    def log(event, extra):
        if event == "api.cut_off":
            logged.update(extra)
            is_cut_off.set()

    monkeypatch.setattr(answer_sender.log, "info", log)
    request = b"GET /v1/openapi.json HTTP/1.1\r\nhost: x\r\nx-request-id: unread\r\n\r\n"
    whole = answers * len(served.client(None).get("/v1/openapi.json").text)
    with world.beside(served, sending_s=0.2) as strict:
        with contextlib.closing(socket.create_connection(("127.0.0.1", strict.port))) as client:
            client.sendall(request * answers)
            assert is_cut_off.wait(20)
            assert "Nothing needs to be done" in logged.pop("advice")
            assert logged == {"method": "GET", "route": "/v1/openapi.json", "request_id": "unread", "after_s": 0.2}
            with contextlib.suppress(ConnectionError):
                while part := client.recv(1024 * 1024):
                    whole -= len(part)
        assert whole > 0
        assert strict.client(None).get("/healthz").status == 200


def test_a_body_sent_byte_by_byte_is_cut_off(served):
    head = f"POST /v1/endpoints HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {served.keys['acme']}\r\n"
    head += "content-type: application/json\r\ncontent-length: 4000\r\n\r\n"
    assert cut_off_after_s(served, head.encode(), b"x") < 5


@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_body_is_refused(served, acme, chunked):
    document = json.dumps(NEW | {"headers": {"X-A": "x" * 5000}}).encode()
    if not chunked:
        assert acme.ask("POST", "/v1/endpoints", raw=document).status == 413
        return
    head = f"POST /v1/endpoints HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {served.keys['acme']}\r\n"
    head += "content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    with contextlib.closing(socket.create_connection(("127.0.0.1", served.port))) as client:
        client.sendall(head.encode() + b"%x\r\n%s\r\n0\r\n\r\n" % (len(document), document))
        assert client.recv(65_536).startswith(b"HTTP/1.1 413 ")


def test_a_filter_is_refused_by_body_size_or_by_filter_rules(postgres):
    with world.served(postgres) as served:
        acme = served.client(served.keys["acme"])
        wanted = {"endpoint": "acme-orders", "event_type": "*", "tenants": ["t1"]}
        values = ["x" * 1000] * 1100
        assert acme.post("/v1/subscriptions", wanted | {"filter": {"data": {"a": values}}}).status == 413
        answer = acme.post("/v1/subscriptions", wanted | {"filter": {"data": {"a": values[:900]}}})
        assert (answer.status, answer.fields) == (422, ["filter"])


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"7", b"{", b'{"url": NaN}', b"\xff", b"[" * 4000, b'{"a":' * 500, b'{"url": "\\ud800"}']
)
def test_a_body_that_is_no_json_object_is_refused(acme, raw):
    answer = acme.ask("POST", "/v1/endpoints", raw=raw)
    assert answer.status == 422
    assert answer.json["code"] == "invalid"


def test_another_content_type_is_refused(acme):
    assert acme.ask("POST", "/v1/endpoints", raw=b"a=b", content_type="application/x-www-form-urlencoded").status == 415


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/v1/nothing", 404), ("GET", "/", 404), ("TRACE", "/v1/endpoints", 405)]
)
def test_a_missing_path_or_method_gets_a_problem_document(acme, method, path, status):
    answer = acme.ask(method, path)
    assert answer.status == status
    assert answer.headers["content-type"].startswith("application/problem+json")
    assert answer.json["status"] == status


def test_every_answer_forbids_caching(acme):
    for path in ("/v1/endpoints", "/v1/nothing", "/v1/openapi.json"):
        assert acme.get(path).headers["cache-control"] == "no-store"


def test_the_document_is_served_without_a_key(served):
    assert served.client(None).get("/v1/openapi.json").json["openapi"] == "3.1.0"


def test_requests_above_the_rate_get_429_with_retry_after(postgres):
    with world.served(postgres, max_requests_per_s=1) as served:
        acme = served.client(served.keys["acme"])
        answers = [acme.get("/v1/endpoints") for _ in range(3)]
        assert [answer.status for answer in answers] == [200, 429, 429]
        assert answers[1].headers["retry-after"] == "1"
        assert served.client(served.keys["other"]).get("/v1/endpoints").status == 200


def test_a_request_with_a_large_body_counts_as_many(postgres):
    with world.served(postgres, max_requests_per_s=20) as served:
        acme = served.client(served.keys["acme"])
        large = acme.patch("/v1/endpoints/acme-orders", {"description": "x" * 200_000})
        assert large.status == 422  # a description has a bound, and the body was read
        refused = acme.get("/v1/endpoints")
        assert refused.status == 429
        assert "4096 bytes of a body count as one" in refused.json["detail"]


def test_a_customer_has_quotas_and_the_operator_has_none(postgres):
    with world.served(postgres, max_endpoints_per_customer=2, max_subscriptions_per_customer=1) as served:
        acme, operator = served.client(served.keys["acme"]), served.client(served.keys["operator"])
        assert [acme.post("/v1/endpoints", NEW).status for _ in range(3)] == [201, 429, 429]
        wanted = {"endpoint": "acme-orders", "event_type": "*", "tenants": ["t1"]}
        assert acme.post("/v1/subscriptions", wanted).status == 429
        assert served.client(served.keys["other"]).post("/v1/endpoints", NEW).status == 201
        assert operator.post("/v1/endpoints", NEW | {"customer": "acme"}).status == 201


def test_the_operator_gives_a_customer_its_own_quotas(served, acme, operator):
    named = {"name": "Acme", "quotas": {"endpoints": 0, "subscriptions": 1, "dead_letters": 5}}
    assert operator.put("/v1/customers/acme", named).json["quotas"] == named["quotas"]
    assert acme.get("/v1/customers/acme").json["quotas"] == named["quotas"]
    refused = acme.post("/v1/endpoints", NEW)
    assert (refused.status, refused.json["code"]) == (429, "quota")
    assert "retry-after" not in refused.headers  # waiting does not help
    assert "endpoints, and your quota is 0" in refused.json["detail"]
    assert acme.post("/v1/subscriptions", {"endpoint": "acme-orders", "event_type": "*", "tenants": ["t1"]}).status == 429
    assert operator.put("/v1/customers/acme", {"name": "Acme"}).json["quotas"] == named["quotas"]  # omitted: unchanged
    assert operator.put("/v1/customers/acme", {"quotas": {"endpoints": -1}}).fields == ["quotas.endpoints"]
    assert operator.put("/v1/customers/acme", {"quotas": {"dead_letters": 0}}).fields == ["quotas.dead_letters"]
    assert operator.put("/v1/customers/acme", {"name": "Acme", "quotas": {}}).json["quotas"] == dict.fromkeys(named["quotas"])
    assert acme.post("/v1/endpoints", NEW).status == 201
    entries = [entry for entry in served.audit("acme") if entry["action"] == "set_quotas"]
    assert [entry["after"] for entry in entries] == [named["quotas"], dict.fromkeys(named["quotas"])]


def test_the_operator_gives_a_tenant_its_own_quota(served, operator):
    path, own = "/v1/tenants/t1", {"events_per_day": 5}
    assert operator.get(path).json["quotas"] == {"events_per_day": None}
    before = operator.get(path).headers["etag"]
    assert operator.put(path, {"quotas": own}).json["quotas"] == own
    assert operator.put(path, {"name": "First"}).json["quotas"] == own  # omitted: unchanged
    assert [item["quotas"]["events_per_day"] for item in operator.get("/v1/tenants").json["items"]] == [5, None]
    assert operator.get(path).headers["etag"] != before
    assert operator.put(path, {"quotas": {"events_per_day": 0}}).fields == ["quotas.events_per_day"]
    assert operator.put(path, {"quotas": {}}).json["quotas"] == {"events_per_day": None}
    entries = [entry for entry in served.audit("t1") if entry["action"] == "set_quotas"]
    assert [entry["after"] for entry in entries] == [own, {"events_per_day": None}]


def test_concurrent_requests_do_not_exceed_a_quota(operator, acme):
    held = len(acme.get("/v1/endpoints").json["items"])
    operator.put("/v1/customers/acme", {"quotas": {"endpoints": held + 2}})
    waiting = [world.in_background(lambda: acme.post("/v1/endpoints", NEW).status) for _ in range(8)]
    assert sorted(result() for result in waiting) == [201] * 2 + [429] * 6
    operator.put("/v1/customers/acme", {"name": "Acme", "quotas": {}})


def test_a_subscription_names_a_bounded_number_of_tenants(postgres):
    with world.served(postgres) as served:
        operator = served.client(served.keys["operator"])
        wanted = {"endpoint": "acme-orders", "event_type": "*", "tenants": [f"t{number}" for number in range(10_001)]}
        assert operator.post("/v1/subscriptions", wanted).fields == ["tenants"]
        pairs = wanted | {"tenants": [], "sub_tenants": {"t1": list(range(10_001))}}
        assert operator.post("/v1/subscriptions", pairs).fields == ["sub_tenants"]


def test_all_subscriptions_of_a_customer_name_a_bounded_number_of_tenants(postgres):
    """Regression: 10,000 subscriptions of one customer could name 400 million, which every reader of the registry holds."""
    wanted = {"endpoint": "acme-orders", "event_type": "order.*", "tenants": ["t1"]}
    with world.served(postgres, max_scopes_per_customer=4) as served:
        acme, other, operator = (served.client(served.keys[name]) for name in ("acme", "other", "operator"))
        with served.registry() as opened:
            key = keys.create(opened, customer_id="acme", scope=Scope.REGISTRAR, endpoints=["acme-orders"])
        limited = served.client(key.text.reveal().decode())
        path = f"/v1/subscriptions/{acme.post('/v1/subscriptions', wanted).json['id']}"  # beside that of `acme-all`: two
        for client, change in ((acme, {"except_tenants": ["t2", "t3", "t4"]}), (limited, {"sub_tenants": {"t2": [1, 2, 3]}})):
            for refused in (client.post("/v1/subscriptions", wanted | change), client.patch(path, change)):
                assert (refused.status, refused.json["code"]) == (429, "quota")
                assert "more than 4 tenants and sub-tenants" in refused.json["detail"]
        assert acme.patch(path, {"except_tenants": ["t3"], "sub_tenants": {"t2": [100]}}).status == 200  # four
        assert acme.post("/v1/subscriptions", wanted).status == 429
        assert acme.patch(path, {"except_tenants": ["t4"]}).status == 200  # no more than before
        assert other.post("/v1/subscriptions", wanted | {"endpoint": "other-orders"}).status == 201
        assert operator.post("/v1/subscriptions", wanted).status == 201
        assert acme.patch(path, {"except_tenants": []}).status == 200  # five, and fewer than before


def test_a_customer_that_blocks_its_threads_does_not_block_others(postgres, monkeypatch):
    """Regression: four slow requests of one customer occupied all threads, and each other request waited for them."""
    may_end, begun, answer = threading.Event(), threading.Event(), handler.RequestHandler.answer

    def blocking(self, route, request):
        if request.principal.customer_id == "acme":
            begun.set()
            assert may_end.wait(20)
        return answer(self, route, request)

    with world.served(postgres, max_connections=2, request_timeout_s=5) as served:
        acme, other = served.client(served.keys["acme"]), served.client(served.keys["other"])
        assert {client.get("/v1/endpoints").status for client in (acme, other)} == {200}  # from now on, the keys are cached
        monkeypatch.setattr(handler.RequestHandler, "answer", blocking)
        waiting = [world.in_background(lambda: acme.get("/v1/endpoints").status) for _ in range(4)]
        assert begun.wait(20)
        assert [other.get("/v1/endpoints").status for _ in range(8)] == [200] * 8
        may_end.set()
        assert [result() for result in waiting] == [200] * 4


def test_an_internal_error_reveals_nothing(served, acme, monkeypatch):
    monkeypatch.setattr("subscriptions_db.api.contract.crud.page", lambda *_, **__: 1 / 0)
    answer = acme.get("/v1/endpoints")
    assert answer.status == 500
    assert b"division" not in answer.text
    assert answer.json["detail"] == problems.INTERNAL
    assert served.client(None).get("/healthz").status == 200


def test_the_api_answers_503_while_postgres_is_away(own_postgres, caplog):
    with world.served(own_postgres) as served:
        acme = served.client(served.keys["acme"])
        before = acme.get("/v1/endpoints").json
        assert served.client(None).get("/readyz").status == 200
        own_postgres.kill()
        for answer in (acme.get("/v1/endpoints"), acme.post("/v1/endpoints", NEW), served.client(None).get("/readyz")):
            assert answer.status == 503
            assert int(answer.headers["retry-after"]) > 0
            assert b"PGSQL" not in answer.text
        line = next(line for line in caplog.records if line.name == problems.log.name)
        assert "no connection opened within" in line.getMessage()
        assert line.request_id == acme.request_id
        assert served.client(None).get("/healthz").status == 200
        own_postgres.start()
        deadline = time.monotonic() + 20
        while acme.get("/v1/endpoints").status != 200:
            assert time.monotonic() < deadline
        assert acme.get("/v1/endpoints").json == before
        assert served.client(None).get("/readyz").status == 200


def test_the_first_request_after_an_outage_of_postgres_is_answered(own_postgres):
    """Regression: the pause between two tries to connect doubled, so the API answered 503 for as long again as the outage."""
    with world.served(own_postgres) as served:
        acme = served.client(served.keys["acme"])
        assert acme.get("/v1/endpoints").status == 200
        own_postgres.kill()
        assert {acme.get("/v1/endpoints").status for _ in range(5)} == {503}  # 10 s, as each waits for a connection
        own_postgres.start()
        assert acme.get("/v1/endpoints").status == 200


def test_a_broken_idle_connection_is_replaced_before_use(postgres):
    with world.served(postgres) as served, served.registry() as opened:
        acme = served.client(served.keys["acme"])
        before = acme.get("/v1/endpoints").json
        ended = opened.execute(END_IDLE).fetchall()
        assert ended
        assert all(row["has_ended"] for row in ended)
        answer = acme.get("/v1/endpoints")
        assert (answer.status, answer.json) == (200, before)


def test_a_receiver_has_its_own_time_beside_that_of_the_request(postgres):
    """Regression: a receiver that needed longer than `api.request_timeout_s` could never permit deliveries."""
    patient = test_validation.OPEN.model_copy(update={"attempt_timeout_s": 30})
    own_time = world.served(postgres, delivery=patient, public_url=test_validation.PUBLIC, request_timeout_s=1)
    with own_time as served, test_validation.Receiver().serving() as receiver:
        receiver.answer, receiver.before_answering = test_validation.PERMITTED, lambda _: time.sleep(1.5)
        acme = served.client(served.keys["acme"])
        asked = test_validation.make(acme, receiver)
        assert test_validation.validated(acme, asked)["state"] == "permitted"
        tested = acme.post("/v1/endpoints", {"url": receiver.url}).json
        assert acme.post(f"/v1/endpoints/{tested['id']}/test").json["is_delivered"]
