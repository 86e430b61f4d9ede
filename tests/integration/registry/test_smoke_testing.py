"""`fanout smoke-test` registers its endpoint, and deletes it and what earlier tests left."""

import pytest

from delivery.config import settings
from fanout.admin import smoke_run
from subscriptions_db.registration import registered_rows

pytestmark = pytest.mark.integration
URL = "https://hooks.example.com/smoke"


@pytest.fixture
def config(database, ring_key):
    return settings.Settings(
        database=settings.DatabaseSettings(url=database), keys=settings.KeysSettings(ring={"k1": ring_key})
    )


def registered(connection):
    """Return the ids of all endpoints and subscriptions, and check that they are the same."""
    rows = registered_rows.document(connection)
    assert rows["endpoint"].keys() == rows["subscription"].keys()
    return set(rows["endpoint"])


def test_a_smoke_test_leaves_the_endpoint_of_another_one(config, connection):
    """Regression: each test deleted the endpoint of every other one, at its beginning and at its end."""
    with smoke_run.registered(config, "outer", URL):
        with smoke_run.registered(config, "inner", URL) as secret:
            assert secret.startswith("whsec_")
            assert registered(connection) == {"outer", "inner"}
        assert registered(connection) == {"outer"}
    assert registered(connection) == set()
    asked = "select action, entity_id from audit_log where entity = 'endpoint' order by entry_id"
    found = [tuple(row.values()) for row in connection.execute(asked)]
    assert found == [("create", "outer"), ("create", "inner"), ("delete", "inner"), ("delete", "outer")]


def test_a_smoke_test_deletes_what_ended_tests_left_an_hour_ago(config, connection):
    with smoke_run.registered(config, "left", URL):
        connection.execute("update endpoints set created_at = now() - interval '61 minutes'")
        connection.execute("insert into customers values ('c1')")
        connection.execute(
            "insert into endpoints (endpoint_id, customer_id, url, auth_kind, created_at)"
            " values ('ep1', 'c1', 'https://example.com/1', 'none', now() - interval '1 year')"
        )
        with smoke_run.registered(config, "new", URL):
            assert set(registered_rows.document(connection)["endpoint"]) == {"new", "ep1"}
