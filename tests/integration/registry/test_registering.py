"""A manifest becomes rows, once; rows become a snapshot; a secret stays sealed."""

import base64
import concurrent.futures
import pickle
import random

import pytest
from psycopg import sql

from delivery import errors, settings
from delivery.model import AuthKind, SubscriptionStatus, TenantStatus
from delivery.secret import Secret
from delivery.webhooks import guard
from delivery.webhooks.snapshot import updated
from fanout.local import stack
from subscriptions_db import apply, connect, keyring, manifest, migrate, registry, snapshot
from subscriptions_db.sql import query

pytestmark = pytest.mark.integration

GUARD = guard.Guard()
SIGNING = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
DOCUMENT = {
    "tenants": [{"id": 1}, {"id": 2, "sub_tenants": [100, {"id": 200, "name": "two"}]}, {"id": 3, "status": "suspended"}],
    "customers": [{"id": "c1"}],
    "endpoints": [
        {"id": "ep1", "customer": "c1", "url": "https://example.com/1", "signing_secrets": [SIGNING],
         "auth": {"kind": "basic", "username": "ann", "secret": "hunter2"}},
        {"id": "ep2", "customer": "c1", "url": "https://example.com/2"},
    ],
    "subscriptions": [
        {"id": "s1", "endpoint": "ep1", "event_type": "order.*", "everything": True, "except_tenants": [2]},
        {"id": "s2", "endpoint": "ep2", "event_type": "order", "tenants": [1], "sub_tenants": {2: [100]},
         "filter": {"data": {"a": [1]}}, "status": "paused"},
    ],
}  # fmt: skip


UNREADABLE = ['{"a": ' + "[" * 3000 + "]" * 3000 + "}", '{"a": [1e5000]}']
"""jsonb takes both; Python's parser takes neither."""
RING_KEY = stack.new_key()


@pytest.fixture
def ring():
    return keyring.KeyRing.from_settings(settings.Keys(ring={"k1": RING_KEY}))


@pytest.fixture
def connection(database):
    with connect.connect(settings.Database(url=database)) as opened:
        migrate.migrate(opened)
        yield opened


@pytest.fixture
def other(database):
    """Somebody else, with plain SQL."""
    with connect.connect(settings.Database(url=database)) as opened:
        yield opened


@pytest.fixture
def in_background():
    with concurrent.futures.ThreadPoolExecutor(max_workers=1) as executor:
        yield executor.submit


def wait_for_a_waiter(connection):
    """Return when another session of this database waits for a lock."""
    waiting = "select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    for _ in range(1000):
        if connection.execute(waiting).fetchone() is not None:
            return
        connection.execute("select pg_sleep(0.01)")
    pytest.fail("nobody waits")


def applied(connection, ring, document, **options):
    return apply.apply(connection, manifest.check(document, GUARD), ring, **options)


def summary(result):
    return [(change.action, change.kind, change.id) for change in result.changes]


class TestApply:
    def test_the_first_time_everything_is_made_and_a_missing_signing_secret_is_shown_once(self, connection, ring):
        result = applied(connection, ring, DOCUMENT)
        assert summary(result) == [
            *[("create", "tenant", row_id) for row_id in ("1", "2", "3")],
            ("create", "customer", "c1"),
            *[("create", "endpoint", row_id) for row_id in ("ep1", "ep2")],
            *[("create", "subscription", row_id) for row_id in ("s1", "s2")],
        ]
        assert list(result.new_secrets) == ["ep2"]
        assert result.new_secrets["ep2"] not in repr(result)

    def test_the_second_time_nothing_changes(self, connection, ring):
        applied(connection, ring, DOCUMENT)
        before = registry.revision(connection)
        assert applied(connection, ring, DOCUMENT) == apply.Result(changes=())
        assert registry.revision(connection) == before

    def test_only_what_differs_is_changed_and_said(self, connection, ring):
        applied(connection, ring, DOCUMENT)
        moved = DOCUMENT["endpoints"][0] | {"url": "https://example.com/moved"}
        result = applied(connection, ring, DOCUMENT | {"endpoints": [moved, DOCUMENT["endpoints"][1]]})
        [change] = result.changes
        assert (change.action, change.id) == ("update", "ep1")
        assert change.fields == (("url", "https://example.com/1", "https://example.com/moved"),)

    def test_a_changed_secret_is_a_difference_that_does_not_show_it(self, connection, ring):
        applied(connection, ring, DOCUMENT)
        changed = DOCUMENT["endpoints"][0] | {"auth": {"kind": "basic", "username": "ann", "secret": "tiger"}}
        result = applied(connection, ring, {"endpoints": [changed]})
        assert summary(result) == [("update", "endpoint", "ep1")]
        assert "tiger" not in str(result.changes)
        read = snapshot.read_full(connection, ring, GUARD)
        assert read.endpoints["ep1"].auth.secret == Secret(b"tiger")

    def test_a_dry_run_tells_the_differences_and_makes_none(self, connection, ring):
        tried = applied(connection, ring, DOCUMENT, dry_run=True)
        assert (len(tried.changes), tried.new_secrets) == (8, {})  # a secret that is stored nowhere must not be shown
        assert len(applied(connection, ring, DOCUMENT, dry_run=True).changes) == 8

    def test_what_the_document_does_not_name_stays_unless_pruning_is_asked_for(self, connection, ring):
        applied(connection, ring, DOCUMENT)
        fewer = DOCUMENT | {"endpoints": DOCUMENT["endpoints"][:1], "subscriptions": DOCUMENT["subscriptions"][:1]}
        assert summary(applied(connection, ring, fewer)) == []
        assert summary(applied(connection, ring, fewer, prune=True)) == [
            ("delete", "subscription", "s2"),
            ("delete", "endpoint", "ep2"),
        ]

    def test_a_reference_to_nothing_is_named_and_nothing_is_written(self, connection, ring):
        broken = DOCUMENT | {"subscriptions": [DOCUMENT["subscriptions"][0] | {"endpoint": "nobody"}]}
        with pytest.raises(errors.RegistrationError, match=r"subscriptions\[0\].endpoint: there is no endpoint nobody"):
            applied(connection, ring, broken)
        assert registry.revision(connection) == 0

    def test_an_endpoint_does_not_go_to_another_customer(self, connection, ring):
        applied(connection, ring, DOCUMENT)
        moved = {"customers": [{"id": "c2"}], "endpoints": [DOCUMENT["endpoints"][0] | {"customer": "c2"}]}
        with pytest.raises(errors.RegistrationError, match=r"endpoints\[0\].customer: ep1 is an endpoint of c1"):
            applied(connection, ring, moved)

    def test_a_signing_secret_that_is_missing_is_made(self, connection, ring):
        applied(connection, ring, DOCUMENT)
        connection.execute("delete from secrets where endpoint_id = 'ep2'")
        result = applied(connection, ring, DOCUMENT)
        assert summary(result) == [("update", "endpoint", "ep2")]
        assert list(result.new_secrets) == ["ep2"]
        assert snapshot.read_full(connection, ring, GUARD).quarantined() == {}

    def test_a_secret_that_does_not_open_stays_unless_the_document_has_another(self, connection, ring):
        applied(connection, ring, DOCUMENT)
        connection.execute("update secrets set key_id = 'lost'")
        assert summary(applied(connection, ring, DOCUMENT)) == [("update", "endpoint", "ep1")]
        assert list(snapshot.read_full(connection, ring, GUARD).quarantined()) == ["endpoint ep2"]

    def test_an_expired_secret_does_not_stand_in_the_way_of_a_new_one(self, connection, ring):
        applied(connection, ring, DOCUMENT)
        connection.execute("update secrets set expires_at = now() where purpose = 'auth'")
        applied(connection, ring, DOCUMENT)
        assert snapshot.read_full(connection, ring, GUARD).quarantined() == {}

    @pytest.mark.parametrize("pattern", UNREADABLE)
    def test_a_filter_that_no_parser_takes_is_replaced(self, connection, ring, pattern):
        applied(connection, ring, DOCUMENT)
        connection.execute("update filters set pattern = %s::jsonb", [pattern])
        [change] = applied(connection, ring, DOCUMENT).changes
        assert change.fields[0][2] == {"data": {"a": [1]}}
        assert snapshot.read_full(connection, ring, GUARD).quarantined() == {}

    def test_text_that_postgres_cannot_hold_is_refused(self, connection, ring):
        with pytest.raises(errors.RegistrationError, match="NUL"):
            applied(connection, ring, {"customers": [{"id": "c1", "name": "a\0"}]})

    def test_what_plain_sql_commits_between_two_reads_is_seen_whole_or_not_at_all(self, connection, ring, other, in_background):
        """A subscription without its endpoint ended the command with a KeyError."""
        applied(connection, ring, DOCUMENT)
        with other.transaction():
            other.execute("lock table subscriptions")  # the reader has the endpoints by then, and waits
            other.execute("insert into endpoints (endpoint_id, customer_id, url) values ('ep9', 'c1', 'https://example.com/')")
            other.execute("insert into subscriptions values ('s9', 'ep9', 'c1', '*', 'everything')")
            running = in_background(lambda: applied(connection, ring, DOCUMENT | {"tenants": [{"id": 9}]}, prune=True))
            wait_for_a_waiter(other)
        assert summary(running.result()) == [("create", "tenant", "9")]

    def test_two_at_once_run_one_after_the_other_and_the_second_sees_what_the_first_did(
        self, connection, ring, other, in_background
    ):
        other.execute(query("apply_lock"))
        running = in_background(lambda: applied(connection, ring, {"tenants": [{"id": 1}, {"id": 2}]}))
        wait_for_a_waiter(other)
        other.execute("insert into tenants values ('1')")
        other.execute(query("apply_unlock"))
        assert summary(running.result()) == [("create", "tenant", "2")]

    def test_a_row_that_plain_sql_changes_meanwhile_is_not_overwritten(self, connection, ring, other, in_background):
        applied(connection, ring, DOCUMENT)
        with other.transaction():
            other.execute("update tenants set name = 'theirs' where tenant_id = '1'")
            running = in_background(lambda: applied(connection, ring, {"tenants": [{"id": 1, "name": "ours"}]}))
            wait_for_a_waiter(other)
        with pytest.raises(errors.RegistryUnavailable, match="changed by somebody else meanwhile: do it again"):
            running.result()


class TestSnapshot:
    def test_it_says_what_was_registered(self, connection, ring):
        applied(connection, ring, DOCUMENT)
        read = snapshot.read_full(connection, ring, GUARD)
        assert read.tenants == {"1": TenantStatus.ACTIVE, "2": TenantStatus.ACTIVE, "3": TenantStatus.SUSPENDED}
        one, two = read.subscriptions["s1"], read.subscriptions["s2"]
        assert (one.scope.everything, one.scope.without_tenants) == (True, {"2"})
        assert (two.scope.tenants, two.scope.sub_tenants, two.status) == (("1",), (("2", "100"),), SubscriptionStatus.PAUSED)
        assert two.filter_pattern == {"data": {"a": [1]}}
        endpoint = read.endpoints["ep1"]
        assert (endpoint.auth.kind, endpoint.auth.username, endpoint.auth.secret) == (AuthKind.BASIC, "ann", Secret(b"hunter2"))
        assert endpoint.signing_keys == (Secret(b"0123456789abcdef0123456789abcdef"),)
        assert read.quarantined() == {}

    def test_the_newest_signing_key_comes_first_while_a_rotation_lasts(self, connection, ring):
        applied(connection, ring, DOCUMENT)
        newer = "whsec_" + "QUFB" * 8
        rotated = DOCUMENT["endpoints"][0] | {"signing_secrets": [newer, SIGNING]}
        applied(connection, ring, {"endpoints": [rotated]})
        keys = snapshot.read_full(connection, ring, GUARD).endpoints["ep1"].signing_keys
        assert [key.reveal() for key in keys] == [b"A" * 24, b"0123456789abcdef0123456789abcdef"]

    def test_an_expired_signing_key_signs_no_more(self, connection, ring):
        applied(connection, ring, DOCUMENT | {"endpoints": [DOCUMENT["endpoints"][0]], "subscriptions": []})
        connection.execute("update secrets set expires_at = now() - interval '1 s' where purpose = 'signing'")
        assert "no signing secret" in snapshot.read_full(connection, ring, GUARD).quarantined()["endpoint ep1"]

    @pytest.mark.parametrize(
        ("statement", "row", "fault"),
        [
            ("delete from secrets where endpoint_id = 'ep1' and purpose = 'signing'", "endpoint ep1", "no signing secret"),
            ("delete from secrets where endpoint_id = 'ep1' and purpose = 'auth'", "endpoint ep1", "basic needs a secret"),
            ("update endpoints set url = 'https://127.0.0.1/' where endpoint_id = 'ep1'", "endpoint ep1", "not allowed"),
            ("update secrets set key_id = 'lost' where endpoint_id = 'ep1'", "endpoint ep1", "key lost is not in keys.ring"),
            ('update filters set pattern = \'{"data": {"a": [{"no": 1}]}}\'', "subscription s2", "filter"),
        ],
    )
    def test_a_row_that_cannot_be_used_is_quarantined_and_the_others_are_served(self, connection, ring, statement, row, fault):
        applied(connection, ring, DOCUMENT)
        connection.execute(statement)
        read = snapshot.read_full(connection, ring, GUARD)
        assert list(read.quarantined()) == [row]
        assert fault in read.quarantined()[row]
        assert "hunter2" not in str(read.quarantined())
        assert (len(read.endpoints), len(read.subscriptions)) == (2, 2)

    @pytest.mark.parametrize("pattern", UNREADABLE)
    def test_a_filter_that_no_parser_takes_does_not_spoil_the_read(self, connection, ring, pattern):
        """It ended the read with a RecursionError or a ValueError: nobody was served."""
        applied(connection, ring, DOCUMENT)
        connection.execute("update filters set pattern = %s::jsonb", [pattern])
        read = snapshot.read_full(connection, ring, GUARD)
        assert read.quarantined() == {"subscription s2": "filter: cannot be read as JSON"}
        assert pickle.loads(pickle.dumps(read)) == read

    def test_a_secret_that_expires_without_a_change_of_its_row_is_gone_with_the_next_revision(self, connection, ring):
        applied(connection, ring, DOCUMENT)
        base = snapshot.read_full(connection, ring, GUARD)
        with connection.transaction():
            connection.execute("set local session_replication_role = replica")  # no triggers: as if time had passed
            connection.execute("update secrets set expires_at = now() where endpoint_id = 'ep2'")
        connection.execute("update tenants set name = 'x' where tenant_id = '1'")
        changes = snapshot.read_changes(connection, ring, GUARD, since=base.revision)
        assert updated(base, changes) == snapshot.read_full(connection, ring, GUARD)
        assert list(updated(base, changes).quarantined()) == ["endpoint ep2"]

    @pytest.mark.parametrize("seed", range(5))
    def test_changes_on_top_of_a_snapshot_are_the_same_as_reading_it_again(self, connection, ring, seed):
        rng = random.Random(seed)
        applied(connection, ring, DOCUMENT)
        current = snapshot.read_full(connection, ring, GUARD)
        statements = [
            "update tenants set status = 'suspended' where tenant_id = '1'",
            "delete from tenants where tenant_id = '3'",
            "insert into tenants values ('4')",
            "update endpoints set status = 'paused' where endpoint_id = 'ep1'",
            "delete from secrets where endpoint_id = 'ep2'",
            "update subscriptions set event_type = 'user.*' where subscription_id = 's1'",
            "delete from scopes where tenant_id = '2'",
            "delete from filters",
            "insert into subscriptions values ('s3', 'ep1', 'c1', '*', 'selected')",
            "update subscriptions set subscription_id = 's9' where subscription_id = 's2'",
            "delete from endpoints where endpoint_id = 'ep2'",
            "delete from customers",
        ]
        for statement in rng.sample(statements, k=6):
            try:
                connection.execute(statement)
            except connect.psycopg.errors.IntegrityError:
                continue  # an earlier step took away what this one refers to
            changes = snapshot.read_changes(connection, ring, GUARD, since=current.revision)
            current = updated(current, changes)
            assert current == snapshot.read_full(connection, ring, GUARD)

    def test_nothing_changed_is_an_empty_change(self, connection, ring):
        applied(connection, ring, DOCUMENT)
        read = snapshot.read_full(connection, ring, GUARD)
        changes = snapshot.read_changes(connection, ring, GUARD, since=read.revision)
        assert (len(changes), changes.revision) == (0, read.revision)

    @pytest.mark.parametrize("since", [0, 10_000])
    def test_a_log_that_does_not_reach_back_asks_for_a_full_read(self, connection, ring, since):
        applied(connection, ring, DOCUMENT)
        connection.execute("delete from revisions where revision < 5")
        assert snapshot.read_changes(connection, ring, GUARD, since=since) is None


class TestSecrets:
    def test_no_table_holds_a_secret_in_the_clear(self, connection, ring):
        applied(connection, ring, DOCUMENT)
        every_row = "select to_jsonb(row)::text as line from {} row"
        tables = connection.execute("select tablename from pg_tables where schemaname = 'public'").fetchall()
        dump = "".join(
            row["line"]
            for table in tables
            for row in connection.execute(sql.SQL(every_row).format(sql.Identifier(table["tablename"])))
        )
        assert "https://example.com/1" in dump
        for secret in (b"hunter2", b"0123456789abcdef0123456789abcdef"):
            for form in (secret.decode(), secret.hex(), base64.b64encode(secret).decode()):
                assert form not in dump

    def test_a_sealed_secret_moved_to_another_row_does_not_open(self, connection, ring):
        applied(connection, ring, DOCUMENT)
        connection.execute(
            "update secrets set sealed = (select sealed from secrets where endpoint_id = 'ep2') "
            "where endpoint_id = 'ep1' and purpose = 'signing'"
        )
        read = snapshot.read_full(connection, ring, GUARD)
        assert list(read.quarantined()) == ["endpoint ep1"]

    def test_after_a_rotation_the_old_key_is_needed_no_more(self, connection):
        old, new = stack.new_key(), stack.new_key()
        applied(connection, keyring.KeyRing.from_settings(settings.Keys(ring={"old": old})), DOCUMENT)
        before = snapshot.read_full(connection, keyring.KeyRing.from_settings(settings.Keys(ring={"old": old})), GUARD)
        both = keyring.KeyRing.from_settings(settings.Keys(ring={"old": old, "new": new}, active="new"))
        assert keyring.rotate(connection, both) == 3
        assert keyring.rotate(connection, both) == 0
        after = snapshot.read_full(connection, keyring.KeyRing.from_settings(settings.Keys(ring={"new": new})), GUARD)
        assert after.endpoints == before.endpoints

    def test_a_secret_that_does_not_open_hinders_no_other_from_being_sealed_anew(self, connection, ring):
        applied(connection, ring, DOCUMENT)
        connection.execute("update secrets set key_id = 'lost' where endpoint_id = 'ep2'")
        new = keyring.KeyRing.from_settings(settings.Keys(ring={"k1": RING_KEY, "k2": stack.new_key()}, active="k2"))
        with pytest.raises(
            errors.SealError, match=r"sealed 2 secrets with k2, but 1 do not open: the signing secret of .* ep2"
        ):
            keyring.rotate(connection, new)
        used = connection.execute("select key_id from secrets order by 1").fetchall()
        assert [row["key_id"] for row in used] == ["k2", "k2", "lost"]
