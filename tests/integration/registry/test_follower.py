"""A Postgres that answers late, or breaks off within a read, leaves what is known of the registry as it was, whole."""

import threading

import pytest

from delivery import settings
from delivery.stages import snapshot
from delivery.webhooks import guard
from subscriptions_db import apply, manifest
from tests.e2e.conftest import assert_eventually

pytestmark = pytest.mark.integration


@pytest.fixture
def follower(connection, database, ring, ring_key):
    """It knows one endpoint."""
    wanted = {"customers": [{"id": "c1"}], "endpoints": [{"id": "ep1", "customer": "c1", "url": "https://example.com/"}]}
    apply.apply(connection, manifest.check(wanted, guard.Guard()), ring)
    stop = threading.Event()
    document = {"database": {"url": database}, "keys": {"ring": {"k1": ring_key}}, "snapshot": {"poll_interval_s": 0.1}}
    following = snapshot.Follower(settings.Settings.model_validate(document), stop=stop)
    following.start()
    yield following
    stop.set()
    following._thread.join(30)


def hanging(connection):
    """The process ids of the follower's connections that wait within a read."""
    rows = connection.execute(
        "select pid from pg_stat_activity where application_name = 'fanout job' and wait_event_type = 'Lock'"
        " and datname = current_database()"
    )
    return [row["pid"] for row in rows]


def test_a_read_that_hangs_or_breaks_off_keeps_nobody_waiting_and_tells_nothing_of_what_it_had_read(
    follower, connection, other
):
    known = follower.current()
    with other.transaction():
        other.execute("lock table secrets in access exclusive mode")  # an endpoint's are read after the tenants
        with connection.transaction():
            connection.execute("insert into tenants (tenant_id) values ('t9')")
            connection.execute("update endpoints set url = 'https://example.com/moved'")
        [first] = assert_eventually(lambda: hanging(connection), bool)
        assert follower.current().revision == known.revision

        connection.execute("select pg_terminate_backend(%s)", [first])
        assert_eventually(lambda: hanging(connection), lambda pids: pids not in ([], [first]))
        assert (follower.current().revision, follower.current().changes) == (known.revision, None)

    assert_eventually(lambda: follower.current().revision, lambda revision: revision > known.revision)
    changes = follower.current().changes
    assert (list(changes.tenants), changes.endpoints["ep1"].url) == (["t9"], "https://example.com/moved")
