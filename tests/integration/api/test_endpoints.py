"""Endpoints are created and changed over HTTP by the rules of the manifest, with an audit entry for each change."""

import pytest

from delivery.registry_model import EndpointStatus
from delivery.secret import Secret
from delivery.webhooks.http import guard
from delivery.webhooks.sending import signing
from subscriptions_db.api.contract import keys
from subscriptions_db.api.contract.principals import Scope
from subscriptions_db.registration import registered_rows
from subscriptions_db.secrets import keyring
from subscriptions_db.snapshot import registry_reader

pytestmark = pytest.mark.integration

NEW = {"url": "https://hooks.acme.example.com/new"}


@pytest.fixture
def made(acme):
    return acme.post("/v1/endpoints", NEW | {"auth": {"kind": "bearer", "secret": "hunter2"}}).json


def as_read(served, endpoint_id):
    with served.registry() as opened:
        ring = keyring.KeyRing.from_settings(served.config.keys)
        return registry_reader.read_endpoint(opened, ring, guard.Guard(), endpoint_id).endpoints.get(endpoint_id)


def test_a_new_endpoint_shows_its_signing_secret_once(acme, served):
    answer = acme.post("/v1/endpoints", NEW)
    assert answer.status == 201
    shown = answer.json
    assert (shown["customer"], shown["url"], shown["status"], shown["mode"]) == ("acme", NEW["url"], "active", "direct")
    read = as_read(served, shown["id"])
    assert [signing.to_text(key) for key in read.signing_keys] == [shown["signing_secret"]]
    again = acme.get(f"/v1/endpoints/{shown['id']}")
    assert again.status == 200
    assert "signing_secret" not in again.json
    assert again.json == {name: value for name, value in shown.items() if name != "signing_secret"}


def test_an_id_may_be_a_number(operator, served):
    """Regression: a subscription of an endpoint with a number as id got 500, and a customer with one could not name itself."""
    operator.put("/v1/customers/77", {"may_subscribe_to": {"everything": True}})
    with served.registry() as opened:
        key = keys.create(opened, customer_id="77", scope=Scope.CUSTOMER_ADMIN)
    own = served.client(key.text.reveal().decode())
    assert own.post("/v1/endpoints", NEW | {"customer": 77}).json["customer"] == "77"
    assert operator.post("/v1/endpoints", NEW | {"customer": 77, "id": 123}).json["id"] == "123"
    for client in (own, operator):
        made = client.post("/v1/subscriptions", {"endpoint": 123, "event_type": "order.*", "tenants": [1]})
        assert (made.status, made.json["endpoint"], made.json["tenants"]) == (201, "123", ["1"])


def test_the_longest_secret_is_stored_and_a_longer_one_is_refused_by_name(acme):
    """Regression: the refusal named a column of the registry and no bound."""
    answers = [acme.post("/v1/endpoints", NEW | {"auth": {"kind": "bearer", "secret": "x" * size}}) for size in (8163, 8164)]
    in_bytes = acme.post("/v1/endpoints", NEW | {"auth": {"kind": "basic", "username": "x", "secret": "ü" * 4082}})
    assert [answer.status for answer in (*answers, in_bytes)] == [201, 422, 422]
    assert answers[1].json["errors"] == [{"field": "auth.secret", "problem": "must have at most 8163 characters"}]
    assert "use at most 8,163" in in_bytes.json["errors"][0]["problem"]


def test_no_answer_has_a_stored_secret(acme, made):
    assert made["auth"] == {"kind": "bearer"} | dict.fromkeys(["username", "header", "client_id", "token_url", "token_scope"])
    for path in (f"/v1/endpoints/{made['id']}", "/v1/endpoints", "/v1/audit-log"):
        assert b"hunter2" not in acme.get(path).text


def test_a_change_keeps_omitted_fields_and_secrets(acme, served, made):
    before = as_read(served, made["id"])
    answer = acme.patch(
        f"/v1/endpoints/{made['id']}", {"url": "https://hooks.acme.example.com/moved", "retry": {"timeout_s": 9}}
    )
    assert answer.status == 200
    read = as_read(served, made["id"])
    assert (read.url, read.retrying.timeout_s) == ("https://hooks.acme.example.com/moved", 9)
    assert (read.auth.secret, read.signing_keys) == (Secret(b"hunter2"), before.signing_keys)
    acme.patch(f"/v1/endpoints/{made['id']}", {"auth": {"kind": "none"}})
    assert as_read(served, made["id"]).auth.secret is None


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"url": "https://169.254.169.254/"}, "url"),
        ({"url": "http://hooks.example.com/"}, "url"),
        ({"url": "https://a\u0000b/"}, "url"),
        ({"url": 7}, "url"),
        ({}, "url"),
        (NEW | {"headers": {"Host": "evil"}}, "headers.Host"),
        (NEW | {"auth": {"kind": "basic"}}, "auth"),
        (NEW | {"auth": {"kind": "api_key", "header": "Content-Length", "secret": "s"}}, "auth.headers.Content-Length"),
        (NEW | {"retry": {"schedule_s": [1, -1]}}, "retry.schedule_s[1]"),
        (NEW | {"max_in_flight": 0}, "max_in_flight"),
        (NEW | {"mode": "pigeon"}, "mode"),
        (NEW | {"mode": "batch", "order_by": "id"}, ""),
        (NEW | {"tls": {"certificate": "none"}}, "tls"),
        (NEW | {"description": "x" * 2001}, "description"),
        (NEW | {"metadata": {"a b": "c"}}, "metadata.a b"),
        (NEW | {"metadata": {"a": 1}}, "metadata.a"),
        (NEW | {"metadata": {str(n): "" for n in range(51)}}, "metadata"),
        (NEW | {"metadata": {str(n): "x" * 500 for n in range(17)}}, "metadata"),
        (NEW | {"created_at": "2026-01-01T00:00:00Z"}, "created_at"),
        (NEW | {"colour": "red"}, "colour"),
        (NEW | {"id": "mine"}, "id"),
        (NEW | {"customer": "other"}, "customer"),
        (NEW | {"customer": "nobody"}, "customer"),
    ],
)
def test_an_invalid_field_is_refused_by_name(acme, document, field):
    answer = acme.post("/v1/endpoints", document)
    assert answer.status == 422
    assert answer.headers["content-type"].startswith("application/problem+json")
    assert answer.fields == [field]


def test_an_endpoint_has_a_description_metadata_and_times(acme, served):
    described = {"description": "Orders", "metadata": {"team": "billing", "system/id": "17"}}
    made = acme.post("/v1/endpoints", NEW | described).json
    assert {name: made[name] for name in described} == described
    assert made["created_at"] == made["updated_at"]
    path = f"/v1/endpoints/{made['id']}"
    with served.registry() as opened:
        revision = registered_rows.revision(opened)
        changed = acme.patch(path, {"metadata": {"team": "sales"}}).json
        assert registered_rows.revision(opened) == revision, "executors do not read it"
    assert (changed["description"], changed["metadata"]) == ("Orders", {"team": "sales"})
    assert (changed["created_at"], changed["updated_at"] > made["updated_at"]) == (made["created_at"], True)
    assert acme.patch(path, {"metadata": {"team": "sales"}}).json == changed, "nothing has changed"
    acme.post(f"{path}/rotate-secret", {})
    assert acme.get(path).json["updated_at"] > changed["updated_at"]
    entry = served.audit(made["id"])[1]
    assert (entry["before"], entry["after"]) == ({"metadata": described["metadata"]}, {"metadata": {"team": "sales"}})


def test_a_changed_endpoint_is_checked_as_a_whole(acme, made):
    path = f"/v1/endpoints/{made['id']}"
    assert acme.patch(path, {"batch": {"max_events": 5}}).status == 422
    assert acme.patch(path, {"url": None}).fields == ["url"]
    assert acme.patch(path, {"mode": "batch"}).fields == ["mode"]


def test_an_endpoint_is_paused_resumed_disabled_and_enabled(acme, served, made):
    path = f"/v1/endpoints/{made['id']}"
    for action, body, status in (
        ("pause", None, EndpointStatus.PAUSED),
        ("pause", None, EndpointStatus.PAUSED),
        ("resume", None, EndpointStatus.ACTIVE),
        ("disable", {"reason": "moving"}, EndpointStatus.DISABLED),
        ("enable", None, EndpointStatus.ACTIVE),
    ):
        assert acme.post(f"{path}/{action}", body).json["status"] == status.value
        assert as_read(served, made["id"]).status is status


def test_a_disabled_endpoint_must_be_enabled_first(acme, made):
    path = f"/v1/endpoints/{made['id']}"
    shown = acme.post(f"{path}/disable", {"reason": "moving"}).json
    assert shown["disabled_reason"] == "moving"
    assert acme.post(f"{path}/resume").status == acme.post(f"{path}/pause").status == 409
    assert acme.patch(path, {"max_in_flight": 4}).json["disabled_reason"] == "moving"
    assert acme.post(f"{path}/disable", {}).fields == ["reason"]


def test_a_rotation_shows_the_new_secret_once_and_both_sign(acme, served, made):
    answer = acme.post(f"/v1/endpoints/{made['id']}/rotate-secret", {"overlap_s": 60})
    assert answer.status == 200
    texts = [signing.to_text(key) for key in as_read(served, made["id"]).signing_keys]
    assert texts == [answer.json["secret"], made["signing_secret"]]
    public = acme.post(f"/v1/endpoints/{made['id']}/rotate-secret", {"scheme": "v1a"}).json
    assert public["secret"] is None
    assert public["public_key"].startswith("whpk_")


def test_an_endpoint_is_deleted_with_its_subscriptions(acme, made):
    wanted = {"endpoint": made["id"], "event_type": "order.*", "tenants": ["t1"]}
    subscription = acme.post("/v1/subscriptions", wanted).json["id"]
    assert acme.delete(f"/v1/endpoints/{made['id']}").status == 204
    assert acme.get(f"/v1/endpoints/{made['id']}").status == 404
    assert acme.get(f"/v1/subscriptions/{subscription}").status == 404


def test_audit_entries_have_old_and_new_fields_and_no_secret(acme, served, made):
    path = f"/v1/endpoints/{made['id']}"
    acme.patch(path, {"max_in_flight": 7, "auth": {"kind": "bearer", "secret": "hunter3"}})
    acme.patch(path, {"max_in_flight": 7})  # changes nothing
    acme.post(f"{path}/pause")
    acme.post(f"{path}/rotate-secret", {})
    acme.delete(path)
    entries = served.audit(made["id"])
    assert [entry["action"] for entry in entries] == ["create", "update", "update", "rotate_secret", "delete"]
    changed = entries[1]
    assert changed["before"] == {"max_in_flight": None, "auth_secret": "***"}
    assert changed["after"] == {"max_in_flight": 7, "auth_secret": "*** (new)"}
    assert {(entry["key_id"], entry["customer_id"]) for entry in entries} == {(served.keys["acme"][:15], "acme")}
    shown = [entry["action"] for entry in acme.get("/v1/audit-log").json["items"] if entry["entity_id"] == made["id"]]
    assert shown == ["delete", "rotate_secret", "update", "update", "create"]


def test_a_refused_change_writes_no_row_and_no_audit_entry(acme, served, made):
    count = len(served.audit(made["id"]))
    assert acme.patch(f"/v1/endpoints/{made['id']}", {"max_in_flight": 5, "url": "https://127.0.0.1/"}).status == 422
    assert as_read(served, made["id"]).max_in_flight is None
    assert len(served.audit(made["id"])) == count


def test_the_operator_chooses_ids_and_customers(operator, acme):
    new = NEW | {"id": "chosen", "customer": "acme"}
    assert operator.post("/v1/endpoints", NEW).fields == ["customer"]
    assert operator.post("/v1/endpoints", new).status == 201
    assert operator.post("/v1/endpoints", new).status == 409
    assert operator.post("/v1/endpoints", NEW | {"customer": "nobody"}).fields == ["customer"]
    assert acme.get("/v1/endpoints/chosen").json["customer"] == "acme"


def test_a_list_is_paged_while_rows_come_and_go(operator):
    operator.put("/v1/customers/many", {})
    wanted = [f"many-{number:02}" for number in range(7)]
    for row_id in wanted:
        operator.post("/v1/endpoints", NEW | {"id": row_id, "customer": "many"})
    seen, cursor = [], ""
    while cursor is not None:
        page = operator.get(f"/v1/endpoints?customer=many&limit=3{cursor and f'&cursor={cursor}'}").json
        seen += [row["id"] for row in page["items"]]
        cursor = page["next_cursor"]
        operator.delete(f"/v1/endpoints/{seen[-1]}")  # the very row that the cursor names
    assert seen == wanted


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=201", "limit=x", "cursor=%00", "cursor=AA", "cursor=%C3%A4", "q=%00", "colour=red"]
)
def test_an_invalid_page_parameter_is_refused_by_name(acme, query):
    answer = acme.get(f"/v1/endpoints?{query}")
    assert answer.status == 422
    assert answer.fields == [query.partition("=")[0]]
