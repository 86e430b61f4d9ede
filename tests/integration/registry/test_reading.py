"""Rows of the registry become a snapshot, or changes of one; an unusable row is quarantined alone."""

import datetime as dt
import pickle
import random

import pytest

from delivery.registry_model import AuthKind, SubscriptionStatus, TenantStatus
from delivery.secret import Secret
from delivery.webhooks.routing.registry_snapshot import updated
from delivery.webhooks.state import pickling
from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query
from subscriptions_db.secrets.endpoint_secrets import EndpointSecret
from subscriptions_db.snapshot import registry_reader
from tests.benchmarks import population
from tests.integration.registry.documents import DOCUMENT, GUARD, SIGNING, UNREADABLE, applied
from tests.support import addresses, certificates

pytestmark = pytest.mark.integration

TOKEN_URL_WITHIN = """
update endpoints
set auth_kind = 'oauth2', auth_username = null, auth_client_id = 'us', auth_token_url = 'https://10.0.0.1/'
where endpoint_id = 'ep1'
"""


def test_a_snapshot_has_the_registered_rows(connection, ring):
    applied(connection, ring, DOCUMENT)
    read = registry_reader.read_full(connection, ring, GUARD)
    assert read.tenants == {"1": TenantStatus.ACTIVE, "2": TenantStatus.ACTIVE, "3": TenantStatus.SUSPENDED}
    first, second = read.subscriptions["s1"], read.subscriptions["s2"]
    assert (first.scope.everything, first.scope.without_tenants) == (True, {"2"})
    assert (second.scope.tenants, second.scope.sub_tenants, second.status) == (
        ("1",),
        (("2", "100"),),
        SubscriptionStatus.PAUSED,
    )
    assert second.filter_pattern == {"data": {"a": [1]}}
    endpoint = read.endpoints["ep1"]
    assert (endpoint.auth.kind, endpoint.auth.username, endpoint.auth.secret) == (AuthKind.BASIC, "ann", Secret(b"hunter2"))
    assert [key.secret for key in endpoint.signing_keys] == [Secret(b"0123456789abcdef0123456789abcdef")]
    assert read.quarantined() == {}


def test_the_newest_signing_key_comes_first_during_an_overlap(connection, ring):
    applied(connection, ring, DOCUMENT)
    newer = "whsec_" + "QUFB" * 8
    rotated = DOCUMENT["endpoints"][0] | {"signing_secrets": [newer, SIGNING]}
    applied(connection, ring, {"endpoints": [rotated]})
    keys = registry_reader.read_full(connection, ring, GUARD).endpoints["ep1"].signing_keys
    assert [key.secret.reveal() for key in keys] == [b"A" * 24, b"0123456789abcdef0123456789abcdef"]


def test_an_expired_signing_key_is_not_read(connection, ring):
    applied(connection, ring, DOCUMENT | {"endpoints": [DOCUMENT["endpoints"][0]], "subscriptions": []})
    connection.execute("update secrets set expires_at = now() - interval '1 s' where purpose = 'signing'")
    fault = "has no valid signing secret: run `fanout endpoints rotate-secret`"
    assert registry_reader.read_full(connection, ring, GUARD).quarantined() == {"endpoint ep1": fault}


def test_a_signing_key_is_read_with_its_expiry(connection, ring):
    applied(connection, ring, DOCUMENT)
    connection.execute("update secrets set expires_at = '2100-01-01T00:00:00Z' where purpose = 'signing'")
    [key] = registry_reader.read_full(connection, ring, GUARD).endpoints["ep1"].signing_keys
    assert key.expires_at_s == dt.datetime(2100, 1, 1, tzinfo=dt.UTC).timestamp()


@pytest.mark.parametrize(
    ("statement", "row", "fault"),
    [
        ("delete from secrets where endpoint_id = 'ep1' and purpose = 'signing'", "endpoint ep1", "no valid signing secret"),
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
            "tls.authorities: is not a list of PEM certificates",
        ),
        (
            "update endpoints set tls_certificate = 'x' where endpoint_id = 'ep1'",
            "endpoint ep1",
            "tls: certificate and key must be given together",
        ),
        (TOKEN_URL_WITHIN, "endpoint ep1", "auth.token_url: the address is not allowed"),
    ],
)
def test_an_unusable_row_is_quarantined_alone(connection, ring, statement, row, fault):
    applied(connection, ring, DOCUMENT)
    connection.execute(statement)
    read = registry_reader.read_full(connection, ring, GUARD)
    assert list(read.quarantined()) == [row]
    assert fault in read.quarantined()[row]
    assert "hunter2" not in str(read.quarantined())
    assert (len(read.endpoints), len(read.subscriptions)) == (2, 2)


def test_an_internal_address_by_sql_quarantines_its_endpoint(connection, ring):
    urls = {f"inside-{number}": addresses.url_of(host) for number, host in enumerate([*addresses.INSIDE, *addresses.NAMES])}
    endpoints = [{"id": row_id, "customer": "c1", "url": "https://example.com/"} for row_id in urls]
    applied(connection, ring, DOCUMENT | {"endpoints": [*DOCUMENT["endpoints"], *endpoints]})
    with connection.cursor() as cursor:
        cursor.executemany(
            "update endpoints set url = %s where endpoint_id = %s", [(url, row_id) for row_id, url in urls.items()]
        )
    quarantined = registry_reader.read_full(connection, ring, GUARD).quarantined()
    assert quarantined.keys() == {f"endpoint {row_id}" for row_id in urls}
    assert set(quarantined.values()) == {"url: the address is not allowed: an endpoint is a public https address"}


@pytest.mark.parametrize("pattern", UNREADABLE)
def test_an_unparsable_filter_quarantines_its_subscription_alone(connection, ring, pattern):
    """Regression: the read ended with a RecursionError or a ValueError, and no event was delivered."""
    applied(connection, ring, DOCUMENT)
    connection.execute("update filters set pattern = %s::jsonb", [pattern])
    read = registry_reader.read_full(connection, ring, GUARD)
    assert read.quarantined() == {"subscription s2": "filter: cannot be read as JSON"}
    assert pickle.loads(pickle.dumps(read)) == read


ANOTHER_KEY = "(before base64) are needed: use another key, such as 32 random bytes"


@pytest.mark.parametrize(
    ("purpose", "secret", "fault"),
    [
        (
            "signing",
            b"x",
            f"signing_secrets[0]: is an HMAC key of 1 bytes; 24 to 64 {ANOTHER_KEY}",
        ),
        (
            "signing_v1a",
            b"x" * 31,
            f"signing_secrets[0]: is an ed25519 seed of 31 bytes; 32 {ANOTHER_KEY}",
        ),
        ("tls_key", b"hunter2", "tls: certificate and key must be given together: add the missing one, or remove both"),
    ],
)
def test_an_invalid_secret_quarantines_its_endpoint(connection, ring, purpose, secret, fault):
    applied(connection, ring, DOCUMENT)
    row = EndpointSecret(purpose=purpose, secret=Secret(secret)).to_row(ring, customer_id="c1", endpoint_id="ep1")
    connection.execute(query("put_secret"), row)
    assert registry_reader.read_full(connection, ring, GUARD).quarantined() == {"endpoint ep1": fault}


def test_a_value_of_a_later_version_quarantines_its_row_alone(connection, ring):
    applied(connection, ring, DOCUMENT)
    connection.execute("alter table endpoints drop constraint endpoints_auth_kind_check")
    connection.execute("update endpoints set auth_kind = 'kerberos', auth_username = null where endpoint_id = 'ep1'")
    assert list(registry_reader.read_full(connection, ring, GUARD).quarantined()) == ["endpoint ep1"]


def test_endpoints_share_the_text_of_their_certificates(connection, ring):
    def pickled(authorities):
        endpoints = [{"id": f"ep{n}", "customer": "c1", "url": "https://example.com/", "tls": {"authorities": pem}}
                     for n, pem in enumerate(authorities)]  # fmt: skip
        applied(connection, ring, {"customers": [{"id": "c1"}], "endpoints": endpoints})
        return len(pickle.dumps(registry_reader.read_full(connection, ring, GUARD)))

    pem = certificates.issue("client").pem * 50
    assert pickled([pem, pem]) + len(pem) - pickled([pem, pem + "\n"]) < 100


@pytest.mark.parametrize("seed", range(5))
def test_a_snapshot_with_changes_equals_a_full_read(connection, ring, seed):
    rng = random.Random(seed)
    applied(connection, ring, DOCUMENT)
    current = registry_reader.read_full(connection, ring, GUARD)
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
        changes = registry_reader.read_changes(connection, ring, GUARD, since=current.revision)
        current = updated(current, changes)
        assert current == registry_reader.read_full(connection, ring, GUARD)


def test_without_changes_the_changes_are_empty(connection, ring):
    applied(connection, ring, DOCUMENT)
    read = registry_reader.read_full(connection, ring, GUARD)
    changes = registry_reader.read_changes(connection, ring, GUARD, since=read.revision)
    assert (len(changes), changes.revision) == (0, read.revision)


def newest(connection):
    revision = registry_reader.revisions(connection).newest
    return revision, registry_reader.changed_at(connection, revision)


def test_a_revision_that_the_log_lacks_needs_a_full_read(connection, ring):
    """Regression: a reader kept changes that Postgres had lost. A standby without them continues at a higher number."""
    applied(connection, ring, DOCUMENT)
    connection.execute("update tenants set status = 'suspended' where tenant_id = '2'")
    lost, _ = newest(connection)
    connection.execute("delete from revisions where revision = %s", [lost])
    connection.execute("update tenants set status = 'active' where tenant_id = '3'")
    assert registry_reader.read_changes(connection, ring, GUARD, since=lost) is None
    assert registry_reader.read_changes(connection, ring, GUARD, since=lost - 1) is not None


def test_a_revision_that_another_change_got_needs_a_full_read(connection, ring):
    """Regression: a reader kept a lost change, also if Postgres used its number again for another change."""
    applied(connection, ring, DOCUMENT)
    revision, changed_at = newest(connection)
    assert len(registry_reader.read_changes(connection, ring, GUARD, since=revision, since_at=changed_at)) == 0
    connection.execute("update revisions set changed_at = changed_at + interval '1 us' where revision = %s", [revision])
    assert registry_reader.read_changes(connection, ring, GUARD, since=revision, since_at=changed_at) is None
    assert registry_reader.read_changes(connection, ring, GUARD, since=revision) is not None


def test_the_first_revision_continues_an_empty_registry(connection, ring):
    empty = registry_reader.read_full(connection, ring, GUARD)
    assert (empty.revision, newest(connection)) == (0, (0, None))
    applied(connection, ring, DOCUMENT)
    changes = registry_reader.read_changes(connection, ring, GUARD, since=empty.revision)
    assert updated(empty, changes) == registry_reader.read_full(connection, ring, GUARD)


def test_a_shortened_log_needs_no_full_read_of_a_newer_reader(connection, ring):
    applied(connection, ring, DOCUMENT)
    revision, changed_at = newest(connection)
    connection.execute("delete from revisions where revision < %s", [revision])
    connection.execute("update tenants set status = 'suspended' where tenant_id = '2'")
    assert len(registry_reader.read_changes(connection, ring, GUARD, since=revision, since_at=changed_at)) == 1


@pytest.mark.parametrize("since", [0, 10_000])
def test_a_log_that_does_not_reach_back_needs_a_full_read(connection, ring, since):
    applied(connection, ring, DOCUMENT)
    connection.execute("delete from revisions where revision < 5")
    assert registry_reader.read_changes(connection, ring, GUARD, since=since) is None


@pytest.mark.parametrize(("subscriptions", "at_most_mib"), [(10_000, 1.5), pytest.param(100_000, 8, marks=pytest.mark.slow)])
def test_a_large_registry_is_small_enough_to_broadcast(connection, ring, subscriptions, at_most_mib):
    """With 30,000 tenants, 10,000 endpoints, 500 event types and 100,000 subscriptions, the snapshot has 4.8 MB."""
    population.load(connection, ring, subscriptions, random.Random(1))
    read = registry_reader.read_full(connection, ring, GUARD)
    assert (len(read.subscriptions), len(read.endpoints), len(read.tenants)) == (subscriptions, 10_000, 30_000)
    assert read.quarantined() == {}
    size = len(pickling.packed(read))
    assert size < at_most_mib * 1024 * 1024
