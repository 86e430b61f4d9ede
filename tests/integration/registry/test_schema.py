"""Constraints and triggers in Postgres keep the registry consistent, also for writers with plain SQL."""

import uuid

import psycopg
import pytest
from psycopg import sql

from delivery import errors
from delivery.config import settings
from subscriptions_db.postgres import connect, migrate

pytestmark = pytest.mark.integration

GOOD = """
insert into tenants values ('t1'), ('t2');
insert into sub_tenants values ('t2', '100');
insert into customers values ('c1'), ('c2');
insert into endpoints (endpoint_id, customer_id, url) values ('ep1', 'c1', 'https://example.com/'), ('ep2', 'c2', 'https://example.com/');
insert into subscriptions values ('s1', 'ep1', 'c1', 'order.*', 'selected'), ('s2', 'ep1', 'c1', '*', 'everything');
insert into scopes values ('s1', 'selected', 'include', 't1', null), ('s1', 'selected', 'include', 't2', '100');
insert into filters values ('s1', '{"data": {"a": [1]}}');
"""


@pytest.fixture
def connection(database):
    with connect.connect(settings.DatabaseSettings(url=database)) as opened:
        opened.execute(GOOD)
        yield opened


@pytest.mark.parametrize(
    "statement",
    [
        "insert into tenants values ('')",
        "insert into tenants values ('a b')",
        "insert into tenants values (repeat('x', 129))",
        "insert into tenants values ('t3', '', 'sleeping')",
        "insert into sub_tenants values ('unknown', '1')",
        "insert into endpoints (endpoint_id, customer_id, url) values ('e', 'unknown', 'https://example.com/')",
        "insert into endpoints (endpoint_id, customer_id, url) values ('e', 'c1', 'ftp://example.com/')",
        "insert into endpoints (endpoint_id, customer_id, url) values ('e', 'c1', 'https://a b/')",
        "insert into endpoints (endpoint_id, customer_id, url) values ('e', 'c1', 'https://' || repeat('x', 2048))",
        "update endpoints set status = 'broken'",
        "update endpoints set batch_max_events = 0",
        "update endpoints set batch_max_events = 10001",
        "update endpoints set batch_max_wait_s = 0",
        "update endpoints set batch_max_wait_s = 'NaN'",
        "update endpoints set batch_max_wait_s = 86401",
        "update endpoints set batch_max_bytes = 1000",
        "update endpoints set batch_max_bytes = 10485761",
        "update endpoints set batch_gzip = null",
        "update endpoints set retry_schedule_s = '{0}'",
        "update endpoints set retry_schedule_s = '{5, 604801}'",
        "update endpoints set retry_schedule_s = '{5, null}'",
        "update endpoints set retry_schedule_s = '{5, NaN}'",
        "update endpoints set retry_schedule_s = '{{1, 2}, {3, 4}}'",
        "update endpoints set retry_schedule_s = array_fill(1, array[51])",
        "update endpoints set retry_max_age_s = 0",
        "update endpoints set retry_max_age_s = 2592001",
        "update endpoints set retry_timeout_s = 0",
        "update endpoints set retry_timeout_s = 'NaN'",
        "update endpoints set retry_timeout_s = 61",
        "update endpoints set order_by = ''",
        "update endpoints set order_by = 'a..b'",
        "update endpoints set order_by = 'a b'",
        "update endpoints set order_by = repeat('x', 256)",
        """insert into endpoints (endpoint_id, customer_id, url, mode, order_by)
           values ('e', 'c1', 'https://example.com/', 'batch', 'id')""",
        "update endpoints set disabled_reason = 'gone'",
        "update endpoints set disabled_at = now()",
        "update endpoints set status = 'disabled', disabled_reason = ''",
        "update endpoints set mode = 'batch'",
        """insert into endpoints (endpoint_id, customer_id, url, mode, content_mode)
           values ('e', 'c1', 'https://example.com/', 'batch', 'cloudevents_binary')""",
        "update endpoints set mode = 'pigeon'",
        "update endpoints set auth_kind = 'basic'",
        "update endpoints set auth_kind = 'api_key'",
        "update endpoints set auth_username = 'ann'",
        "update endpoints set auth_kind = 'basic', auth_username = 'a:b'",
        "update endpoints set auth_kind = 'api_key', auth_header = E'x\\r\\ny'",
        "update endpoints set auth_kind = 'oauth2'",
        "update endpoints set auth_kind = 'oauth2', auth_client_id = 'us'",
        "update endpoints set auth_token_scope = 'a'",
        "update endpoints set auth_kind = 'oauth2', auth_client_id = 'us', auth_token_url = 'ftp://example.com/'",
        "update endpoints set auth_kind = 'oauth2', auth_client_id = 'u', auth_token_url = 'https://e/', auth_token_scope = ''",
        "update endpoints set content_mode = 'xml'",
        "update endpoints set payload = 'xml'",
        "update endpoints set headers = '[]'",
        "update endpoints set headers = '\"x\"'",
        "update endpoints set headers = '{\"X-A\": 1}'",
        "update endpoints set headers = '{\"X-A\": null}'",
        'update endpoints set headers = \'{"X-A": ["a"]}\'',
        'update endpoints set headers = \'{"X-A": {"a": "b"}}\'',
        'update endpoints set headers = \'{"X-A": "a\\r\\nb"}\'',
        'update endpoints set headers = \'{"X-A": "ä"}\'',
        'update endpoints set headers = \'{"X A": "a"}\'',
        'update endpoints set headers = \'{"": "a"}\'',
        "update endpoints set headers = jsonb_build_object('X-A', repeat('x', 16384))",
        "update endpoints set description = repeat('x', 2001)",
        "update endpoints set description = null",
        "update endpoints set metadata = '[]'",
        "update endpoints set metadata = '{\"a\": 1}'",
        'update endpoints set metadata = \'{"a:b": "1"}\'',
        "update endpoints set metadata = jsonb_build_object('a', repeat('x', 8192))",
        "update subscriptions set description = repeat('x', 2001)",
        "update subscriptions set metadata = '{\"a\": null}'",
        'update subscriptions set metadata = \'{"a b": "1"}\'',
        "update endpoints set tls_authorities = ''",
        "update endpoints set tls_authorities = repeat('x', 65537)",
        "update endpoints set tls_certificate = repeat('x', 49153)",
        "update endpoints set max_in_flight = 0",
        "update endpoints set max_per_second = 0",
        "update endpoints set max_per_second = 'NaN'",
        "insert into secrets values (gen_random_uuid(), 'ep1', 'c1', 'signing', 'k', repeat('x', 8193)::bytea)",
        "insert into secrets values (gen_random_uuid(), 'ep1', 'c1', 'tls_key', 'k', repeat('x', 16414)::bytea)",
        "insert into secrets values (gen_random_uuid(), 'ep1', 'c1', 'auth', 'k', repeat('x', 60)::bytea, now(), now())",
        "insert into secrets values (gen_random_uuid(), 'ep1', 'c2', 'signing', 'k', repeat('x', 60)::bytea)",
        "insert into secrets values (gen_random_uuid(), 'ep1', 'c1', 'whatever', 'k', repeat('x', 60)::bytea)",
        "insert into subscriptions values ('s9', 'ep1', 'c2', 'order', 'everything')",
        "insert into subscriptions values ('s9', 'unknown', 'c1', 'order', 'everything')",
        "insert into subscriptions values ('s9', 'ep1', 'c1', 'order*', 'everything')",
        "insert into subscriptions values ('s9', 'ep1', 'c1', 'order.*.x', 'everything')",
        "insert into subscriptions values ('s9', 'ep1', 'c1', '', 'everything')",
        "insert into subscriptions values ('s9', 'ep1', 'c1', 'order', 'some')",
        "insert into scopes values ('s2', 'everything', 'include', 't1', null)",
        "insert into scopes values ('s2', 'selected', 'include', 't1', null)",
        "insert into scopes values ('s1', 'selected', 'include', 't1', null)",
        "update subscriptions set scope = 'everything' where subscription_id = 's1'",
        "insert into filters values ('s2', '[1]')",
        "insert into filters values ('s2', jsonb_build_object('a', repeat('x', 20001)))",
    ],
)
def test_an_inconsistent_row_is_refused(connection, statement):
    with pytest.raises(psycopg.errors.IntegrityError):
        connection.execute(statement)


@pytest.mark.parametrize("schedule", [[], [0.5, 604_800.0], [1.0] * 50, None])
def test_a_retry_schedule_is_a_list_empty_or_null(connection, schedule):
    connection.execute("update endpoints set retry_schedule_s = %s", [schedule])


def test_a_disabled_endpoint_has_its_time_and_reason(connection):
    asked = "select status, disabled_reason, disabled_at = now() as is_now from endpoints where endpoint_id = 'ep1'"
    with connection.transaction():
        connection.execute("update endpoints set status = 'disabled'")  # as plain SQL and the versions before say it
        assert connection.execute(asked).fetchone() == {"status": "disabled", "disabled_reason": None, "is_now": True}
    connection.execute("update endpoints set status = 'disabled', disabled_reason = 'gone'")
    assert connection.execute(asked).fetchone() == {"status": "disabled", "disabled_reason": "gone", "is_now": False}
    connection.execute("update endpoints set status = 'paused'")
    assert connection.execute(asked).fetchone() == {"status": "paused", "disabled_reason": None, "is_now": None}


def test_headers_must_be_names_with_values(connection):
    connection.execute("update endpoints set headers = %s::jsonb", ['{"X-Team": "a \\"b\\" ~", "!#$%&\'*+.^_`|~0aZ-": "1"}'])


@pytest.mark.parametrize("pattern", ["order", "order.created", "order.*", "*", "com.example/order:v2.*", "a-b_c"])
def test_an_event_type_is_exact_or_a_prefix(connection, pattern):
    connection.execute("insert into subscriptions values ('s9', 'ep1', 'c1', %s, 'everything')", [pattern])


def test_deleting_a_tenant_does_not_widen_a_subscription(connection):
    connection.execute("insert into scopes values ('s2', 'everything', 'exclude', 't1', null)")
    connection.execute("delete from tenants where tenant_id = 't1'")
    kept = connection.execute("select subscription_id from scopes where tenant_id = 't1' order by 1").fetchall()
    assert [row["subscription_id"] for row in kept] == ["s1", "s2"]


@pytest.mark.parametrize("statement", ["update endpoints set customer_id = 'c2'", "update endpoints set endpoint_id = 'ep9'"])
def test_an_endpoint_with_a_secret_keeps_its_id_and_customer(connection, statement):
    connection.execute("insert into secrets values (gen_random_uuid(), 'ep1', 'c1', 'signing', 'k', repeat('x', 60)::bytea)")
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        connection.execute(statement + " where endpoint_id = 'ep1'")


def test_a_writer_with_another_search_path_can_commit(connection):
    before = revisions(connection)[-1]["revision"]
    with connection.transaction():
        connection.execute("set local search_path = ''")
        connection.execute("insert into public.tenants values ('t3')")
    [row] = [row for row in revisions(connection) if row["revision"] > before]
    assert (row["entity_id"], row["change"]) == ("t3", "insert")


def test_a_subscription_cannot_move_between_lanes(connection):
    connection.execute("insert into endpoints (endpoint_id, customer_id, url, mode) values ('eb', 'c1', 'https://e/', 'batch')")
    connection.execute("insert into endpoints (endpoint_id, customer_id, url) values ('ed', 'c1', 'https://e/')")
    with pytest.raises(psycopg.errors.CheckViolation, match="another mode"):
        connection.execute("update subscriptions set endpoint_id = 'eb' where subscription_id = 's2'")
    connection.execute("update subscriptions set endpoint_id = 'ed' where subscription_id = 's2'")


def test_truncate_is_refused(connection):
    with pytest.raises(psycopg.errors.RaiseException, match="would go unseen"):
        connection.execute("truncate filters")


def revisions(connection):
    return connection.execute("select revision, entity, entity_id, change from revisions order by revision").fetchall()


@pytest.mark.parametrize(
    ("statement", "logged"),
    [
        ("update tenants set status = 'suspended' where tenant_id = 't1'", ("tenant", "t1", "update")),
        ("delete from sub_tenants", ("tenant", "t2", "update")),
        ("update customers set name = 'x' where customer_id = 'c1'", ("customer", "c1", "update")),
        ("update endpoints set status = 'paused' where endpoint_id = 'ep1'", ("endpoint", "ep1", "update")),
        (
            "insert into secrets values (gen_random_uuid(), 'ep1', 'c1', 'signing', 'k', repeat('x', 60)::bytea)",
            ("endpoint", "ep1", "update"),
        ),
        ("delete from subscriptions where subscription_id = 's2'", ("subscription", "s2", "delete")),
        ("delete from scopes where tenant_id = 't1'", ("subscription", "s1", "update")),
        ("delete from filters", ("subscription", "s1", "update")),
    ],
)
def test_every_change_raises_the_revision_and_notifies(connection, database, statement, logged):
    before = revisions(connection)[-1]["revision"]
    with connect.connect(settings.DatabaseSettings(url=database)) as listener:
        listener.execute("listen fanout_registry")
        connection.execute(statement)
        assert [note.channel for note in listener.notifies(timeout=5, stop_after=1)] == ["fanout_registry"]
    rows = [row for row in revisions(connection) if row["revision"] > before]
    assert [(row["entity"], row["entity_id"], row["change"]) for row in rows] == [logged]


def changes_of(connection, *statements):
    """Return the entries in the log of changes of one transaction."""
    before = revisions(connection)[-1]["revision"]
    with connection.transaction():
        for statement in statements:
            connection.execute(statement)
    rows = [row for row in revisions(connection) if row["revision"] > before]
    return [(row["entity"], row["entity_id"], row["change"]) for row in rows]


@pytest.mark.parametrize(
    ("table", "key", "row_id"), [("endpoint", "endpoint_id", "ep1"), ("subscription", "subscription_id", "s1")]
)
def test_a_change_of_description_and_metadata_alone_has_no_revision(connection, table, key, row_id):
    """The job does not read descriptions and metadata."""
    described = f"update {table}s set description = 'x', metadata = '{{\"a\": \"b\"}}' where {key} = '{row_id}'"  # noqa: S608
    assert changes_of(connection, described) == []
    both = f"update {table}s set description = 'y', status = 'paused' where {key} = '{row_id}'"  # noqa: S608
    untouched = f"update {table}s set status = status where {key} = '{row_id}'"  # noqa: S608
    for statement in (both, untouched):
        assert changes_of(connection, statement) == [(table, row_id, "update")]


@pytest.mark.parametrize(("table", "row"), [("endpoints", "endpoint_id = 'ep1'"), ("subscriptions", "subscription_id = 's1'")])
def test_each_change_of_a_row_has_a_later_time(connection, table, row):
    times = [connection.execute(f"select created_at from {table} where {row}").fetchone()["created_at"]]  # noqa: S608
    change = f"update {table} set description = 'x' where {row} returning updated_at"  # noqa: S608
    with connection.transaction():
        times += [connection.execute(change).fetchone()["updated_at"] for _ in range(2)]
    connection.execute("set session_replication_role = replica")  # without triggers, as if a clock had been set back since
    connection.execute(f"update {table} set updated_at = '2100-01-01' where {row}")  # noqa: S608
    connection.execute("reset session_replication_role")
    times.append(connection.execute(change).fetchone()["updated_at"])
    assert times == sorted(set(times))
    assert times[-1].year == 2100


def test_a_row_is_logged_once_for_all_changed_parts(connection):
    assert changes_of(
        connection,
        "insert into subscriptions values ('s9', 'ep1', 'c1', 'order', 'selected')",
        "insert into scopes select 's9', 'selected', 'include', 't' || n from generate_series(1, 1000) n",
        "insert into filters values ('s9', '{}')",
    ) == [("subscription", "s9", "insert")]


def test_changed_parts_of_two_rows_log_both_rows(connection):
    logged = changes_of(
        connection,
        "insert into scopes values ('s2', 'everything', 'exclude', 't1'), ('s1', 'selected', 'exclude', 't1')",
        "delete from scopes where tenant_id = 't1'",
    )
    assert set(logged) == {("subscription", "s1", "update"), ("subscription", "s2", "update")}


def test_a_part_that_moves_logs_the_old_and_the_new_row(connection):
    connection.execute("insert into subscriptions values ('s9', 'ep1', 'c1', 'order', 'selected')")
    logged = changes_of(
        connection,
        "update filters set pattern = '{}'",
        "update filters set subscription_id = 's9'",
    )
    assert logged == [("subscription", "s1", "update"), ("subscription", "s1", "update"), ("subscription", "s9", "update")]


def test_a_change_undone_by_a_savepoint_is_logged_again(connection):
    before = revisions(connection)[-1]["revision"]
    with connection.transaction():
        with connection.transaction(force_rollback=True):
            connection.execute("delete from filters")
            connection.execute("set constraints all immediate")
        connection.execute("set constraints all deferred")
        connection.execute("delete from filters")
    [row] = [row for row in revisions(connection) if row["revision"] > before]
    assert (row["entity_id"], row["change"]) == ("s1", "update")


def test_each_transaction_logs_its_own_changes(connection):
    for _ in range(2):
        assert changes_of(connection, "update filters set pattern = '{}'") == [("subscription", "s1", "update")]


def test_the_log_of_changes_keeps_a_million_revisions(connection):
    connection.execute("select setval(pg_get_serial_sequence('revisions', 'revision'), 1004000)")
    connection.execute("insert into tenants values ('t3')")
    assert revisions(connection)[0]["revision"] < 10
    connection.execute("select setval(pg_get_serial_sequence('revisions', 'revision'), 1009998)")
    connection.execute("insert into tenants values ('t4'), ('t5'), ('t6')")
    kept = [(row["revision"], row["entity_id"]) for row in revisions(connection)]
    assert kept == [(1_004_001, "t3"), (1_009_999, "t4"), (1_010_000, "t5"), (1_010_001, "t6")]


def test_writers_need_no_right_on_the_log_and_cannot_replace_it(connection):
    role = sql.Identifier(f"writer_{uuid.uuid4().hex}")
    connection.execute(sql.SQL("create role {}").format(role))
    connection.execute(sql.SQL("grant insert on tenants to {}").format(role))
    try:
        assert changes_of(
            connection,
            sql.SQL("set local role {}").format(role),
            "create temporary table revisions (revision bigint, entity text, entity_id text, change text)",
            "insert into tenants values ('t3')",
            "set constraints all immediate",
            "drop table pg_temp.revisions",
            "set local role none",
        ) == [("tenant", "t3", "insert")]
    finally:
        connection.execute(sql.SQL("drop owned by {role}; drop role {role}").format(role=role))


def test_a_rolled_back_change_is_not_logged(connection):
    before = revisions(connection)
    with connection.transaction(force_rollback=True):
        connection.execute("update tenants set name = 'x'")
        connection.execute("set constraints all immediate")
        assert revisions(connection) != before
    assert revisions(connection) == before


def test_deleting_a_customer_logs_all_deleted_rows(connection):
    before = revisions(connection)[-1]["revision"]
    connection.execute("delete from customers where customer_id = 'c1'")
    logged = {(row["entity"], row["entity_id"]) for row in revisions(connection) if row["revision"] > before}
    assert logged == {("customer", "c1"), ("endpoint", "ep1"), ("subscription", "s1"), ("subscription", "s2")}


def test_the_order_of_revisions_is_the_order_of_commits(connection, database):
    """The transaction that writes first commits last. Its revision must be the higher one, or a reader could miss it."""
    with connect.connect(settings.DatabaseSettings(url=database)) as other:
        with connection.transaction():
            connection.execute("update tenants set name = 'slow' where tenant_id = 't1'")
            other.execute("update tenants set name = 'fast' where tenant_id = 't2'")
            seen = revisions(other)[-1]
        last = revisions(other)[-1]
    assert (seen["entity_id"], last["entity_id"]) == ("t2", "t1")
    assert last["revision"] > seen["revision"]


def test_a_second_migration_does_nothing_and_changes_are_noticed(connection):
    assert migrate.migrate(connection) == []
    migrate.require_current(connection)
    changed = [migrate.Migration(name="0001_registry", statements="select 1")]
    with pytest.raises(errors.RegistryOutdated, match="changed after it was applied"):
        migrate.migrate(connection, changed)


def test_a_database_without_tables_gets_a_hint_to_migrate(empty_database):
    with (
        connect.connect(settings.DatabaseSettings(url=empty_database)) as empty,
        pytest.raises(errors.RegistryOutdated, match="fanout db migrate"),
    ):
        migrate.require_current(empty)


def test_an_unreachable_postgres_is_one_line_without_url():
    with (
        pytest.raises(errors.RegistryUnavailable) as away,
        connect.connect(settings.DatabaseSettings(url="postgresql://u:hunter2@127.0.0.1:1/x")),
    ):
        pass
    assert "hunter2" not in str(away.value)
    assert away.value.__cause__ is None
