"""Resources have an ETag, by which a client reads only what has changed, and overwrites nothing that it has not seen."""

import concurrent.futures
import re

import pytest

from subscriptions_db.api.contract.principals import Scope
from subscriptions_db.api.server.route_table import ROUTES

pytestmark = pytest.mark.integration

NEW = {"url": "https://hooks.acme.example.com/new"}
SINGLE = ("/v1/endpoints/acme-orders", "/v1/subscriptions/acme-all", "/v1/customers/acme", "/v1/tenants/t1",
          "/v1/event-types/order.created")  # fmt: skip
PUT = (("/v1/customers/conditional", {"name": "a"}, {"name": "b"}), ("/v1/tenants/conditional", {"name": "a"}, {"name": "b"}),
       ("/v1/event-types/conditional", {"description": "a"}, {"description": "b"}))  # fmt: skip


@pytest.mark.parametrize("path", SINGLE)
def test_an_unchanged_resource_is_not_sent_again(operator, path):
    first = operator.get(path)
    for header in (first.headers["etag"], f'"x", W/{first.headers["etag"]}', "*"):
        answer = operator.get(path, if_none_match=header)
        assert (answer.status, answer.text, answer.headers["etag"]) == (304, b"", first.headers["etag"])
    assert operator.ask("HEAD", path, if_none_match=first.headers["etag"]).status == 304
    assert operator.get(path, if_none_match='"x"').json == first.json


def test_every_change_of_an_endpoint_changes_its_etag(acme):
    made = acme.post("/v1/endpoints", NEW, idempotency_key="etag")
    path, tags = f"/v1/endpoints/{made.json['id']}", [made.headers["etag"]]
    for method, to, body in (
        ("PATCH", "", {"max_in_flight": 3}),
        ("PATCH", "", {"auth": {"kind": "bearer", "secret": "hunter3"}}),
        ("PATCH", "", {"auth": {"kind": "bearer", "secret": "hunter4"}}),
        ("POST", "/pause", None),
        ("POST", "/rotate-secret", {}),
        ("PATCH", "", {"description": "x"}),
    ):
        answer = acme.ask(method, path + to, body)
        tags.append(acme.get(path).headers["etag"])
        assert answer.headers.get("etag", tags[-1]) == tags[-1]
    assert len(set(tags)) == len(tags)
    assert acme.post("/v1/endpoints", NEW, idempotency_key="etag").headers["etag"] == tags[0], "of the repeated answer"


def test_a_change_of_what_has_changed_since_is_refused(acme):
    subscribed = {"endpoint": "acme-orders", "event_type": "order.*", "tenants": ["t1"]}
    for path, body, change in (
        ("/v1/endpoints", NEW, {"max_in_flight": 3}),
        ("/v1/subscriptions", subscribed, {"tenants": ["t2"]}),
    ):
        made = acme.post(path, body)
        resource = f"{path}/{made.json['id']}"
        changed = acme.patch(resource, change, if_match=made.headers["etag"])
        assert changed.status == 200
        for refused in (
            acme.patch(resource, {"description": "lost"}, if_match=made.headers["etag"]),
            acme.delete(resource, if_match=made.headers["etag"]),
        ):
            assert (refused.status, refused.json["code"]) == (412, "precondition_failed")
        assert acme.get(resource).headers["etag"] == changed.headers["etag"]
        for malformed in ("unquoted", ""):
            assert acme.patch(resource, change, if_match=malformed).fields == ["If-Match"]
        assert acme.delete(resource, if_none_match="unquoted").fields == ["If-None-Match"]
        assert acme.delete(resource, if_match=changed.headers["etag"]).status == 204
        assert acme.patch(resource, change, if_match=changed.headers["etag"]).status == 404


@pytest.mark.parametrize(("path", "first", "second"), PUT)
def test_a_put_creates_or_replaces_as_its_conditions_say(operator, path, first, second):
    assert operator.put(path, first, if_match="*").status == 412
    assert operator.get(path).status == 404
    assert operator.put(path, first, if_none_match="*").status == 201
    assert operator.put(path, second, if_none_match="*").status == 412
    etag = operator.get(path).headers["etag"]
    assert operator.put(path, second, if_match=etag).status == 200
    assert operator.put(path, first, if_match=etag).status == 412
    assert operator.delete(path, if_match=etag).status == 412
    assert operator.delete(path, if_match="*").status == 204


def test_one_of_many_changes_of_one_etag_succeeds(acme):
    made = acme.post("/v1/endpoints", NEW)
    path, etag = f"/v1/endpoints/{made.json['id']}", made.headers["etag"]
    with concurrent.futures.ThreadPoolExecutor(4) as at_once:
        answers = list(at_once.map(lambda n: acme.patch(path, {"max_in_flight": n + 1}, if_match=etag), range(8)))
    assert sorted(answer.status for answer in answers) == [200, *[412] * 7]
    [changed] = [answer for answer in answers if answer.status == 200]
    assert acme.get(path).json == changed.json


def test_a_repeat_gets_its_first_answer_though_the_etag_has_changed(acme):
    made = acme.post("/v1/endpoints", NEW)
    path, asked = f"/v1/endpoints/{made.json['id']}", {"if_match": made.headers["etag"], "idempotency_key": "conditional"}
    first, again = (acme.patch(path, {"max_in_flight": 5}, **asked) for _ in range(2))
    assert (first.status, again.status, again.json) == (200, 200, first.json)
    assert again.headers["idempotency-replayed"] == "true"


def test_a_repeat_with_other_conditions_is_another_request(acme):
    """Regression: such a repeat got the stored answer, although its own condition does not hold."""
    made = acme.post("/v1/endpoints", NEW)
    path, asked = f"/v1/endpoints/{made.json['id']}", {"idempotency_key": "other-conditions"}
    assert acme.patch(path, {"max_in_flight": 5}, if_match=made.headers["etag"], **asked).status == 200
    for other in ({"if_match": '"another"'}, {"if_none_match": '"another"'}, {}):
        refused = acme.patch(path, {"max_in_flight": 5}, **asked, **other)
        assert (refused.status, refused.fields) == (422, ["Idempotency-Key"])


@pytest.mark.parametrize("header", ["if-match", "if-none-match"])
def test_a_condition_of_bytes_that_are_not_utf_8_is_refused(acme, header):
    """Regression: with an `Idempotency-Key`, such a request was answered 500."""
    refused = acme.patch("/v1/endpoints/acme-orders", {"max_in_flight": 5}, idempotency_key="bytes", **{header: "no tag \xe1"})
    assert (refused.status, [field.lower() for field in refused.fields]) == (422, [header])


KEYS = {Scope.OPERATOR: "operator", Scope.PUBLISHER: "publisher"}


@pytest.mark.parametrize("header", ["If-Match", "If-None-Match"])
@pytest.mark.parametrize("route", [route for route in ROUTES if route.method != "GET"], ids=lambda route: route.name)
def test_no_change_ignores_a_condition(served, route, header):
    """Regression: 23 operations, such as pausing an endpoint, ignored `If-Match`, and made the change."""
    path = re.sub(r"\{\w+\}", "nobody", route.path)
    name = next((name for scope, name in KEYS.items() if scope in route.scopes), None)
    body = {"reason": "moving"} if route.name == "disableEndpoint" else None
    answer = served.client(served.keys.get(name)).ask(route.method, path, body, **{header: "unquoted"})
    if route.is_open:
        assert answer.status == 404  # its token is not known
    elif route.may_answer_412 and route.method != "PUT":
        assert answer.status == 404
    else:
        assert (answer.status, answer.fields) == (422, [header])


@pytest.mark.parametrize(
    "actions",
    [
        ("endpoints/acme-orders", "pause", "resume"),
        ("endpoints/acme-orders", "disable", "enable"),
        ("endpoints/acme-orders", "rotate-secret"),
        ("subscriptions/acme-all", "pause", "resume"),
    ],
    ids=" ".join,
)
def test_an_action_is_refused_if_its_resource_has_changed(operator, actions):
    """Regression: pause, resume, disable, enable and rotate-secret refused every condition with 422."""
    resource, *steps = actions
    path = f"/v1/{resource}"
    for action in steps:
        seen = operator.get(path).headers["etag"]
        assert operator.patch(path, {"description": f"changed before {action}"}).status == 200
        now = operator.get(path).headers["etag"]
        body = {"reason": "moving"} if action == "disable" else {}
        refused = operator.post(f"{path}/{action}", body, if_match=seen)
        assert (refused.status, refused.json["code"]) == (412, "precondition_failed")
        assert operator.post(f"{path}/{action}", body, if_none_match="*").status == 412
        assert operator.get(path).headers["etag"] == now
        made = operator.post(f"{path}/{action}", body, if_match=now)
        assert made.status == 200, made.text
        after = operator.get(path).headers["etag"]
        assert after != now
        assert made.headers.get("etag") == (None if action == "rotate-secret" else after)


def test_one_of_many_rotations_of_one_etag_succeeds(acme):
    made = acme.post("/v1/endpoints", NEW)
    path, etag = f"/v1/endpoints/{made.json['id']}", made.headers["etag"]
    with concurrent.futures.ThreadPoolExecutor(4) as at_once:
        answers = list(at_once.map(lambda _: acme.post(f"{path}/rotate-secret", {}, if_match=etag), range(4)))
    assert sorted(answer.status for answer in answers) == [200, 412, 412, 412]


def test_a_consumer_has_no_etag_and_takes_no_condition(acme):
    """Its counts change with every poll, so an ETag would never be the one that a client has seen."""
    answer = acme.get("/v1/dead-letter-consumers/billing")
    assert "etag" not in answer.headers
    assert acme.patch("/v1/dead-letter-consumers/billing", {"max_receives": 3}, if_match="*").fields == ["If-Match"]


def test_each_resource_that_can_be_changed_has_conditions():
    """A new resource of the registry must have conditions too. Consumers of dead letters have none."""
    changed = {route.path for route in ROUTES if route.is_change and route.method in {"PUT", "PATCH", "DELETE"}}
    conditional = {route.path for route in ROUTES if route.may_answer_412 and route.method != "POST"}
    assert {path.split("/")[2] for path in changed - conditional} <= {"dead-letter-consumers"}
    assert conditional == {route.path for route in ROUTES if route.may_answer_304 and not route.is_conditional}


def test_each_change_of_the_status_or_the_secret_of_a_resource_has_conditions():
    """A new action on a resource must evaluate conditions, or be added here with its reason.

    1. `validate`, `test`, `recover` and `replays` do not change the fields of the endpoint that a client decides on.
    2. `bulk` and `bulk/create` name many endpoints, each with an ETag of its own.
    """
    of_registry = ("/v1/endpoints/", "/v1/subscriptions/")
    actions = [route for route in ROUTES if route.method == "POST" and route.is_change and route.path.startswith(of_registry)]
    unconditional = {route.name for route in actions if not route.may_answer_412}
    assert unconditional == {"recoverEndpoint", "createReplay", "changeEndpoints", "createEndpoints"}
