"""A manifest becomes rows, once; rows become a snapshot; a secret stays sealed."""

import base64
import random

import pytest

from delivery import errors, settings
from delivery.model import AuthKind, SubscriptionStatus, TenantStatus
from delivery.secret import Secret
from delivery.webhooks import guard
from delivery.webhooks.snapshot import updated
from fanout.local import stack
from subscriptions_db import apply, connect, keyring, manifest, migrate, registry, snapshot

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


@pytest.fixture
def ring():
    return keyring.KeyRing.from_settings(settings.Keys(ring={"k1": stack.new_key()}))


@pytest.fixture
def connection(database):
    with connect.connect(settings.Database(url=database)) as opened:
        migrate.migrate(opened)
        yield opened


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
        assert len(applied(connection, ring, DOCUMENT, dry_run=True).changes) == 8
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


class TestSnapshot:
    def test_it_says_what_was_registered(self, connection, ring):
        applied(connection, ring, DOCUMENT)
        read = snapshot.read_full(connection, ring, GUARD)
        assert read.tenants == {"1": TenantStatus.ACTIVE, "2": TenantStatus.ACTIVE, "3": TenantStatus.SUSPENDED}
        one, two = read.subscriptions["s1"], read.subscriptions["s2"]
        assert (one.scope.everything, one.scope.without_tenants) == (True, {"2"})
        assert (two.scope.tenants, two.scope.sub_tenants, two.status) == ({"1"}, {("2", "100")}, SubscriptionStatus.PAUSED)
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
        every_table = "select query_to_xml('table ' || quote_ident(tablename), true, false, '')::text as rows from pg_tables "
        dump = "".join(row["rows"] for row in connection.execute(every_table + "where schemaname = 'public'"))
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

    @pytest.mark.parametrize(
        ("keys", "said"),
        [
            ({}, "keys.ring is empty"),
            ({"ring": {"a": "c2hvcnQ="}}, "keys.ring.a is not base64 of 32 bytes"),
            ({"ring": {"a": "%%%"}}, "keys.ring.a is not base64 of 32 bytes"),
            ({"ring": {"a": "A" * 43 + "=", "b": "A" * 43 + "="}}, "keys.active must name one of"),
            ({"ring": {"a": "A" * 43 + "="}, "active": "b"}, "keys.active must name one of"),
        ],
    )
    def test_a_wrong_key_ring_is_refused_before_anything_is_read(self, keys, said):
        with pytest.raises(errors.SettingsError, match=said):
            keyring.KeyRing.from_settings(settings.Keys(**keys))
