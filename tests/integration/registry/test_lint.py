"""Subscriptions that match no event get a warning at registration, are refused with `strict`, and are found later."""

import pytest

from delivery import errors
from subscriptions_db.manifest import lint
from subscriptions_db.registration import registered_rows
from tests.integration.registry.documents import DOCUMENT, applied

pytestmark = pytest.mark.integration

DOUBTFUL = {
    "id": "s9",
    "endpoint": "ep1",
    "event_type": "order.creatd",
    "tenants": ["1", "nobody"],
    "sub_tenants": {"2": ["no-such-department"]},
    "except_tenants": ["gone"],
    "filter": {"status": ["paid"]},
}
PROBLEMS = [
    ("event_type", "did you mean order.created?"),
    ("filter.status", "did you mean data.status?"),
    ("except_tenants", "tenant gone is not registered: register it, or correct the id"),
    ("sub_tenants.2", "sub-tenant no-such-department of tenant 2 is not registered: register it, or correct the id"),
    ("tenants", "tenant nobody is not registered: register it, or correct the id"),
]
WITH_DOUBTS = DOCUMENT | {"subscriptions": [*DOCUMENT["subscriptions"], DOUBTFUL], "event_types": [{"id": "order.created"}]}


def assert_named(found, prefix):
    of_it = [warning for warning in found if warning.path.startswith(prefix)]
    assert [warning.path for warning in of_it] == [f"{prefix}.{path}" for path, _ in PROBLEMS]
    for warning, (_, problem) in zip(of_it, PROBLEMS, strict=True):
        assert problem in warning.problem


def test_subscriptions_with_warnings_are_registered(connection, ring):
    number = len(DOCUMENT["subscriptions"])
    for _ in range(2):
        assert_named(applied(connection, ring, WITH_DOUBTS).warnings, f"subscriptions[{number}]")
    assert "s9" in registered_rows.document(connection)["subscription"]


def test_strict_refuses_a_document_with_warnings(connection, ring):
    with pytest.raises(errors.ManifestRefused) as refused:
        applied(connection, ring, WITH_DOUBTS, strict=True)
    assert_named(refused.value.found, f"subscriptions[{len(DOCUMENT['subscriptions'])}]")
    assert registered_rows.document(connection)["subscription"] == {}


def test_a_tenant_of_the_same_document_has_no_warning(connection, ring):
    cured = DOUBTFUL | {"event_type": "order.*", "tenants": ["new"], "sub_tenants": {}, "except_tenants": [], "filter": None}
    document = DOCUMENT | {"tenants": [*DOCUMENT["tenants"], {"id": "new"}], "subscriptions": [cured]}
    assert applied(connection, ring, document).warnings == ()


def test_topics_count_as_known_event_types(connection, ring):
    document = WITH_DOUBTS | {
        "subscriptions": [{"id": "s", "endpoint": "ep1", "event_type": "invoice.sent", "everything": True}]
    }
    assert len(applied(connection, ring, document).warnings) == 1
    assert applied(connection, ring, document, known_types={"invoice.sent"}).warnings == ()


def test_a_subscription_of_plain_sql_is_found_by_its_id(connection, ring):
    applied(connection, ring, DOCUMENT | {"event_types": [{"id": "order.created"}]})
    connection.execute(
        "insert into scopes (subscription_id, scope, effect, tenant_id) "
        "select subscription_id, scope, 'exclude', 'nobody' from subscriptions where subscription_id = 's1'"
    )
    found = {(warning.path, warning.problem) for warning in lint.subscriptions(connection, None)}
    assert ("s1.except_tenants", "tenant nobody is not registered: register it, or correct the id") in found
