"""Answers follow HTTP: HEAD, Allow, Location, a request id, and no versions of the server."""

import contextlib
import dataclasses
import re
import socket

import pytest

from subscriptions_db.api.contract import problem_types
from subscriptions_db.api.server.route_table import ROUTES

pytestmark = pytest.mark.integration

PATHS = [
    "/v1/problems",
    "/v1/problems/invalid",
    "/v1/endpoints",
    "/v1/endpoints/acme-orders",
    "/v1/event-types",
    "/v1/openapi.json",
    "/healthz",
    "/readyz",
]


@pytest.mark.parametrize("path", PATHS)
def test_head_answers_as_get_without_a_body(acme, path):
    got, head = acme.get(path), acme.ask("HEAD", path)
    assert (head.status, head.text) == (got.status, b"")
    assert {name: head.headers[name] for name in ("content-type", "content-length")} == {
        name: got.headers[name] for name in ("content-type", "content-length")
    }


def test_head_is_refused_where_get_changes_something(acme):
    """A link preview that asks with HEAD would permit deliveries."""
    answer = acme.ask("HEAD", "/v1/endpoints/acme-orders/permit/token")
    assert (answer.status, answer.headers["allow"]) == (405, "GET, POST")


@pytest.mark.parametrize("path", sorted({route.path for route in ROUTES}))
def test_a_405_names_the_methods_of_the_path(acme, path):
    methods = {route.method for route in ROUTES if route.path == path}
    head = (
        {"HEAD"} if any(route.method == "GET" and not route.is_validation for route in ROUTES if route.path == path) else set()
    )
    answer = acme.ask("TRACE", re.sub(r"\{\w+\}", "x1", path))
    assert (answer.status, answer.headers["allow"]) == (405, ", ".join(sorted(methods | head)))


@pytest.mark.parametrize("path", ["/v1/problems", "/v1/problems/invalid", "/v1/openapi.json", "/healthz", "/readyz"])
def test_a_405_names_get_and_head_for_pages_and_probes(acme, path):
    answer = acme.post(path, {})
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")


def test_an_answer_to_a_created_resource_names_its_location(acme, operator):
    made = acme.post("/v1/endpoints", {"url": "https://hooks.acme.example.com/new"}, idempotency_key="k1")
    assert made.headers["location"] == f"/v1/endpoints/{made.json['id']}"
    assert acme.get(made.headers["location"]).json["id"] == made.json["id"]
    repeated = acme.post("/v1/endpoints", {"url": "https://hooks.acme.example.com/new"}, idempotency_key="k1")
    assert repeated.headers["location"] == made.headers["location"]
    subscription = {"endpoint": made.json["id"], "event_type": "order.*", "tenants": ["t1"]}
    subscribed = acme.post("/v1/subscriptions", subscription)
    assert acme.get(subscribed.headers["location"]).json["id"] == subscribed.json["id"]
    consumer = operator.post("/v1/dead-letter-consumers?customer=acme", {"name": "located"})
    assert consumer.headers["location"] == "/v1/dead-letter-consumers/located?customer=acme"
    assert operator.get(consumer.headers["location"]).json["name"] == "located"
    replay = {"since": "2026-01-01T00:00:00Z", "until": "2026-01-02T00:00:00Z"}
    asked = acme.post(f"/v1/endpoints/{made.json['id']}/replays", replay)
    assert acme.get(asked.headers["location"]).json["id"] == asked.json["id"]


@pytest.mark.parametrize("path", ["/v1/customers/located", "/v1/tenants/located", "/v1/event-types/located"])
def test_a_put_answers_201_if_it_creates_and_200_if_it_replaces(operator, path):
    """Regression: the answer was 200 in both cases (RFC 9110, 9.3.4)."""
    made, again, replaced = (operator.put(path, {}, idempotency_key=key) for key in (f"{path}-1", f"{path}-1", f"{path}-2"))
    assert [answer.status for answer in (made, again, replaced)] == [201, 201, 200]
    assert made.headers["location"] == again.headers["location"] == path
    assert operator.get(path).json == made.json
    assert "location" not in replaced.headers


@pytest.mark.parametrize("path", ["/v1/endpoints", "/v1/endpoints/nobody", "/nowhere", "/healthz"])
def test_every_answer_has_a_request_id_and_no_server_version(acme, path):
    without_id = dataclasses.replace(acme, request_id=None)
    first, second = without_id.get(path), without_id.get(path)
    assert "server" not in first.headers
    assert re.fullmatch("req_[0-9a-f]{24}", first.headers["x-request-id"])
    assert first.headers["x-request-id"] != second.headers["x-request-id"]
    if first.status >= 400:
        assert first.json["request_id"] == first.headers["x-request-id"]


def test_an_admitted_request_gets_its_rate_limit_in_headers(served, acme):
    for answer in (acme.get("/v1/endpoints"), acme.get("/v1/endpoints/nobody"), acme.delete("/v1/customers/acme")):
        limit, remaining, reset = (int(answer.headers[f"ratelimit-{name}"]) for name in ("limit", "remaining", "reset"))
        assert (limit, reset <= 1) == (20_000, True)
        assert 0 < remaining < limit or (remaining, reset) == (limit, 0)
    for answer in (served.client(None).get("/v1/endpoints"), acme.get("/healthz"), acme.get("/nowhere")):
        assert not [name for name in answer.headers if name.startswith("ratelimit")]


def test_the_type_of_a_problem_leads_to_a_page_of_its_own(served, acme):
    anyone = served.client(None)
    for answer in (
        anyone.get("/v1/endpoints"), acme.get("/nowhere"), acme.put("/v1/customers/acme", {}),
        acme.ask("TRACE", "/v1/endpoints"), acme.post("/v1/endpoints", {}),
        acme.ask("POST", "/v1/endpoints", raw=b"x", content_type="a/b"),
    ):  # fmt: skip
        assert answer.json["type"] == f"/v1/problems/{answer.json['code']}"
        page = anyone.get(answer.json["type"])
        assert (page.status, page.headers["content-type"]) == (200, "text/html")
        assert f"<h1>{answer.json['code']}</h1>".encode() in page.text


def test_the_list_of_problems_leads_to_each_page(served):
    """Earlier types were anchors of the list, such as `/v1/problems#invalid`, so the list keeps these anchors."""
    anyone = served.client(None)
    listed = anyone.get("/v1/problems").text.decode()
    for code in problem_types.TYPES:
        assert f'<h2 id="{code}"><a href="/v1/problems/{code}">' in listed
        assert anyone.get(f"/v1/problems/{code}").status == 200
    assert anyone.get("/v1/problems/other").json["code"] == "not_found"


@pytest.mark.parametrize("request_line", [b"GARBAGE", b"GET / HTTP/9.9", b"GET / HTTP/1.1\r\nx: " + b"a" * 20_000])
def test_an_answer_to_no_valid_http_names_no_version(served, request_line):
    """Regression: aiohttp answers these without the application, and named its version and Python's."""
    with contextlib.closing(socket.create_connection(("127.0.0.1", served.port), timeout=30)) as client:
        client.sendall(request_line + b"\r\n\r\n")
        head = client.makefile("rb").read().partition(b"\r\n\r\n")[0].lower()
    assert head.startswith(b"http/1.0 400")
    assert b"server: fanout" in head
    assert b"aiohttp" not in head


def test_an_unknown_expectation_is_refused_with_an_id(acme):
    """Regression: the answer failed with a traceback, because aiohttp gives it before the request has an id."""
    answer = dataclasses.replace(acme, request_id=None).get("/v1/endpoints", expect="other")
    assert (answer.status, answer.headers["x-request-id"][:4]) == (417, "req_")


def test_a_request_id_of_the_client_is_kept_if_it_is_plain(acme):
    assert acme.get("/v1/endpoints", x_request_id="proxy-7").headers["x-request-id"] == "proxy-7"
    assert acme.get("/v1/endpoints", x_request_id="a b").headers["x-request-id"].startswith("req_")
