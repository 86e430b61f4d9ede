"""A registry in use is migrated to the next version of the schema, and the previous version still works."""

import datetime as dt
import uuid

import psycopg
import pytest
from typer.testing import CliRunner

from delivery import errors
from delivery.config import settings
from delivery.registry_model import Batching, ContentMode, Retrying
from delivery.secret import Secret
from delivery.webhooks.http import guard
from fanout.cli import main
from subscriptions_db.archive.ingest import partitions
from subscriptions_db.postgres import connect, migrate
from subscriptions_db.registration import registered_rows
from subscriptions_db.secrets import keyring
from subscriptions_db.snapshot import registry_reader
from tests.integration.registry import apartness
from tests.support import builders

pytestmark = pytest.mark.integration

GUARD = guard.Guard()
ROWS = """
insert into tenants values ('t1');
insert into customers values ('c1');
insert into endpoints (endpoint_id, customer_id, url, auth_kind) values
    ('ep1', 'c1', 'https://example.com/1', 'none'), ('ep2', 'c1', 'https://example.com/2', 'bearer');
insert into subscriptions values ('s1', 'ep1', 'c1', 'order.*', 'selected');
insert into scopes values ('s1', 'selected', 'include', 't1', null);
"""
# Statements of version 0001's code. They must work for as long as jobs and commands of that version may run.
PUT_ENDPOINT = """
insert into endpoints (endpoint_id, customer_id, url, mode, status, auth_kind, auth_username, auth_header)
values (%(id)s, 'c1', %(url)s, 'direct', 'active', 'none', null, null)
on conflict (endpoint_id) do update set url = excluded.url
"""
PUT_SECRET = """
insert into secrets (secret_id, endpoint_id, customer_id, purpose, key_id, sealed)
values (%(secret_id)s, %(endpoint_id)s, %(customer_id)s, %(purpose)s, %(key_id)s, %(sealed)s)
"""
READ_SECRETS = """
select secret_id, endpoint_id, customer_id, purpose, key_id, sealed from secrets
where expires_at is null or expires_at > now() order by created_at desc, secret_id
"""
READ_CHANGES = """
select entity, entity_id from revisions where revision > %(since)s
union
select 'endpoint', endpoint_id from secrets
where expires_at <= now()
  and expires_at > coalesce((select changed_at from revisions where revision = %(since)s), '-infinity')
"""


@pytest.fixture
def before(empty_database, ring):
    """Yield a registry of migration 0001 with two endpoints and their secrets, one of them with an expiry set by SQL."""
    with connect.connect(settings.DatabaseSettings(url=empty_database)) as opened:
        migrate.migrate(opened, migrate.migrations()[:1])
        opened.execute(ROWS)
        for endpoint_id in ("ep1", "ep2"):
            opened.execute(PUT_SECRET, row_of_0001(ring, endpoint_id, "signing", builders.KEY.secret))
        opened.execute(PUT_SECRET, row_of_0001(ring, "ep2", "auth", Secret(b"token")))
        opened.execute("update secrets set expires_at = '2100-01-01' where purpose = 'auth'")
        yield opened


def row_of_0001(ring, endpoint_id, purpose, secret):
    place = {"secret_id": str(uuid.uuid4()), "endpoint_id": endpoint_id, "customer_id": "c1", "purpose": purpose}
    return place | {"key_id": ring.active, "sealed": ring.seal(secret, keyring.secret_row_of(place))}


def test_rows_of_the_previous_version_are_read_unchanged(before, ring):
    log = before.execute("select revision, entity_id from revisions").fetchall()
    assert migrate.migrate(before) == [migration.name for migration in migrate.migrations()[1:]]
    read = registry_reader.read_full(before, ring, GUARD)
    assert read.quarantined() == {}
    assert read.endpoints["ep1"] == builders.endpoint("ep1", url="https://example.com/1", retrying=Retrying())
    assert read.endpoints["ep2"].auth.secret == Secret(b"token")
    assert read.endpoints["ep2"].content_mode is ContentMode.STANDARD
    assert list(read.subscriptions) == ["s1"]
    rows = registered_rows.document(before)
    for row in (rows["endpoint"]["ep1"], rows["subscription"]["s1"]):
        assert (row["description"], row["metadata"], row["updated_at"]) == ("", {}, None)
    # A reader of before has missed nothing, and a running one reads on.
    assert before.execute("select revision, entity_id from revisions").fetchall()[: len(log)] == log
    assert registry_reader.read_changes(before, ring, GUARD, since=log[-1]["revision"]) is not None


def test_the_previous_version_still_registers_and_reads(before, ring):
    migrate.migrate(before)
    since = registry_reader.read_full(before, ring, GUARD).revision
    with before.transaction():
        before.execute(PUT_ENDPOINT, {"id": "ep3", "url": "https://example.com/3"})
        before.execute(PUT_SECRET, row_of_0001(ring, "ep3", "signing", builders.KEY.secret))
        before.execute(PUT_ENDPOINT, {"id": "ep1", "url": "https://example.com/moved"})
    changed = {(row["entity"], row["entity_id"]) for row in before.execute(READ_CHANGES, {"since": since})}
    assert changed == {("endpoint", "ep1"), ("endpoint", "ep3")}
    assert len(before.execute(READ_SECRETS).fetchall()) == 4
    read = registry_reader.read_changes(before, ring, GUARD, since=since)
    assert read.endpoints["ep3"] == builders.endpoint("ep3", url="https://example.com/3", retrying=Retrying())


def test_an_invalid_batch_setting_becomes_the_nearest_valid_one(before, ring):
    migrate.migrate(before, migrate.migrations()[:3])
    before.execute("update endpoints set mode = 'batch', content_mode = 'cloudevents_binary' where endpoint_id = 'ep1'")
    since = registered_rows.revision(before)
    migrate.migrate(before)
    read = registry_reader.read_changes(before, ring, GUARD, since=since).endpoints["ep1"]
    assert (read.content_mode, read.batching) == (ContentMode.CLOUDEVENTS_STRUCTURED, Batching())


def test_the_previous_version_keeps_columns_that_it_does_not_know(before, ring):
    migrate.migrate(before)
    before.execute("update endpoints set headers = '{\"X-Team\": \"a\"}', max_in_flight = 3 where endpoint_id = 'ep1'")
    before.execute(PUT_ENDPOINT, {"id": "ep1", "url": "https://example.com/moved"})
    read = registry_reader.read_full(before, ring, GUARD).endpoints["ep1"]
    assert (read.url, read.headers, read.max_in_flight) == ("https://example.com/moved", (("X-Team", "a"),), 3)


KEY = "insert into api_keys (key_id, customer_id, scope, digest) values ('fk_aaaaaaaaaaaa', 'c1', 'poller', sha256('a'))"
AS_BEFORE_0022 = "select set_config('role', 'fanout_api', true), set_config('fanout.customer_id', 'c1', true)"
"""The statements by which an API without limited keys begins a transaction."""


def test_existing_days_of_the_archive_and_keys_get_the_limits_of_keys(before):
    migrate.migrate(before, migrate.migrations()[:21])
    for kind in ("dead_letters", "attempts"):
        partitions.create(before, kind, dt.date(2026, 5, 10))
    before.execute(KEY)
    migrate.migrate(before)
    assert apartness.faults(before) == []
    [key] = before.execute("select endpoints, last_used_at, expires_at from api_keys").fetchall()
    assert set(key.values()) == {None}
    with before.transaction():
        before.execute(AS_BEFORE_0022)
        assert before.execute("select count(*) as rows from endpoints").fetchone() == {"rows": 2}


def test_a_role_that_archives_may_report_keys_and_quotas_and_reads_no_digest(before):
    migrate.migrate(before, migrate.migrations()[:25])
    role = f"archive_{uuid.uuid4().hex[:8]}"
    before.execute(f"create role {role}; grant insert on attempts to {role}")
    migrate.migrate(before)
    asked = "select has_column_privilege(%s, 'api_keys', %s, %s) as may"
    columns = (("expiry_told_at", "update"), ("expires_at", "select"), ("expires_at", "update"), ("digest", "select"))
    assert [before.execute(asked, [role, *column]).fetchone()["may"] for column in columns] == [True, True, False, False]
    asked = "select has_table_privilege(%s, %s, %s) as may"
    rights = (("reached_quotas", "insert"), ("idempotency_keys", "delete"), ("idempotency_keys", "select"))
    assert [before.execute(asked, [role, *right]).fetchone()["may"] for right in rights] == [True, True, False]
    before.execute(f"drop owned by {role}; drop role {role}")


WAITING = (
    "insert into operational_events (event_id, kind, endpoint_id, customer_id, at, data)"
    " values ('op_1', 'fanout.quota.reached', 't1', {customer}, now(), '{{}}')"
)


def test_the_previous_version_publishes_events_about_tenants(before):
    """Regression: their customer was null, and the archiver of the previous version encoded it and stopped, at each start."""
    migrate.migrate(before, migrate.migrations()[:33])
    before.execute(WAITING.format(customer="null"))
    migrate.migrate(before)
    asked = "select customer_id from operational_events order by number limit 1 for update skip locked"
    assert before.execute(asked).fetchone()["customer_id"].encode() == b""
    for customer in ("null", "'-'"):
        with pytest.raises(psycopg.IntegrityError):
            before.execute(WAITING.format(customer=customer))
    assert apartness.faults(before) == []


def test_a_prepared_statement_of_changed_columns_asks_for_a_new_connection(before, empty_database):
    """Regression: a migration changed the type of a column, and the archive of the previous version ended with a traceback."""
    statement = "select name from tenants"
    for _ in range(before.prepare_threshold + 1):
        before.execute(statement)
    with connect.connect(settings.DatabaseSettings(url=empty_database)) as other:
        other.execute("alter table tenants alter column name type varchar(200)")
        with pytest.raises(errors.RegistryUnavailable, match="a new connection can run it"), connect.translated_errors():
            before.execute(statement)
        other.execute(statement)


def test_another_feature_that_postgres_lacks_is_a_fault_of_the_code(before):
    with pytest.raises(psycopg.errors.FeatureNotSupported), connect.translated_errors():
        before.execute("select 1 from tenants union select 1 for update")


def test_a_migration_waits_for_a_table_without_making_others_wait(empty_database):
    """Regression: a migration waited for a long transaction, and every later statement on the table queued behind it."""
    wanted = [
        migrate.Migration(name="0001_one", statements="create table one (a int); create table two (a int)"),
        migrate.Migration(name="0002_both", statements="alter table one add b int; alter table two add b int"),
    ]
    with (
        connect.connect(settings.DatabaseSettings(url=empty_database)) as opened,
        connect.connect(settings.DatabaseSettings(url=empty_database)) as other,
    ):
        migrate.migrate(opened, wanted[:1])
        attempts = []

        def wait(_):
            attempts.append(other.execute("select * from one").fetchall())  # free between two attempts
            if len(attempts) == 2:
                other.execute("commit")
            return 0.0

        other.execute("begin; lock table two in access share mode")
        assert migrate.migrate(opened, wanted, wait=wait) == ["0002_both"]
    assert len(attempts) == 2


@pytest.mark.timeout(120)
def test_a_run_of_what_is_there_ends_without_tables(empty_database, tmp_path):
    """Regression: `fanout run --once` before `fanout db migrate` waited for ever."""
    file = tmp_path / "fanout.toml"
    file.write_text(f'[database]\nurl = "{empty_database}"\n[keys]\nring = {{k1 = "{keyring.generate()}"}}\n')
    ended = CliRunner().invoke(main.app, ["--config", str(file), "run", "--once"])
    assert isinstance(ended.exception, errors.RegistryOutdated)
    assert str(ended.exception).endswith("run `fanout db migrate`")
