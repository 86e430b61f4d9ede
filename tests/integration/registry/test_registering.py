"""A manifest becomes rows, once; rows become a snapshot; a secret stays sealed."""

import base64
import datetime as dt
import pickle
import random

import pytest
from psycopg import sql

from delivery import errors, settings
from delivery.model import (
    Auth,
    AuthKind,
    ContentMode,
    DeliveryMode,
    Endpoint,
    EndpointStatus,
    SignatureScheme,
    SigningKey,
    SubscriptionStatus,
    TenantStatus,
    Tls,
)
from delivery.secret import Secret
from delivery.webhooks import guard
from delivery.webhooks.snapshot import updated
from fanout.local import stack
from subscriptions_db import apply, connect, keyring, manifest, registry, snapshot
from subscriptions_db.endpoint_secrets import Opened
from subscriptions_db.sql import query
from tests import addresses, builders, pki

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


ED25519 = "whsk_" + base64.b64encode(b"e" * 32).decode()
WHOLE = {
    "id": "whole", "customer": "c1", "url": "https://example.com/whole", "mode": "batch", "status": "paused",
    "content_mode": "cloudevents_binary", "headers": {"X-Team": "billing"}, "max_in_flight": 4, "max_per_second": 12.5,
    "auth": {"kind": "oauth2", "client_id": "us", "secret": "hunter2", "token_url": "https://login.example.com/",
             "token_scope": "hooks"},
    "tls": {"authorities": pki.certificate("authority"), "certificate": pki.certificate(), "key": pki.key()},
    "signing_secrets": [ED25519, SIGNING],
}  # fmt: skip
AS_READ = Endpoint(
    endpoint_id="whole", customer_id="c1", url="https://example.com/whole", mode=DeliveryMode.BATCH,
    status=EndpointStatus.PAUSED, content_mode=ContentMode.CLOUDEVENTS_BINARY, headers=(("X-Team", "billing"),),
    max_in_flight=4, max_per_second=12.5,
    auth=Auth(kind=AuthKind.OAUTH2, client_id="us", secret=Secret(b"hunter2"), token_url="https://login.example.com/",
              token_scope="hooks"),
    tls=Tls(authorities=pki.certificate("authority"), certificate=pki.certificate(), key=Secret(pki.key().encode())),
    signing_keys=(SigningKey(secret=Secret(b"e" * 32), scheme=SignatureScheme.ED25519), builders.KEY),
)  # fmt: skip
TOKEN_URL_WITHIN = """
update endpoints
set auth_kind = 'oauth2', auth_username = null, auth_client_id = 'us', auth_token_url = 'https://10.0.0.1/'
where endpoint_id = 'ep1'
"""
UNREADABLE = ['{"a": ' + "[" * 3000 + "]" * 3000 + "}", '{"a": [1e5000]}']
"""jsonb takes both; Python's parser takes neither."""


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

    def test_when_all_signing_secrets_have_expired_a_new_one_is_made(self, connection, ring):
        applied(connection, ring, DOCUMENT)
        connection.execute("update secrets set expires_at = now() where purpose = 'signing'")
        assert list(applied(connection, ring, DOCUMENT).new_secrets) == ["ep2"]
        assert snapshot.read_full(connection, ring, GUARD).quarantined() == {}
        assert connection.execute("select from secrets where expires_at is not null").fetchone() is None

    def test_every_field_of_an_endpoint_is_registered_read_and_shown_and_no_secret_is(self, connection, ring):
        applied(connection, ring, DOCUMENT)
        result = applied(connection, ring, {"endpoints": [WHOLE]})
        changed = [name for name, *_ in result.changes[0].fields]
        fields = registry.document(connection)["endpoint"]["whole"]
        assert changed == [name for name in fields if name not in {"auth_username", "auth_header"}]
        assert applied(connection, ring, {"endpoints": [WHOLE]}) == apply.Result(changes=())
        shown = str(result) + str(result.changes) + str(registry.document(connection))
        assert not any(secret in shown for secret in ("hunter2", SIGNING, ED25519, "PRIVATE"))
        read = snapshot.read_full(connection, ring, GUARD)
        assert (read.endpoints["whole"], read.quarantined()) == (AS_READ, {})

    def test_what_a_document_leaves_out_is_as_if_it_had_never_been_said(self, connection, ring):
        applied(connection, ring, DOCUMENT)
        applied(connection, ring, {"endpoints": [WHOLE]})
        plain = {"id": "whole", "customer": "c1", "url": WHOLE["url"], "signing_secrets": [SIGNING]}
        [change] = applied(connection, ring, {"endpoints": [plain]}).changes
        assert ("tls_key", "***", None) in change.fields
        read = snapshot.read_full(connection, ring, GUARD).endpoints["whole"]
        assert read == builders.endpoint("whole", url=WHOLE["url"])

    @pytest.mark.parametrize(
        "field", [{"auth": WHOLE["auth"] | {"secret": "tiger"}}, {"tls": {}}, {"signing_secrets": [ED25519]}], ids=str
    )
    def test_a_secret_of_any_purpose_can_be_replaced(self, connection, ring, field):
        applied(connection, ring, DOCUMENT)
        applied(connection, ring, {"endpoints": [WHOLE]})
        assert summary(applied(connection, ring, {"endpoints": [WHOLE | field]})) == [("update", "endpoint", "whole")]
        assert summary(applied(connection, ring, {"endpoints": [WHOLE | field]})) == []

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
        assert [key.secret for key in endpoint.signing_keys] == [Secret(b"0123456789abcdef0123456789abcdef")]
        assert read.quarantined() == {}

    def test_the_newest_signing_key_comes_first_while_a_rotation_lasts(self, connection, ring):
        applied(connection, ring, DOCUMENT)
        newer = "whsec_" + "QUFB" * 8
        rotated = DOCUMENT["endpoints"][0] | {"signing_secrets": [newer, SIGNING]}
        applied(connection, ring, {"endpoints": [rotated]})
        keys = snapshot.read_full(connection, ring, GUARD).endpoints["ep1"].signing_keys
        assert [key.secret.reveal() for key in keys] == [b"A" * 24, b"0123456789abcdef0123456789abcdef"]

    def test_an_expired_signing_key_signs_no_more(self, connection, ring):
        applied(connection, ring, DOCUMENT | {"endpoints": [DOCUMENT["endpoints"][0]], "subscriptions": []})
        connection.execute("update secrets set expires_at = now() - interval '1 s' where purpose = 'signing'")
        fault = "has no signing secret that has not expired"
        assert snapshot.read_full(connection, ring, GUARD).quarantined() == {"endpoint ep1": fault}

    def test_it_says_until_when_a_key_signs_so_that_it_ends_without_a_change(self, connection, ring):
        applied(connection, ring, DOCUMENT)
        connection.execute("update secrets set expires_at = '2100-01-01T00:00:00Z' where purpose = 'signing'")
        [key] = snapshot.read_full(connection, ring, GUARD).endpoints["ep1"].signing_keys
        assert key.expires_at_s == dt.datetime(2100, 1, 1, tzinfo=dt.UTC).timestamp()

    @pytest.mark.parametrize(
        ("statement", "row", "fault"),
        [
            ("delete from secrets where endpoint_id = 'ep1' and purpose = 'signing'", "endpoint ep1", "no signing secret"),
            ("delete from secrets where endpoint_id = 'ep1' and purpose = 'auth'", "endpoint ep1", "basic needs a secret"),
            ("update endpoints set url = 'https://127.0.0.1/' where endpoint_id = 'ep1'", "endpoint ep1", "not allowed"),
            ("update secrets set key_id = 'lost' where endpoint_id = 'ep1'", "endpoint ep1", "key lost is not in keys.ring"),
            ('update filters set pattern = \'{"data": {"a": [{"no": 1}]}}\'', "subscription s2", "filter"),
            (
                "update endpoints set headers = '{\"Host\": \"x\"}' where endpoint_id = 'ep1'",
                "endpoint ep1",
                "headers.Host: is set",
            ),
            (
                "update endpoints set tls_authorities = 'x' where endpoint_id = 'ep1'",
                "endpoint ep1",
                "tls.authorities: is no PEM",
            ),
            (
                "update endpoints set tls_certificate = 'x' where endpoint_id = 'ep1'",
                "endpoint ep1",
                "tls: certificate and key go",
            ),
            (TOKEN_URL_WITHIN, "endpoint ep1", "auth.token_url: the address is not allowed"),
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

    def test_a_row_of_plain_sql_that_leads_inside_is_quarantined_with_the_same_words_whatever_its_form(self, connection, ring):
        urls = {f"inside-{number}": addresses.url_of(host) for number, host in enumerate([*addresses.INSIDE, *addresses.NAMES])}
        endpoints = [{"id": row_id, "customer": "c1", "url": "https://example.com/"} for row_id in urls]
        applied(connection, ring, DOCUMENT | {"endpoints": [*DOCUMENT["endpoints"], *endpoints]})
        with connection.cursor() as cursor:
            cursor.executemany(
                "update endpoints set url = %s where endpoint_id = %s", [(url, row_id) for row_id, url in urls.items()]
            )
        quarantined = snapshot.read_full(connection, ring, GUARD).quarantined()
        assert quarantined.keys() == {f"endpoint {row_id}" for row_id in urls}
        assert set(quarantined.values()) == {"url: the address is not allowed: an endpoint is a public https address"}

    @pytest.mark.parametrize("pattern", UNREADABLE)
    def test_a_filter_that_no_parser_takes_does_not_spoil_the_read(self, connection, ring, pattern):
        """It ended the read with a RecursionError or a ValueError: nobody was served."""
        applied(connection, ring, DOCUMENT)
        connection.execute("update filters set pattern = %s::jsonb", [pattern])
        read = snapshot.read_full(connection, ring, GUARD)
        assert read.quarantined() == {"subscription s2": "filter: cannot be read as JSON"}
        assert pickle.loads(pickle.dumps(read)) == read

    @pytest.mark.parametrize(
        ("purpose", "secret", "fault"),
        [
            ("signing", b"x", "signing_secrets[0]: an HMAC key has 24 to 64 bytes"),
            ("signing_v1a", b"x" * 31, "signing_secrets[0]: an ed25519 key has 32 bytes"),
            ("tls_key", b"hunter2", "tls: certificate and key go together"),
        ],
    )
    def test_a_sealed_secret_that_is_no_key_quarantines_its_endpoint(self, connection, ring, purpose, secret, fault):
        applied(connection, ring, DOCUMENT)
        row = Opened(purpose=purpose, secret=Secret(secret)).to_row(ring, customer_id="c1", endpoint_id="ep1")
        connection.execute(query("put_secret"), row)
        assert snapshot.read_full(connection, ring, GUARD).quarantined() == {"endpoint ep1": fault}

    def test_a_value_that_only_a_later_version_knows_spoils_its_row_alone(self, connection, ring):
        applied(connection, ring, DOCUMENT)
        connection.execute("alter table endpoints drop constraint endpoints_auth_kind_check")
        connection.execute("update endpoints set auth_kind = 'kerberos', auth_username = null where endpoint_id = 'ep1'")
        assert list(snapshot.read_full(connection, ring, GUARD).quarantined()) == ["endpoint ep1"]

    def test_endpoints_share_the_text_of_their_certificates(self, connection, ring):
        def pickled(authorities):
            endpoints = [{"id": f"ep{n}", "customer": "c1", "url": "https://example.com/", "tls": {"authorities": pem}}
                         for n, pem in enumerate(authorities)]  # fmt: skip
            applied(connection, ring, {"customers": [{"id": "c1"}], "endpoints": endpoints})
            return len(pickle.dumps(snapshot.read_full(connection, ring, GUARD)))

        pem = pki.certificate() * 50
        assert pickled([pem, pem]) + len(pem) - pickled([pem, pem + "\n"]) < 100

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
        applied(connection, ring, {"endpoints": [WHOLE]})
        every_row = "select to_jsonb(row)::text as line from {} row"
        tables = connection.execute("select tablename from pg_tables where schemaname = 'public'").fetchall()
        dump = "".join(
            row["line"]
            for table in tables
            for row in connection.execute(sql.SQL(every_row).format(sql.Identifier(table["tablename"])))
        )
        assert "https://example.com/1" in dump
        for secret in (b"hunter2", b"0123456789abcdef0123456789abcdef", b"e" * 32, pki.key().splitlines()[1].encode()):
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

    def test_a_secret_is_no_key_of_another_scheme(self, connection, ring):
        applied(connection, ring, DOCUMENT)
        connection.execute("update secrets set purpose = 'signing_v1a' where endpoint_id = 'ep1' and purpose = 'signing'")
        assert "does not open" in snapshot.read_full(connection, ring, GUARD).quarantined()["endpoint ep1"]

    def test_after_a_rotation_the_old_key_is_needed_no_more(self, connection):
        old, new = stack.new_key(), stack.new_key()
        applied(connection, keyring.KeyRing.from_settings(settings.Keys(ring={"old": old})), DOCUMENT)
        before = snapshot.read_full(connection, keyring.KeyRing.from_settings(settings.Keys(ring={"old": old})), GUARD)
        both = keyring.KeyRing.from_settings(settings.Keys(ring={"old": old, "new": new}, active="new"))
        assert keyring.rotate(connection, both) == 3
        assert keyring.rotate(connection, both) == 0
        after = snapshot.read_full(connection, keyring.KeyRing.from_settings(settings.Keys(ring={"new": new})), GUARD)
        assert after.endpoints == before.endpoints

    def test_a_secret_that_does_not_open_hinders_no_other_from_being_sealed_anew(self, connection, ring, ring_key):
        applied(connection, ring, DOCUMENT)
        connection.execute("update secrets set key_id = 'lost' where endpoint_id = 'ep2'")
        new = keyring.KeyRing.from_settings(settings.Keys(ring={"k1": ring_key, "k2": stack.new_key()}, active="k2"))
        with pytest.raises(
            errors.SealError, match=r"sealed 2 secrets with k2, but 1 do not open: the signing secret of .* ep2"
        ):
            keyring.rotate(connection, new)
        used = connection.execute("select key_id from secrets order by 1").fetchall()
        assert [row["key_id"] for row in used] == ["k2", "k2", "lost"]
