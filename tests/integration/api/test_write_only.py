"""A key of scope `write_only` changes what its customer has, and no answer shows what it did not send."""

import pytest

from subscriptions_db.api.contract import keys
from subscriptions_db.api.contract.principals import Scope
from subscriptions_db.api.documents import openapi
from subscriptions_db.api.server.route_table import ROUTES
from tests.integration.api import world

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def writer(served):
    return client(served)


def client(served, *endpoints):
    with served.registry() as opened:
        made = keys.create(opened, customer_id="acme", scope=Scope.WRITE_ONLY, endpoints=endpoints)
    return served.client(made.text.reveal().decode())


def test_it_registers_without_an_answer_to_read(writer, acme):
    body = {"url": "https://hooks.example.com/", "headers": {"x-key": "hidden"}}
    made = writer.post("/v1/endpoints", body, idempotency_key="first")
    path = made.headers["location"]
    assert (made.status, made.text, "etag" in made.headers) == (204, b"", False)
    assert acme.get(path).json["headers"] == {"x-key": "hidden"}
    again = writer.post("/v1/endpoints", body, idempotency_key="first")
    assert (again.status, again.text, again.headers["location"]) == (204, b"", path)
    assert again.headers["idempotency-replayed"] == "true"
    changed = writer.ask("PATCH", path, {"max_in_flight": 7}, if_match=acme.get(path).headers["etag"])
    assert (changed.status, changed.text, acme.get(path).json["max_in_flight"]) == (204, b"", 7)
    wanted = {"endpoint": path.rpartition("/")[2], "event_type": "order.*", "tenants": ["t1"]}
    subscribed = writer.post("/v1/subscriptions", wanted)
    assert subscribed.status == writer.post(f"{path}/pause").status == 204
    assert acme.get(subscribed.headers["location"]).json["event_type"] == "order.*"
    assert writer.delete(path).status == 204


def test_the_secret_of_its_endpoint_is_rotated_by_another_key(writer, acme):
    path = writer.post("/v1/endpoints", {"url": "https://hooks.example.com/"}).headers["location"]
    assert writer.post(f"{path}/rotate-secret", {}).status == 403
    bulk = writer.post("/v1/endpoints/bulk", {"action": "rotate_secret", "endpoints": [path.rpartition("/")[2]]})
    assert (bulk.status, "reads no secret" in bulk.json["detail"]) == (403, True)
    assert acme.post(f"{path}/rotate-secret", {}).json["secret"].startswith("whsec_")


@pytest.mark.parametrize("search", [{"q": "acme"}, {"metadata": "team:billing"}, {"status": "active"}, {"everything": True}])
@pytest.mark.parametrize("dry_run", [True, False])
def test_a_bulk_change_by_search_is_refused(writer, search, dry_run):
    """A search answered with the ids that match, so the key read URLs, descriptions, metadata and statuses by trying."""
    refused = writer.post("/v1/endpoints/bulk", {"action": "pause", "dry_run": dry_run} | search)
    assert (refused.status, "name the ids in endpoints" in refused.json["detail"]) == (403, True)


def test_a_dry_run_of_a_bulk_change_is_refused(writer):
    asked = {"action": "pause", "endpoints": ["acme-orders"], "dry_run": True}
    assert writer.post("/v1/endpoints/bulk", asked).status == 403


def test_a_stored_answer_of_another_scope_is_not_shown(writer, acme):
    """Regression: the key got the answer to a dry run of another key, with ids and statuses of endpoints."""
    asked = {"action": "pause", "everything": True, "dry_run": True}
    first = acme.post("/v1/endpoints/bulk", asked, idempotency_key="dry")
    assert first.json["changed"] > 0
    refused = writer.post("/v1/endpoints/bulk", asked, idempotency_key="dry")
    assert (refused.status, refused.fields) == (422, ["Idempotency-Key"])
    assert acme.post("/v1/endpoints/bulk", asked, idempotency_key="dry").json == first.json
    assert writer.post("/v1/endpoints/acme-orders/pause", idempotency_key="silent").status == 204
    assert acme.post("/v1/endpoints/acme-orders/pause", idempotency_key="silent").status == 422
    assert writer.post("/v1/endpoints/acme-orders/resume").status == 204


STORED = {"url": "https://hooks.example.com/a", "auth": {"kind": "bearer", "secret": "hunter2"}, "headers": {"x-key": "hidden"}}
ELSEWHERE = {"url": "https://elsewhere.example.com/"}


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        (ELSEWHERE, ["auth", "headers"]),
        ({"url": "https://hooks.example.com:8443/a"}, ["auth", "headers"]),
        (ELSEWHERE | {"headers": {}}, ["auth"]),
        (ELSEWHERE | {"auth": {"kind": "none"}}, ["headers"]),
        (ELSEWHERE | {"auth": {"kind": "bearer"}, "headers": {}}, ["auth"]),
        ({"url": "https://hooks.example.com\\@elsewhere.example.com/"}, ["auth", "headers"]),
        ({"url": "https://[[]@"}, ["auth", "headers"]),  # yarl raises IndexError, which was a 500
    ],
)
def test_stored_credentials_do_not_move_to_another_server(writer, acme, change, fields):
    """A new URL kept the credentials, so the next delivery brought them to a server of the key's choice."""
    path = writer.post("/v1/endpoints", STORED).headers["location"]
    refused = writer.patch(path, change)
    assert (refused.status, refused.fields) == (422, fields)
    assert acme.get(path).json["url"] == STORED["url"]


def test_a_url_moves_on_the_same_server_or_with_credentials(writer, acme):
    path = writer.post("/v1/endpoints", STORED).headers["location"]
    assert writer.patch(path, {"url": "https://hooks.example.com/b"}).status == 204
    anew = {"auth": {"kind": "bearer", "secret": "new"}, "headers": {"x-key": "new"}}
    assert writer.patch(path, ELSEWHERE | anew).status == 204
    assert acme.patch(path, {"url": "https://third.example.com/"}).status == 200, "another scope keeps credentials"
    plain = writer.post("/v1/endpoints", {"url": "https://hooks.example.com/"}).headers["location"]
    assert writer.patch(plain, ELSEWHERE).status == 204, "nothing is stored"


def test_an_answer_about_the_progress_of_a_request_is_shown(writer):
    paused = writer.post("/v1/endpoints/bulk", {"action": "pause", "endpoints": ["acme-orders", "nobodys"]})
    assert [item["result"] for item in paused.json["items"]] == ["changed", "not_found"]
    assert writer.post("/v1/endpoints/acme-orders/resume").status == 204
    assert writer.post("/v1/dead-letters/redrive", {"everything": True}).json["count"] == 1


def test_it_asks_for_a_replay_and_cancels_it_by_its_location(writer, acme):
    endpoint = writer.post("/v1/endpoints", {"url": "https://hooks.example.com/"}).headers["location"]
    asked = writer.post(f"{endpoint}/replays", {"since": "2026-05-10T00:00:00Z", "until": "2026-05-11T00:00:00Z"})
    assert (asked.status, asked.text) == (204, b"")
    assert writer.post(f"{asked.headers['location']}/cancel").status == 204
    assert acme.get(asked.headers["location"]).json["state"] == "cancelled"


def test_every_operation_that_reads_is_refused(writer):
    reading = [route for route in ROUTES if route.method == "GET" and not route.is_open]
    refused = [writer.get(route.path.format_map(dict.fromkeys(openapi._PATH_PARAMETERS, world.LETTER))) for route in reading]
    assert len(refused) > 20
    assert {answer.status for answer in refused} == {403}


def test_limited_to_an_endpoint_it_changes_no_other(served):
    limited = client(served, "acme-orders")
    assert limited.ask("PATCH", "/v1/endpoints/acme-orders", {"max_in_flight": 3}).status == 204
    assert limited.ask("PATCH", "/v1/endpoints/other-orders", {"max_in_flight": 3}).status == 404
    assert limited.post("/v1/endpoints", {"url": "https://hooks.example.com/"}).status == 403
