"""Every change over the HTTP API has an audit entry with the API key. A new route must be added to this file."""

import pytest

from subscriptions_db.api.server.table import ROUTES
from subscriptions_db.registration import endpoint_status
from tests.integration.api import world
from tests.integration.api.test_isolation import BODIES, OF_ACME

pytestmark = pytest.mark.integration

CHANGES = {route.name: route for route in ROUTES if route.is_change}
TENANT, CUSTOMER, TYPE = ({name: "short-lived"} for name in ("tenant_id", "customer_id", "event_type_id"))
LETTERS = [str(int(world.LETTER) + number) for number in range(3)]
IN_ORDER = [
    ("putTenant", TENANT, {"name": "Five"}), ("deleteTenant", TENANT, None),
    ("putCustomer", CUSTOMER, {"name": "Six"}), ("deleteCustomer", CUSTOMER, None),
    ("putEventType", TYPE, {"json_schema": {"type": "object"}}), ("deleteEventType", TYPE, None),
    ("createEndpoint", {}, BODIES["createEndpoint"]), ("createEndpoints", {}, BODIES["createEndpoints"]),
    ("updateEndpoint", {}, BODIES["updateEndpoint"]),
    ("pauseEndpoint", {}, None), ("resumeEndpoint", {}, None),
    ("disableEndpoint", {}, BODIES["disableEndpoint"]), ("enableEndpoint", {}, None), ("rotateSecret", {}, None),
    ("changeEndpoints", {}, BODIES["changeEndpoints"]), ("resumeEndpoint", {}, None),
    ("createSubscription", {}, {"endpoint": "acme-orders", "event_type": "*", "tenants": ["t1"]}),
    ("updateSubscription", {}, {"everything": False, "except_tenants": [], "tenants": ["t1"]}),
    ("pauseSubscription", {}, None), ("resumeSubscription", {}, None),
    ("createConsumer", {}, BODIES["createConsumer"]), ("seekConsumer", {}, BODIES["seekConsumer"]),
    ("updateConsumer", {}, BODIES["updateConsumer"]), ("unparkDeadLetters", {}, BODIES["unparkDeadLetters"]),
    ("deleteConsumer", {}, None),
    ("redriveDeadLetter", {"letter_id": LETTERS[0]}, None), ("discardDeadLetter", {"letter_id": LETTERS[1]}, None),
    ("redriveDeadLetters", {}, BODIES["redriveDeadLetters"]), ("discardDeadLetters", {}, BODIES["discardDeadLetters"]),
    ("cancelReplay", {}, None), ("createReplay", {}, BODIES["createReplay"]),
    ("recoverEndpoint", {}, BODIES["recoverEndpoint"]), ("resendAttempt", {}, None),
    ("deleteSubscription", {}, None), ("deleteEndpoint", {}, None),
]  # fmt: skip
CREATING_PUTS = {"putTenant", "putCustomer", "putEventType"}
OPERATORS = {"putTenant", "deleteTenant", "putCustomer", "deleteCustomer", "putEventType", "deleteEventType"}


@pytest.fixture(scope="module", autouse=True)
def _letters(served):
    with served.registry() as opened:
        world.letters(opened, len(LETTERS) - 1)


def entries(served):
    with served.registry() as opened:
        return opened.execute("select entry_id, key_id from audit_log order by entry_id").fetchall()


@pytest.mark.parametrize(("name", "ids", "body"), IN_ORDER, ids=[name for name, *_ in IN_ORDER])
def test_a_change_has_an_audit_entry_with_its_api_key(served, name, ids, body):
    key = served.keys["operator" if name in OPERATORS else "acme"]
    route, before = CHANGES[name], entries(served)
    answer = served.client(key).ask(route.method, route.path.format(**OF_ACME | ids), body)
    assert answer.status == (201 if name in CREATING_PUTS else route.status), answer.text
    added = entries(served)[len(before) :]
    assert added
    assert {entry["key_id"] for entry in added} == {"_".join(key.split("_")[:2])}


def test_only_the_operator_sees_the_login_of_an_audit_entry(served, acme, other, operator):
    with served.registry() as opened:
        endpoint_status.disable(opened, "other-orders", "moving")
    [seen] = other.get("/v1/audit-log").json["items"]
    assert (seen["key_id"], seen["login"], seen["entity_id"]) == ("command", None, "other-orders")
    assert operator.get("/v1/audit-log?limit=1").json["items"] == [seen | {"login": "postgres"}]
    assert seen["entry_id"] not in [entry["entry_id"] for entry in acme.get("/v1/audit-log").json["items"]]


def test_every_changing_route_has_an_audit_test():
    assert {name for name, *_ in IN_ORDER} == CHANGES.keys()
