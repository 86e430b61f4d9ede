"""A customer may subscribe to operational events about its own endpoints, and never to those of other customers."""

import pytest

pytestmark = pytest.mark.integration

NEW = {"endpoint": "acme-orders", "event_type": "fanout.*", "sub_tenants": {"fanout": ["acme"]}}
EVENT = {"type": "fanout.endpoint.failing", "tenant_id": "fanout", "data": {"endpoint_id": "acme-orders"}}


def test_a_customer_subscribes_to_its_own_events_without_grant(acme):
    made = acme.post("/v1/subscriptions", NEW)
    assert (made.status, made.json["sub_tenants"]) == (201, {"fanout": ["acme"]})
    path = f"/v1/subscriptions/{made.json['id']}/explain"
    for customer, is_due in (("acme", True), ("other", False)):
        [explained] = acme.post(path, {"event": EVENT | {"sub_tenant_id": customer}}).json["items"]
        assert explained["is_due"] is is_due


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"sub_tenants": {"fanout": ["other"]}}, "sub_tenants"),
        ({"sub_tenants": {"fanout": ["acme", "other"]}}, "sub_tenants"),
        ({"sub_tenants": {}, "tenants": ["fanout"]}, "tenants"),
    ],
)
@pytest.mark.parametrize("grant", [{"tenants": ["t1", "t2", "fanout"]}, {"everything": True}, {"tenants": ["t1", "t2"]}])
def test_no_grant_permits_operational_events_of_others(acme, operator, grant, change, field):
    operator.put("/v1/customers/acme", {"name": "Acme Inc", "may_subscribe_to": grant})
    answer = acme.post("/v1/subscriptions", NEW | change)
    assert (answer.status, answer.fields) == (422, [field])
    operator.put("/v1/customers/acme", {"name": "Acme Inc", "may_subscribe_to": {"tenants": ["t1", "t2"]}})


def test_a_subscription_to_everything_excludes_the_platform(acme):
    event = EVENT | {"sub_tenant_id": "acme"}
    [explained] = acme.post("/v1/subscriptions/acme-all/explain", {"event": event | {"type": "order.made"}}).json["items"]
    assert (explained["is_due"], explained["rule"]) == (False, "scope")


def test_the_operator_subscribes_to_operational_events_of_all(operator):
    made = operator.post("/v1/subscriptions", NEW | {"sub_tenants": {}, "tenants": ["fanout"]})
    assert made.status == 201
    path = f"/v1/subscriptions/{made.json['id']}/explain"
    [explained] = operator.post(path, {"event": EVENT | {"sub_tenant_id": "other"}}).json["items"]
    assert explained["is_due"]


def test_a_tenant_cannot_have_the_platforms_id(operator):
    answer = operator.put("/v1/tenants/fanout", {"name": "Somebody"})
    assert answer.status in {409, 422}
