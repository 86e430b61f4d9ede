"""A request creates many endpoints, all or none, or shows what would be refused."""

import concurrent.futures

import pytest

from subscriptions_db.api.registry.endpoint_creation import MAX_ENDPOINTS
from tests.integration.api import world

pytestmark = pytest.mark.integration

PATH = "/v1/endpoints/bulk/create"
URL = "https://hooks.example.com/"


def number_of(served):
    with served.registry() as opened:
        return opened.execute("select count(*) as n from endpoints").fetchone()["n"]


def test_endpoints_are_created_in_the_order_of_the_request(served, acme):
    bodies = [{"url": f"{URL}{number}", "metadata": {"test": "order"}} for number in range(MAX_ENDPOINTS)]
    first, again = (acme.post(PATH, {"endpoints": bodies}, idempotency_key="many") for _ in range(2))
    assert (first.status, first.json["created"]) == (200, MAX_ENDPOINTS)
    ids = [item["id"] for item in first.json["items"]]
    assert [acme.get(f"/v1/endpoints/{endpoint_id}").json["url"] for endpoint_id in ids] == [body["url"] for body in bodies]
    secrets = {item["signing_secret"] for item in first.json["items"]}
    assert len(secrets) == MAX_ENDPOINTS
    assert all(secret.startswith("whsec_") for secret in secrets)
    assert again.json["items"] == [{"id": endpoint_id, "signing_secret": None} for endpoint_id in ids]
    assert [entry["action"] for entry in served.audit(ids[3])] == ["create"]
    assert served.audit(ids[3])[0]["customer_id"] == "acme"


def test_one_wrong_entry_and_no_endpoint_is_created(served, acme, operator):
    before = number_of(served)
    wrong = [
        {"url": URL},
        {"url": "https://169.254.169.254/"},
        {"url": URL, "max_in_flight": 0, "colour": "red"},
        "none",
        {"url": URL, "customer": "other"},
        {"url": URL, "signing_secrets": ["whsec_AAAA"]},
        {"url": URL, "id": "mine"},
        {"url": URL, "mode": "batch", "order_by": "account"},
        {"url": URL, "id": "\0"},
    ]
    answer = acme.post(PATH, {"endpoints": wrong})
    assert answer.status == 422
    assert answer.fields == [
        "endpoints[1].url", "endpoints[2].max_in_flight", "endpoints[2].colour", "endpoints[3]", "endpoints[4].customer",
        "endpoints[5].signing_secrets", "endpoints[7]", "endpoints[8].id", "endpoints[6].id",
    ]  # fmt: skip
    taken = [{"url": URL, "id": row_id} for row_id in ("fresh", "acme-orders", "fresh", 42)]
    refused = operator.post(PATH, {"customer": "acme", "endpoints": taken})
    assert (refused.status, refused.fields) == (422, ["endpoints[1].id", "endpoints[2].id"])
    assert operator.post(PATH, {"endpoints": [{"url": URL}]}).fields == ["customer"]
    assert operator.post(PATH, {"customer": "nobody", "endpoints": [{"url": URL}]}).fields == ["customer"]
    assert acme.post(PATH, {"endpoints": [{"url": URL}] * (MAX_ENDPOINTS + 1)}).fields == ["endpoints"]
    assert acme.post(PATH, {"endpoints": []}).fields == ["endpoints"]
    assert number_of(served) == before


def test_an_operator_chooses_ids_and_the_customer(operator):
    made = operator.post(PATH, {"customer": "acme", "endpoints": [{"url": URL, "id": "chosen"}, {"url": URL, "id": 42}]})
    assert [item["id"] for item in made.json["items"]] == ["chosen", "42"]
    assert operator.get("/v1/endpoints/42").json["customer"] == "acme"


def test_a_dry_run_creates_nothing_and_refuses_the_same(served, acme):
    before = number_of(served)
    dry = acme.post(PATH, {"endpoints": [{"url": URL}] * 3, "dry_run": True})
    assert dry.json == {"dry_run": True, "created": 3, "items": []}
    assert acme.post(PATH, {"endpoints": [{"url": "http://10.0.0.1/"}], "dry_run": True}).fields == ["endpoints[0].url"]
    assert number_of(served) == before


def test_requests_at_once_stay_within_the_quota(served, operator, other):
    with served.registry() as opened:
        had = opened.execute("select count(*) as n from endpoints where customer_id = 'other'").fetchone()["n"]
    present = operator.get("/v1/customers/other").json
    assert operator.ask("PUT", "/v1/customers/other", {"name": "Other", "quotas": {"endpoints": had + 7}}).status == 200
    try:
        assert other.post(PATH, {"endpoints": [{"url": URL}] * 8}).json["code"] == "quota"
        with concurrent.futures.ThreadPoolExecutor(4) as at_once:
            answers = list(at_once.map(lambda _: other.post(PATH, {"endpoints": [{"url": URL}] * 3}).status, range(4)))
        assert sorted(answers) == [200, 200, 429, 429]
    finally:
        operator.ask("PUT", "/v1/customers/other", {"name": present["name"], "may_subscribe_to": present["may_subscribe_to"]})


def test_limited_and_write_only_keys_get_no_secret(served):
    with served.registry() as opened:
        limited = world.keys.create(opened, customer_id="acme", scope=world.Scope.REGISTRAR, endpoints=["acme-orders"])
        writer = world.keys.create(opened, customer_id="acme", scope=world.Scope.WRITE_ONLY)
    body = {"endpoints": [{"url": URL}]}
    assert served.client(limited.text.reveal().decode()).post(PATH, body).status == 403
    made = served.client(writer.text.reveal().decode()).post(PATH, body)
    assert made.json["items"][0]["signing_secret"] is None
    assert made.json["items"][0]["id"].startswith("ep_")
