"""The registry follower keeps its last complete snapshot while Postgres answers late or breaks off within a read.

A follower with a key ring that does not fit the registry does not start.
"""

import contextlib
import datetime as dt
import threading
import time

import prometheus_client
import pytest
from psycopg import conninfo, sql

from delivery import errors
from delivery.config import settings
from delivery.observability import metrics
from delivery.registry_model import SignatureScheme
from delivery.webhooks.http import guard
from fanout.admin import registry_commands
from subscriptions_db.following import lookup_source, registry_follower
from subscriptions_db.manifest import manifest
from subscriptions_db.registration import apply
from subscriptions_db.secrets import keyring
from subscriptions_db.snapshot import registry_reader
from tests.e2e.conftest import assert_eventually
from tests.support.relay import Relay

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def _registered(connection, ring):
    endpoints = [{"id": name, "customer": "c1", "url": "https://example.com/"} for name in ("ep1", "ep2")]
    apply.apply(connection, manifest.check({"customers": [{"id": "c1"}], "endpoints": endpoints}, guard.Guard()), ring)


def config(url, keys):
    document = {"database": {"url": url}, "keys": {"ring": keys}, "snapshot": {"poll_interval_s": 0.1}}
    return settings.Settings.model_validate(document)


@contextlib.contextmanager
def following(config, **bounds):
    stop = threading.Event()
    follower = registry_follower.Follower(config, stop=stop, **bounds)
    follower.start()
    yield follower
    stop.set()
    follower._thread.join(30)


@pytest.fixture
def follower(database, ring_key):
    with following(config(database, {"k1": ring_key})) as follower:
        yield follower


@pytest.fixture
def relay(connection):
    between = Relay(f"{connection.info.host}/.s.PGSQL.{connection.info.port}")
    yield between
    between.close()


def hanging(connection):
    """Return the process ids of the follower's connections that wait within a read."""
    rows = connection.execute(
        "select pid from pg_stat_activity where application_name = 'fanout job' and wait_event_type = 'Lock'"
        " and datname = current_database()"
    )
    return [row["pid"] for row in rows]


def test_a_read_that_hangs_or_breaks_off_leaves_the_snapshot(follower, connection, other):
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


def test_a_half_open_connection_is_replaced(connection, database, ring_key, relay):
    url = conninfo.make_conninfo(database, host="127.0.0.1", port=relay.port)
    with following(config(url, {"k1": ring_key}), half_open_ms=1_500) as follower:
        known = follower.current()
        try:
            assert relay.lose_all() == 1
        except PermissionError:
            pytest.skip("this kernel lets only root lose the packets of a connection")
        connection.execute("update endpoints set url = 'https://example.com/moved'")
        assert (follower.current().revision, follower.current().changes) == (known.revision, known.changes)
        assert_eventually(lambda: follower.current().revision, lambda revision: revision > known.revision, within_s=20)


def test_a_large_change_is_followed_by_a_new_snapshot_at_once(follower, connection, ring):
    """Regression: the next micro-batches carried the large delta, and each left a file on the driver's disk."""
    known = follower.current()
    large = [{"id": f"large-{number}", "customer": "c1", "url": "https://example.com/"} for number in range(400)]
    headers = {f"X-{number}": "v" * 4000 for number in range(3)}
    document = {"endpoints": [endpoint | {"headers": headers} for endpoint in large]}
    apply.apply(connection, manifest.check(document, guard.Guard()), ring)
    current = assert_eventually(follower.current, lambda current: current.base_id != known.base_id)
    assert (current.changes, len(current.base.endpoints)) == (None, 402)
    connection.execute("update endpoints set url = 'https://example.com/moved' where endpoint_id = 'ep1'")
    later = assert_eventually(follower.current, lambda later: later.revision > current.revision)
    assert (later.base_id, list(later.changes.endpoints)) == (current.base_id, ["ep1"])


def test_a_full_read_that_fails_after_a_large_change_is_repeated(follower, connection, ring, monkeypatch):
    known, read_full, has_failed = follower.current(), registry_reader.read_full, threading.Event()

    def fail_once(*asked):
        if not has_failed.is_set():
            has_failed.set()
            raise errors.RegistryUnavailable("the connection broke")
        return read_full(*asked)

    monkeypatch.setattr(registry_reader, "read_full", fail_once)
    many = [{"id": f"many-{number}", "customer": "c1", "url": "https://example.com/"} for number in range(2_001)]
    apply.apply(connection, manifest.check({"endpoints": many}, guard.Guard()), ring)
    current = assert_eventually(follower.current, lambda current: current.base_id != known.base_id)
    assert (has_failed.is_set(), current.changes, len(current.base.endpoints)) == (True, None, 2_003)
    for _ in range(2):  # further looks, without another full read
        before = current
        current = assert_eventually(follower.current, lambda later: later.confirmed_at > before.confirmed_at)  # noqa: B023
    assert current.base_id == before.base_id


@pytest.mark.parametrize("key_id", ["k1", "another"])
def test_a_key_ring_that_opens_no_secret_is_refused_at_the_start(database, key_id):
    """Without the check, every endpoint would be quarantined, and its events would be skipped."""
    wrong = config(database, {key_id: keyring.generate()})
    with following(wrong) as follower, pytest.raises(errors.SettingsError, match="sealed with key k1"):
        follower.current()
    with pytest.raises(errors.SettingsError, match="sealed with key k1"):
        lookup_source.Lookups(wrong, stop=threading.Event()).source(None, "direct")


@pytest.mark.parametrize("key_id", ["k1", "another"])
def test_a_command_that_writes_secrets_refuses_a_key_ring_that_opens_none(database, connection, ring, key_id):
    """Regression: `fanout apply` sealed with another key of the same id, and the job quarantined the endpoints."""
    wrong = config(database, {key_id: keyring.generate()})
    wanted = manifest.check({"endpoints": [{"id": "ep3", "customer": "c1", "url": "https://example.com/"}]}, guard.Guard())
    with pytest.raises(errors.SettingsError, match="sealed with key k1"):
        registry_commands.apply_manifest(wrong, wanted)
    with pytest.raises(errors.SettingsError, match="sealed with key k1"):
        registry_commands.rotate_secret(wrong, "ep1", scheme=SignatureScheme.HMAC, overlap=dt.timedelta())
    assert registry_reader.read_full(connection, ring, guard.Guard()).quarantined() == {}


@pytest.mark.parametrize(
    "statement",
    [
        "delete from revisions where revision = %s",
        "update revisions set changed_at = changed_at + interval '1 s', entity_id = 'ep2' where revision = %s",
    ],
)
def test_a_follower_drops_changes_that_postgres_lost(follower, connection, statement):
    """Regression: after a failover to a standby that lacked the last changes, the job kept them until it restarted.

    The standby skips the number of the lost change, or uses it for another change.
    """
    known = follower.current()
    connection.execute("update endpoints set url = 'https://example.com/lost' where endpoint_id = 'ep1'")
    lost = assert_eventually(follower.current, lambda current: current.revision > known.revision)
    with connection.transaction():  # the rows of a standby that lacks the change, and has another one
        connection.execute("set local session_replication_role = replica")  # without triggers, and so without a revision
        connection.execute("update endpoints set url = 'https://example.com/' where endpoint_id = 'ep1'")
        connection.execute(statement, [lost.revision])
        connection.execute("set local session_replication_role = origin")
        connection.execute("update endpoints set url = 'https://example.com/later' where endpoint_id = 'ep2'")
    current = assert_eventually(follower.current, lambda current: current.revision > lost.revision)
    assert (current.base_id != lost.base_id, current.changes) == (True, None)
    assert [current.base.endpoints[name].url for name in ("ep1", "ep2")] == [
        "https://example.com/",
        "https://example.com/later",
    ]


def test_the_job_reads_times_whatever_style_the_database_has(connection, database, ring_key):
    """Regression: the time of a change could not be parsed, so the job never delivered, and asked for maintainers."""
    style = sql.SQL("alter database {} set datestyle = 'German'").format(sql.Identifier(connection.info.dbname))
    connection.execute(style)
    with following(config(database, {"k1": ring_key})) as follower:
        assert_eventually(lambda: follower.newest, lambda newest: newest is not None and newest.changed_at is not None)


def test_the_registry_has_no_age_before_postgres_has_confirmed_it(database, ring_key):
    """Regression: its time was 0 until the first answer, so the alert FanoutRegistryAway fired at the start of a job."""

    def confirmed_s():
        return prometheus_client.REGISTRY.get_sample_value("fanout_registry_confirmed_timestamp_seconds", {"process": "driver"})

    metrics.REGISTRY_CONFIRMED.clear()
    began_s = time.time()
    lookups = lookup_source.Lookups(config(database, {"k1": ring_key}), stop=threading.Event())
    assert confirmed_s() is None
    lookups.source(None, "direct")
    assert confirmed_s() >= began_s
    metrics.REGISTRY_CONFIRMED.clear()
    with following(config(database, {"k1": ring_key})):
        assert_eventually(confirmed_s, lambda at_s: at_s is not None and at_s >= began_s)


def test_the_reason_of_a_pause_names_the_fault_of_the_last_read(database, connection, ring_key):
    connection.execute("alter table migrations rename to elsewhere")
    with following(config(database, {"k1": ring_key})) as follower:
        lacks = "the registry has no tables yet, and nothing was changed: run `fanout db migrate`"
        fault = f"the registry has not been read yet: {lacks}"
        assert_eventually(follower.pause_reason, lambda reason: reason == fault)
        connection.execute("alter table elsewhere rename to migrations")
        assert_eventually(follower.pause_reason, lambda reason: reason is None)


def test_a_single_secret_that_does_not_open_is_no_obstacle(connection, database, ring_key):
    connection.execute("update secrets set sealed = sealed || 'x'::bytea where endpoint_id = 'ep1'")
    with following(config(database, {"k1": ring_key})) as follower:
        assert {name for name, row in follower.current().base.endpoints.items() if row.fault} == {"ep1"}
