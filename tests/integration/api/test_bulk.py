"""A request changes many endpoints in one transaction, or shows what it would change."""

import concurrent.futures

import pytest

from subscriptions_db.api.registry.endpoint_bulk import MAX_ENDPOINTS
from tests.integration.api import world
from tests.support import waiting

pytestmark = pytest.mark.integration

PATH = "/v1/endpoints/bulk"


@pytest.fixture
def made(operator, request):
    """Register four endpoints of acme with metadata of this test; return their ids and the criterion that selects them."""
    name = request.node.name[:40].replace("[", "-").rstrip("]-").replace("_", "-")
    for number in range(4):
        body = {"id": f"{name}-{number}", "customer": "acme", "url": "https://hooks.example.com/", "metadata": {"test": name}}
        assert operator.post("/v1/endpoints", body).status == 201
    return [f"{name}-{number}" for number in range(4)], {"metadata": f"test:{name}"}


def results(answer):
    assert answer.status == 200, answer.text
    return {item["endpoint"]: item["result"] for item in answer.json["items"]}


def statuses(client, ids):
    return [client.get(f"/v1/endpoints/{endpoint_id}").json.get("status") for endpoint_id in ids]


def test_matching_endpoints_are_paused_and_resumed_as_their_state_allows(served, acme, made):
    ids, criterion = made
    acme.post(f"/v1/endpoints/{ids[0]}/pause")
    acme.post(f"/v1/endpoints/{ids[1]}/disable", {"reason": "moving"})
    expected = {ids[0]: "unchanged", ids[1]: "refused", ids[2]: "changed", ids[3]: "changed"}
    dry = acme.post(PATH, {"action": "pause", "dry_run": True} | criterion)
    assert (results(dry), dry.json["changed"], dry.json["dry_run"]) == (expected, 2, True)
    assert statuses(acme, ids) == ["paused", "disabled", "active", "active"]
    assert [entry["action"] for entry in served.audit(ids[2])] == ["create"]
    paused = acme.post(PATH, {"action": "pause"} | criterion)
    assert paused.json == dry.json | {"dry_run": False}
    assert "enable it first" in paused.json["items"][1]["detail"]
    assert statuses(acme, ids) == ["paused", "disabled", "paused", "paused"]
    assert [entry["action"] for entry in served.audit(ids[2])] == ["create", "update"]
    resumed = acme.post(PATH, {"action": "resume", "endpoints": [*ids[2:], "nobodys", "other-orders"]})
    assert results(resumed) == {ids[2]: "changed", ids[3]: "changed", "nobodys": "not_found", "other-orders": "not_found"}
    assert statuses(acme, ids) == ["paused", "disabled", "active", "active"]


def test_an_endpoint_without_permission_is_not_resumed(acme):
    body = {"url": "https://hooks.example.com/", "validation": "cloudevents"}
    waiting = acme.post("/v1/endpoints", body).json["id"]
    assert results(acme.post(PATH, {"action": "resume", "endpoints": [waiting]})) == {waiting: "refused"}


def test_pages_of_a_request_change_each_endpoint_once(acme, made):
    ids, criterion = made
    found, cursor = {}, None
    while True:
        page = acme.post(PATH, {"action": "pause", "limit": 3, "status": "active", "cursor": cursor} | criterion)
        found |= results(page)
        cursor = page.json["next_cursor"]
        if cursor is None:
            break
    assert found == dict.fromkeys(ids, "changed")
    first = acme.post(PATH, {"action": "resume", "endpoints": ids[::-1], "limit": 3})
    assert list(results(first)) == ids[:3]
    rest = acme.post(PATH, {"action": "resume", "endpoints": ids[::-1], "limit": 3, "cursor": first.json["next_cursor"]})
    assert (list(results(rest)), rest.json["next_cursor"]) == (ids[3:], None)


@pytest.mark.usefixtures("made")
def test_a_cursor_back_through_a_list_is_refused(acme):
    """Regression: the request began again at the first endpoint, with an action such as delete."""
    before = acme.get("/v1/endpoints").json["items"]
    listed = acme.get("/v1/endpoints?limit=1").json
    back = acme.get(f"/v1/endpoints?limit=1&cursor={listed['next_cursor']}").json["previous_cursor"]
    assert acme.post(PATH, {"action": "pause", "everything": True, "cursor": back}).fields == ["cursor"]
    assert acme.get("/v1/endpoints").json["items"] == before


def test_secrets_are_rotated_and_shown_once(served, acme, made):
    ids, criterion = made
    body = {"action": "rotate_secret", "rotation": {"overlap_s": 600}} | criterion
    dry = acme.post(PATH, body | {"dry_run": True})
    assert [item["rotated"] for item in dry.json["items"]] == [None] * 4
    first, repeated = (acme.post(PATH, body, idempotency_key="bulk-rotation") for _ in range(2))
    secrets = [item["rotated"]["secret"] for item in first.json["items"]]
    assert len(set(secrets)) == 4
    assert results(repeated) == dict.fromkeys(ids, "changed")
    assert [item["rotated"] for item in repeated.json["items"]] == [None] * 4
    assert [entry["action"] for entry in served.audit(ids[0])] == ["create", "rotate_secret"]
    with served.registry() as opened:
        kept = opened.execute("select coalesce(string_agg(answer::text, ''), '') as kept from idempotency_keys").fetchone()
        counted = opened.execute("select count(*) as n from secrets where endpoint_id = %s", [ids[0]]).fetchone()
    assert not any(secret in kept["kept"] for secret in secrets)
    assert counted["n"] == 2
    for _ in range(3):
        acme.post(f"/v1/endpoints/{ids[0]}/rotate-secret", {})
    again = acme.post(PATH, body)
    assert results(again) == dict.fromkeys(ids, "changed") | {ids[0]: "refused"}
    assert again.json["items"][0]["rotated"] is None


def test_endpoints_are_deleted_with_an_audit_entry_each(served, acme, made):
    ids, criterion = made
    acme.post("/v1/subscriptions", {"endpoint": ids[0], "event_type": "*", "tenants": ["t1"]})
    assert acme.post(PATH, {"action": "delete", "dry_run": True} | criterion).json["changed"] == 4
    assert statuses(acme, ids) == ["active"] * 4
    assert results(acme.post(PATH, {"action": "delete"} | criterion)) == dict.fromkeys(ids, "changed")
    assert statuses(acme, ids) == [404] * 4
    assert [entry["action"] for entry in served.audit(ids[1])][-1] == "delete"
    assert acme.post(PATH, {"action": "delete"} | criterion).json["items"] == []


def test_everything_is_all_endpoints_of_the_customer(other, operator):
    body = {"action": "pause", "everything": True, "dry_run": True}
    assert list(results(other.post(PATH, body))) == ["other-orders"]
    assert results(operator.post(PATH, body | {"customer": "other"})) == {"other-orders": "changed"}
    assert operator.post(PATH, body).fields == ["customer"]
    foreign = operator.post(PATH, {"action": "pause", "customer": "other", "endpoints": ["acme-orders"], "dry_run": True})
    assert results(foreign) == {"acme-orders": "not_found"}


@pytest.mark.parametrize(
    ("body", "field", "problem"),
    [
        ({"action": "pause"}, "endpoints", "is missing"),
        ({"action": "pause", "everything": True, "q": "x"}, "endpoints", "exclude each other"),
        ({"action": "pause", "endpoints": ["a"], "status": "active"}, "endpoints", "exclude each other"),
        ({"action": "pause", "everything": True, "rotation": {}}, "rotation", "only for the action rotate_secret"),
        ({"action": "destroy", "everything": True}, "action", ""),
        ({"action": "pause", "endpoints": ["e"] * (MAX_ENDPOINTS + 1)}, "endpoints", ""),
        ({"action": "pause", "everything": True, "limit": MAX_ENDPOINTS + 1}, "limit", ""),
    ],
)
def test_a_request_that_names_its_endpoints_twice_or_not_at_all_is_refused(acme, body, field, problem):
    answer = acme.post(PATH, body)
    assert (answer.status, answer.fields) == (422, [field])
    assert problem in answer.json["errors"][0]["problem"]


def test_a_request_names_as_many_endpoints_as_the_limit(acme):
    named = [f"nobodys-{number:02}" for number in range(MAX_ENDPOINTS)]
    for limit in ({}, {"limit": MAX_ENDPOINTS}):
        answer = acme.post(PATH, {"action": "pause", "endpoints": named} | limit)
        assert (results(answer), answer.json["next_cursor"]) == (dict.fromkeys(named, "not_found"), None)


def test_requests_at_once_change_each_endpoint_once(served, acme, made):
    ids, criterion = made
    bodies = [{"action": "pause"} | criterion, {"action": "pause", "endpoints": ids[::-1]}] * 4
    with concurrent.futures.ThreadPoolExecutor(4) as at_once:
        answers = list(at_once.map(lambda body: acme.post(PATH, body), bodies))
    assert sum(answer.json["changed"] for answer in answers) == 4
    assert all([entry["action"] for entry in served.audit(endpoint_id)] == ["create", "update"] for endpoint_id in ids)


@pytest.mark.parametrize("dry_run", [False, True])
def test_an_endpoint_must_still_match(served, acme, made, dry_run):
    """Regression: a deletion of disabled endpoints waited while one was enabled, and then deleted the active endpoint."""
    ids, criterion = made
    for endpoint_id in ids[:2]:
        acme.post(f"/v1/endpoints/{endpoint_id}/disable", {"reason": "moving"})
    body = {"action": "delete", "status": "disabled", "dry_run": dry_run} | criterion
    with served.registry() as opened, served.registry() as watching:
        with opened.transaction():
            opened.execute("update endpoints set status = 'active' where endpoint_id = %s", [ids[0]])
            deleted = world.in_background(lambda: acme.post(PATH, body))
            waiting.for_a_lock(watching)
        assert results(deleted()) == {ids[1]: "changed"}
    assert statuses(acme, ids) == ["active", "disabled" if dry_run else 404, "active", "active"]


def test_a_limited_key_changes_only_its_endpoints(served, made):
    ids, criterion = made
    with served.registry() as opened:
        key = world.keys.create(opened, customer_id="acme", scope=world.Scope.REGISTRAR, endpoints=ids[:1])
    limited = served.client(key.text.reveal().decode())
    assert results(limited.post(PATH, {"action": "pause"} | criterion)) == {ids[0]: "changed"}
    assert results(limited.post(PATH, {"action": "pause", "endpoints": ids[1:2]})) == {ids[1]: "not_found"}


def test_an_endpoint_may_have_the_name_of_the_path(operator):
    body = {"id": "bulk", "customer": "acme", "url": "https://hooks.example.com/"}
    assert operator.post("/v1/endpoints", body).status == 201
    assert operator.get(PATH).json["id"] == "bulk"
    assert operator.patch(PATH, {"description": "x"}).json["description"] == "x"
    assert operator.delete(PATH).status == 204
    assert operator.get(PATH).status == 404
