"""The catalogue of event types: operators change it, every customer reads it, and it decides no delivery."""

import pytest

pytestmark = pytest.mark.integration

PATH = "/v1/event-types/order.paid"
SCHEMA = {"type": "object", "required": ["amount"], "properties": {"amount": {"type": "number"}}}
EVENT = {"type": "order.paid", "tenant_id": "t1"}


@pytest.fixture
def order_paid(operator):
    """Register an event type in the catalogue, and return it."""
    event_type = {"description": "An order was paid.", "json_schema": SCHEMA, "examples": [{"amount": 5}]}
    answer = operator.put(PATH, event_type)
    assert answer.status == 201, answer.text
    yield answer.json
    operator.delete(PATH)


def test_every_customer_reads_the_catalogue(acme, other, served, order_paid):
    assert order_paid["id"] == "order.paid"
    assert list(order_paid["json_schema"]) == list(SCHEMA), "in the order of its author"
    for client in (acme, other, served.client(served.keys["reader"])):
        assert client.get(PATH).json == order_paid
        assert order_paid in client.get("/v1/event-types").json["items"]
    assert served.client(served.keys["poller"]).get(PATH).status == 403
    assert acme.put(PATH, {}).status == acme.delete(PATH).status == 403


@pytest.mark.usefixtures("order_paid")
def test_the_catalogue_is_read_in_pages(acme):
    assert len(acme.get("/v1/event-types?q=ORDER.PAID").json["items"]) == 1
    assert acme.get("/v1/event-types?q=none&total=true").json["total"] == 0
    every = acme.get("/v1/event-types").json["items"]
    assert acme.get("/v1/event-types?deprecated=false").json["items"] == [item for item in every if not item["deprecated"]]
    assert acme.get("/v1/event-types?deprecated=true").json["items"] == [item for item in every if item["deprecated"]]
    first = acme.get("/v1/event-types?limit=1").json
    second = acme.get(f"/v1/event-types?limit=1&cursor={first['next_cursor']}").json
    assert [row["id"] for row in first["items"] + second["items"]] == ["order.created", "order.paid"]
    assert second["next_cursor"] is None


def test_a_put_replaces_all_fields_and_audits_only_changes(operator, served, order_paid):
    assert operator.put(PATH, {"deprecated": True}).json["json_schema"] is None
    changed = operator.get(PATH).json
    assert changed["changed_at"] > order_paid["changed_at"]
    assert operator.put(PATH, {"deprecated": True}).json == changed
    assert operator.delete(PATH).status == 204
    assert operator.get(PATH).status == operator.delete(PATH).status == 404
    assert [entry["action"] for entry in served.audit("order.paid")][-3:] == ["create", "update", "delete"]


def test_large_whole_numbers_in_examples_come_back(operator):
    put, again = (operator.put(PATH, {"examples": [1e30]}, idempotency_key="large").json for _ in range(2))
    noted = operator.get("/v1/audit-log?limit=1").json["items"][0]["after"]
    for answer in (put, again, noted, operator.get(PATH).json):
        assert answer["examples"] == pytest.approx([1e30])
    assert operator.delete(PATH).status == 204


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"json_schema": {"type": "nonsense"}}, "json_schema.type"),
        ({"json_schema": {"items": {"$ref": "https://example.com/"}}}, "json_schema.items.$ref"),
        ({"json_schema": SCHEMA, "examples": [{"amount": 1}, {"amount": "x"}]}, "examples[1].amount"),
        ({"examples": ["a\0"]}, "examples[0]"),
        ({"schema": {}}, "schema"),
    ],
)
def test_an_invalid_event_type_is_refused_by_its_field(operator, body, field):
    answer = operator.put("/v1/event-types/order.refused", body)
    assert (answer.status, answer.fields) == (422, [field])
    assert answer.headers["content-type"] == "application/problem+json"
    assert operator.get("/v1/event-types/order.refused").status == 404


@pytest.mark.usefixtures("order_paid")
def test_explain_checks_the_schema_without_effect_on_due(acme):
    for data, keeps, wrong in (({"amount": 9}, True, []), ({"amount": "9"}, False, ["amount"]), ({}, False, [""])):
        explained = acme.post("/v1/endpoints/acme-orders/explain", {"event": EVENT | {"data": data}}).json
        catalogue = explained["catalogue"]
        assert (catalogue["is_known"], catalogue["keeps_to_schema"]) == (True, keeps)
        assert [mistake["field"] for mistake in catalogue["errors"]] == wrong
        assert explained["items"][0]["rule"] == ("matches" if data.get("amount") == 9 else "filter")


def test_a_type_outside_the_catalogue_may_be_subscribed_to(acme):
    wanted = {"endpoint": "acme-orders", "event_type": "never.heard", "tenants": ["t1"]}
    made = acme.post("/v1/subscriptions", wanted)
    assert made.status == 201
    explained = acme.post(f"/v1/subscriptions/{made.json['id']}/explain", {"event": EVENT | {"type": "never.heard"}}).json
    assert explained["items"][0]["is_due"]
    assert explained["catalogue"] == {"is_known": False, "is_deprecated": False, "keeps_to_schema": None, "errors": []}
    assert acme.delete(f"/v1/subscriptions/{made.json['id']}").status == 204


def test_an_invalid_schema_by_sql_breaks_no_explanation_or_list(acme, served):
    with served.registry() as opened:
        opened.execute("""insert into event_types values ('order.spoilt', '', '{"$ref": "http://127.0.0.1:9/"}')""")
        explained = acme.post("/v1/endpoints/acme-orders/explain", {"event": EVENT | {"type": "order.spoilt"}}).json[
            "catalogue"
        ]
        assert (explained["keeps_to_schema"], [mistake["field"] for mistake in explained["errors"]]) == (
            None,
            ["json_schema.$ref"],
        )
        assert acme.get("/v1/event-types/order.spoilt").status == acme.get("/v1/event-types").status == 200
        opened.execute("delete from event_types where event_type = 'order.spoilt'")
