"""Endpoints are disabled and enabled: by the job only while they are active, by the operator whatever their status."""

import threading
import uuid

import pytest
from psycopg import sql

from delivery import errors
from delivery.config import settings
from delivery.registry_model import AttemptedEndpoint
from delivery.webhooks.http import guard
from subscriptions_db.following import endpoint_disabler as stages_disabling
from subscriptions_db.postgres import connect, migrate
from subscriptions_db.registration import endpoint_status, registered_rows
from subscriptions_db.snapshot import registry_reader
from tests.integration.registry.documents import DOCUMENT, applied

pytestmark = pytest.mark.integration


def attempted(*names):
    return [AttemptedEndpoint(name) for name in names]


@pytest.fixture
def rows(connection, ring):
    """Return the present status and reason of each endpoint."""
    applied(connection, ring, DOCUMENT)

    def read():
        return {
            key: (row["status"], row["disabled_reason"])
            for key, row in registered_rows.document(connection)["endpoint"].items()
        }

    return read


def test_the_job_disables_active_endpoints_only(connection, rows):
    connection.execute("update endpoints set status = 'paused' where endpoint_id = 'ep2'")
    assert endpoint_status.disable_active(connection, attempted("ep2", "ep1", "unknown"), "gone") == ["ep1"]
    assert rows() == {"ep1": ("disabled", "gone"), "ep2": ("paused", None)}
    before = registered_rows.revision(connection)
    assert endpoint_status.disable_active(connection, attempted("ep1", "ep2"), "failing") == []
    assert rows()["ep1"] == ("disabled", "gone")
    assert registered_rows.revision(connection) == before


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize("since", ["disabled", "paused"])
def test_an_endpoint_enabled_since_is_not_disabled(connection, since):
    connection.execute("update endpoints set status = %s", [since])
    connection.execute("update endpoints set status = 'active' where endpoint_id = 'ep1'")
    connection.execute("update endpoints set url = url || '?moved'")  # not since that
    assert endpoint_status.disable_active(connection, attempted("ep1"), "failing", active_s=60) == []
    connection.execute("update endpoints set active_since = now() - interval '61 s'")
    assert endpoint_status.disable_active(connection, attempted("ep1"), "failing", active_s=60) == ["ep1"]


def test_an_unknown_active_since_counts_as_long_ago(connection, rows):
    connection.execute("update endpoints set active_since = null")
    assert endpoint_status.disable_active(connection, attempted("ep1"), "failing", active_s=60) == ["ep1"]
    assert rows()["ep1"] == ("disabled", "failing")


def test_a_late_answer_of_an_earlier_url_does_not_disable_an_endpoint(connection, ring, rows):
    """Regression: the 410 of the earlier URL disabled the endpoint, and the customer had to enable it again."""
    registered = registry_reader.read_full(connection, ring, guard.Guard()).endpoints
    before = [registered["ep1"].as_attempted(), registered["ep2"].as_attempted()]
    connection.execute("update endpoints set url = 'https://moved.example.com/' where endpoint_id = 'ep1'")
    assert endpoint_status.disable_active(connection, before, "gone") == ["ep2"]
    assert rows()["ep1"] == ("active", None)


def test_the_operator_disables_and_enables_whatever_the_status(connection, rows):
    connection.execute("update endpoints set status = 'paused' where endpoint_id = 'ep1'")
    endpoint_status.disable(connection, "ep1", "asked for by the customer")
    assert rows()["ep1"] == ("disabled", "asked for by the customer")
    endpoint_status.enable(connection, "ep1")
    assert rows()["ep1"] == ("active", None)


@pytest.mark.usefixtures("rows")
def test_a_repeated_status_changes_nothing(connection):
    for do in (lambda: endpoint_status.disable(connection, "ep1", "x"), lambda: endpoint_status.enable(connection, "ep1")):
        do()
        before = registered_rows.revision(connection)
        do()
        assert registered_rows.revision(connection) == before


@pytest.mark.usefixtures("rows")
def test_a_missing_endpoint_is_named(connection):
    with pytest.raises(errors.RegistrationError, match="nobody: there is no such endpoint"):
        endpoint_status.enable(connection, "nobody")


@pytest.fixture
def role(connection):
    """Create the role of the job with the grants of docs/operations.md: read the registry, and update two columns."""
    name = sql.Identifier(f"job_{uuid.uuid4().hex}")
    connection.execute(sql.SQL("create role {}").format(name))
    connection.execute(sql.SQL("grant select on all tables in schema public to {}").format(name))
    connection.execute(sql.SQL("grant update (status, disabled_reason) on endpoints to {}").format(name))
    yield name
    connection.execute("reset role")
    connection.execute(sql.SQL("drop owned by {name}; drop role {name}").format(name=name))


def test_the_job_needs_the_right_to_update_two_columns_only(connection, rows, role):
    connection.execute(sql.SQL("set role {}").format(role))
    assert endpoint_status.disable_active(connection, attempted("ep1"), "gone") == ["ep1"]
    with pytest.raises(errors.RegistryUnavailable, match="permission denied"), connect.translated_errors():
        connection.execute("update endpoints set url = 'https://example.com/theirs'")
    connection.execute("reset role")
    assert rows()["ep1"] == ("disabled", "gone")


def test_disabling_by_the_job_has_an_audit_entry_without_right(connection, rows, role):
    connection.execute("delete from audit_log")
    connection.execute(sql.SQL("set role {}").format(role))
    assert endpoint_status.disable_active(connection, attempted("ep1", "unknown"), "gone") == ["ep1"]
    assert endpoint_status.disable_active(connection, attempted("ep1"), "failing") == []
    with pytest.raises(errors.RegistryUnavailable, match="permission denied"), connect.translated_errors():
        connection.execute(
            "insert into audit_log (key_id, action, entity, entity_id) values ('job', 'update', 'endpoint', 'ep2')"
        )
    connection.execute("reset role")
    [entry] = connection.execute("select * from audit_log").fetchall()
    assert (entry["key_id"], entry["login"], entry["customer_id"]) == ("job", "postgres", "c1")
    assert (entry["action"], entry["entity"], entry["entity_id"]) == ("update", "endpoint", "ep1")
    assert entry["before"] == {"status": "active", "disabled_reason": None}
    assert entry["after"] == {"status": "disabled", "disabled_reason": "gone"}
    assert rows()["ep1"] == ("disabled", "gone")


@pytest.mark.usefixtures("rows")
def test_an_undone_or_missed_disabling_has_no_audit_entry(connection):
    connection.execute("delete from audit_log")
    with connection.transaction(force_rollback=True):
        endpoint_status.disable_active(connection, attempted("ep1"), "gone")
    connection.execute("update endpoints set status = 'disabled' where endpoint_id = 'ep2'")  # somebody else, meanwhile
    assert endpoint_status.disable_active(connection, attempted("ep2"), "gone") == []
    assert connection.execute("select * from audit_log").fetchall() == []


def test_the_job_disables_once_postgres_is_available_again(own_postgres, ring):
    with connect.connect(settings.DatabaseSettings(url=own_postgres.url)) as opened:
        migrate.migrate(opened)
        applied(opened, ring, DOCUMENT)
    own_postgres.kill()
    stop = threading.Event()
    running = stages_disabling.EndpointDisabler(settings.Settings(database={"url": own_postgres.url}), stop)
    try:
        running.disable(attempted("ep1"), "gone")
        own_postgres.start()
        with connect.connect(settings.DatabaseSettings(url=own_postgres.url)) as opened:
            asked = "select disabled_reason from endpoints where endpoint_id = 'ep1' and status = 'disabled'"
            for _ in range(1000):
                if found := opened.execute(asked).fetchone():
                    break
                opened.execute("select pg_sleep(0.02)")
        assert found == {"disabled_reason": "gone"}
    finally:
        stop.set()
        running.close()
