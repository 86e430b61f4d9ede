"""The permission of a receiver is part of its endpoint's row, and the job reads a permission only while it is valid."""

import psycopg
import pytest

from delivery import errors
from delivery.registry_model import EndpointStatus
from subscriptions_db.registration import endpoint_status, registered_rows
from subscriptions_db.snapshot import registry_reader
from tests.integration.registry.documents import DOCUMENT, GUARD, applied

pytestmark = pytest.mark.integration

ASKING = DOCUMENT["endpoints"][0] | {"validation": "cloudevents", "max_per_second": 5}
ONLY = {"endpoints": [ASKING]}
PERMIT = """
update endpoints set permitted_origin = 'fanout.example.com', permitted_per_minute = 120, permitted_at = now()
where endpoint_id = 'ep1'
"""
WAITING = (EndpointStatus.PAUSED, 5, None)
PERMITTED = (EndpointStatus.ACTIVE, 2, "fanout.example.com")  # 120 / 60


@pytest.fixture
def asking(connection, ring):
    applied(connection, ring, DOCUMENT)
    applied(connection, ring, ONLY)
    return connection


def as_read(connection, ring):
    endpoint = registry_reader.read_full(connection, ring, GUARD).endpoints["ep1"]
    return endpoint.status, endpoint.max_per_second, endpoint.origin


def test_an_endpoint_waits_until_its_receiver_permits(asking, ring):
    assert as_read(asking, ring) == WAITING
    since = registered_rows.revision(asking)
    asking.execute(PERMIT)
    endpoint = registry_reader.read_changes(asking, ring, GUARD, since=since).endpoints["ep1"]
    assert (endpoint.status, endpoint.max_per_second, endpoint.origin) == PERMITTED == as_read(asking, ring)


@pytest.mark.parametrize("status", ["paused", "disabled"])
def test_a_permission_does_not_activate_an_endpoint(asking, ring, status):
    asking.execute("update endpoints set status = %s where endpoint_id = 'ep1'", [status])
    asking.execute(PERMIT)
    assert as_read(asking, ring)[0] == status


def test_an_endpoint_without_permission_cannot_be_enabled(asking):
    endpoint_status.disable(asking, "ep1", "moving")
    with pytest.raises(errors.RegistrationError, match="before its receiver permits deliveries"):
        endpoint_status.enable(asking, "ep1")
    asking.execute(PERMIT)
    endpoint_status.enable(asking, "ep1")


@pytest.mark.parametrize(
    "statement",
    [
        "update endpoints set url = 'https://example.com/moved' where endpoint_id = 'ep1'",
        "update endpoints set validation = 'none' where endpoint_id = 'ep1'",
    ],
)
def test_a_new_url_or_no_validation_deletes_the_permission(asking, ring, statement):
    asking.execute(PERMIT)
    asking.execute(statement)
    row = registered_rows.document(asking)["endpoint"]["ep1"]
    assert (row["permitted_origin"], row["permitted_per_minute"], row["permitted_at"]) == (None, None, None)
    assert as_read(asking, ring) == (WAITING if "url" in statement else (EndpointStatus.ACTIVE, 5, None))


def test_apply_keeps_permissions_and_reports_waiting_endpoints(asking, ring):
    assert applied(asking, ring, ONLY).awaiting_permission == ("ep1",)
    assert applied(asking, ring, DOCUMENT, dry_run=True).awaiting_permission == ()
    asking.execute(PERMIT)
    result = applied(asking, ring, {"endpoints": [ASKING | {"status": "active"}]})
    assert (result.changes, result.awaiting_permission) == ((), ())
    assert as_read(asking, ring) == PERMITTED
    moved = applied(asking, ring, {"endpoints": [ASKING | {"url": "https://example.com/moved"}]})
    assert ([change.fields[0][0] for change in moved.changes], moved.awaiting_permission) == (["url"], ("ep1",))
    assert as_read(asking, ring) == WAITING


@pytest.mark.parametrize(
    "statement",
    [
        "update endpoints set validation = 'pigeon'",
        "update endpoints set permitted_origin = 'a.example.com', permitted_at = now() where endpoint_id = 'ep2'",
        "update endpoints set permitted_origin = 'a.example.com' where endpoint_id = 'ep1'",
        "update endpoints set permitted_at = now() where endpoint_id = 'ep1'",
        "update endpoints set permitted_per_minute = 5 where endpoint_id = 'ep1'",
        "update endpoints set permitted_origin = 'a', permitted_at = now(), permitted_per_minute = 0 where endpoint_id = 'ep1'",
        "update endpoints set permitted_origin = E'a\\r\\nb', permitted_at = now() where endpoint_id = 'ep1'",
        "update endpoints set permitted_origin = '', permitted_at = now() where endpoint_id = 'ep1'",
        "insert into validations values ('ep1', 'c1', 'https://example.com/1', 'a', 'short', now())",
        "insert into validations values ('ep1', 'c2', 'https://example.com/1', 'a', sha256(''), now())",
        "insert into validations values ('unknown', 'c1', 'https://example.com/1', 'a', sha256(''), now())",
    ],
)
def test_an_invalid_permission_is_refused(asking, statement):
    with pytest.raises(psycopg.errors.IntegrityError):
        asking.execute(statement)


def test_a_writer_cannot_set_awaits_permission_itself(asking):
    with pytest.raises(psycopg.errors.GeneratedAlways):
        asking.execute("update endpoints set awaits_permission = false")
