"""An endpoint is disabled and enabled: by the job only when it is active, by the operator whatever it is."""

import pytest

from delivery import errors
from subscriptions_db import disabling, registry
from tests.integration.registry.documents import DOCUMENT, applied

pytestmark = pytest.mark.integration


@pytest.fixture
def rows(connection, ring):
    """Status and reason of each endpoint, as they are now."""
    applied(connection, ring, DOCUMENT)

    def read():
        return {key: (row["status"], row["disabled_reason"]) for key, row in registry.document(connection)["endpoint"].items()}

    return read


def test_the_job_disables_what_is_active_and_leaves_the_rest(connection, rows):
    connection.execute("update endpoints set status = 'paused' where endpoint_id = 'ep2'")
    assert disabling.disable_active(connection, ["ep2", "ep1", "unknown"], "gone") == ["ep1"]
    assert rows() == {"ep1": ("disabled", "gone"), "ep2": ("paused", None)}
    before = registry.revision(connection)
    assert disabling.disable_active(connection, ["ep1", "ep2"], "failing") == []
    assert rows()["ep1"] == ("disabled", "gone")
    assert registry.revision(connection) == before


def test_the_operator_disables_and_enables_whatever_the_status_is(connection, rows):
    connection.execute("update endpoints set status = 'paused' where endpoint_id = 'ep1'")
    disabling.disable(connection, "ep1", "asked for by the customer")
    assert rows()["ep1"] == ("disabled", "asked for by the customer")
    disabling.enable(connection, "ep1")
    assert rows()["ep1"] == ("active", None)


@pytest.mark.usefixtures("rows")
def test_what_is_said_twice_changes_nothing_the_second_time(connection):
    for do in (lambda: disabling.disable(connection, "ep1", "x"), lambda: disabling.enable(connection, "ep1")):
        do()
        before = registry.revision(connection)
        do()
        assert registry.revision(connection) == before


@pytest.mark.usefixtures("rows")
def test_an_endpoint_that_there_is_not_is_named(connection):
    with pytest.raises(errors.RegistrationError, match="nobody: there is no such endpoint"):
        disabling.enable(connection, "nobody")
