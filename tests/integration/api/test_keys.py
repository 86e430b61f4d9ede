"""API keys are stored as digests; expired, revoked and deleted keys are refused."""

import base64
import datetime as dt

import pytest
from psycopg import sql

from delivery import errors
from subscriptions_db.api.contract import keys
from subscriptions_db.api.contract.principals import Scope
from tests.integration.api import world
from tests.integration.api.world import DOCUMENT

pytestmark = pytest.mark.integration


def made(served, **fields):
    with served.registry() as opened:
        return keys.create(opened, **{"customer_id": "acme", "scope": Scope.READ_ONLY} | fields)


def status_of(served, key):
    return served.client(key.text.reveal().decode()).get("/v1/endpoints").status


def test_a_key_has_256_random_bits_and_only_its_digest_is_stored(served):
    key = made(served)
    text = key.text.reveal().decode()
    assert text.startswith(f"{key.key_id}_")
    assert len(text.removeprefix(f"{key.key_id}_")) == 43  # base64 of 32 bytes
    assert text not in repr(key)
    with served.registry() as opened:
        tables = [row["tablename"] for row in opened.execute("select tablename from pg_tables where schemaname = 'public'")]
        every_row = sql.SQL("select to_jsonb(t)::text as line from {} t")
        dump = "".join(row["line"] for table in tables for row in opened.execute(every_row.format(sql.Identifier(table))))
    assert key.key_id in dump
    assert text.removeprefix(f"{key.key_id}_") not in dump
    for secret in (text, text[16:], DOCUMENT["endpoints"][0]["auth"]["secret"]):
        for form in (secret, secret.encode().hex(), base64.b64encode(secret.encode()).decode()):
            assert form not in dump


def test_an_expired_key_is_refused(served):
    now = dt.datetime.now(dt.UTC)
    assert status_of(served, made(served, expires_at=now - dt.timedelta(seconds=1))) == 401
    assert status_of(served, made(served, expires_at=now + dt.timedelta(hours=1))) == 200


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ("Bearer fk_shortened", "the text after Bearer does not have the form of a key: send the whole key"),
        ("Bearer ", "send the header Authorization: Bearer fk_"),
        ("Basic YTpi", "send the header Authorization: Bearer fk_"),
    ],
)
def test_a_malformed_key_is_not_taken_for_a_missing_one(served, sent, said):
    """Regression: the answer to a shortened key asked for the header that the request had."""
    refused = served.client(None).get("/v1/endpoints", authorization=sent)
    assert refused.status == 401
    assert refused.json["detail"].startswith(said)


def test_answers_to_a_key_that_expires_soon_say_when(served):
    now = dt.datetime.now(dt.UTC)
    ends = now + dt.timedelta(days=13)
    client = served.client(made(served, expires_at=ends).text.reveal().decode())
    answers = [client.get("/v1/endpoints"), client.get("/v1/endpoints/nobodys"), client.post("/v1/endpoints", {})]
    assert [answer.status for answer in answers] == [200, 404, 403]
    assert {answer.headers["fanout-key-expires-at"] for answer in answers} == {ends.strftime("%Y-%m-%dT%H:%M:%SZ")}
    for later in (None, now + dt.timedelta(days=15)):
        client = served.client(made(served, expires_at=later).text.reveal().decode())
        assert "fanout-key-expires-at" not in client.get("/v1/endpoints").headers
    publisher = made(served, customer_id=None, scope=Scope.PUBLISHER, expires_at=ends).text.reveal().decode()
    assert "fanout-key-expires-at" in served.client(publisher).post("/v1/events", {}).headers


def test_the_last_use_of_a_key_is_written_once_in_a_while(served):
    def uses():
        with served.registry() as opened:
            rows = {row["key_id"]: row["last_used_at"] for row in keys.list_keys(opened, "acme")}
        return [rows[key.key_id] for key in (used, unused)]

    used, unused = made(served), made(served)
    for _ in range(2):  # a server writes what is pending when it stops
        before = uses()
        with world.running(served.config) as port:
            assert world.Client(port, used.text.reveal().decode()).get("/v1/endpoints").status == 200
            assert world.Client(port, f"{unused.key_id}_{'x' * 43}").get("/v1/endpoints").status == 401
        after = uses()
        assert after[1] is None
        assert after[0] is not None
    assert before == after


def test_a_revoked_key_is_refused(served):
    key = made(served)
    with served.registry() as opened:
        keys.revoke(opened, key.text.reveal().decode())
        keys.revoke(opened, key.key_id)
        with pytest.raises(errors.RegistrationError, match="there is no key fk_zzzzzzzzzzzz"):
            keys.revoke(opened, "fk_zzzzzzzzzzzz")
    assert status_of(served, key) == 401


def test_a_key_belongs_to_a_customer_or_to_the_platform(served):
    wrong = (("acme", Scope.OPERATOR), ("acme", Scope.PUBLISHER), (None, Scope.READ_ONLY), ("nobody", Scope.READ_ONLY))
    for customer_id, scope in wrong:
        with pytest.raises(errors.RegistrationError):
            made(served, customer_id=customer_id, scope=scope)


def test_only_a_publishers_key_names_tenants(served):
    for scope, customer_id, tenants in ((Scope.OPERATOR, None, ["t1"]), (Scope.PUBLISHER, None, ["no id"])):
        with pytest.raises(errors.RegistrationError):
            made(served, customer_id=customer_id, scope=scope, tenants=tenants)
    key = made(served, customer_id=None, scope=Scope.PUBLISHER, tenants=["t2", "t1", "t2"])
    with served.registry() as opened:
        assert [row["tenants"] for row in keys.list_keys(opened) if row["key_id"] == key.key_id] == [["t1", "t2"]]
    assert [entry["after"]["tenants"] for entry in served.audit(key.key_id)] == [["t1", "t2"]]


def test_only_a_customers_key_is_limited_to_its_own_endpoints(served):
    wrong = ((None, Scope.OPERATOR, ["acme-orders"]), ("acme", Scope.POLLER, ["acme-orders", "other-orders"]))
    for customer_id, scope, endpoints in (*wrong, ("acme", Scope.READ_ONLY, [f"e{number}" for number in range(101)])):
        with pytest.raises(errors.RegistrationError) as refused:
            made(served, customer_id=customer_id, scope=scope, endpoints=endpoints)
        assert refused.value.path == "endpoints"
    key = made(served, endpoints=["acme-orders", "acme-orders"])
    with served.registry() as opened:
        assert [row["endpoints"] for row in keys.list_keys(opened) if row["key_id"] == key.key_id] == [["acme-orders"]]
    assert [entry["after"]["endpoints"] for entry in served.audit(key.key_id)] == [["acme-orders"]]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/dead-letters?expand=endpoint",
        "/v1/dead-letters?url=hooks",
        "/v1/dead-letters/count?url=hooks",
        f"{world.CONSUMER_PATH}/parked?url=hooks",
    ],
)
def test_a_poller_reads_no_endpoint_by_a_search_of_dead_letters(poller, acme, path):
    """Regression: a poller read whole endpoints by `expand`, and could find their URLs by many searches with `url`."""
    refused = poller.get(path)
    assert (refused.status, refused.json["code"]) == (403, "forbidden")
    assert "reads no endpoints" in refused.json["detail"]
    assert acme.get(path).status == 200
    assert poller.get(path.partition("?")[0]).status == 200


def test_keys_are_listed_without_their_digests(served):
    key = made(served, name="of the dashboard")
    with served.registry() as opened:
        [row] = [row for row in keys.list_keys(opened, "acme") if row["key_id"] == key.key_id]
    assert row.keys() == {
        "key_id", "customer_id", "scope", "name", "tenants", "endpoints", "created_at", "expires_at", "last_used_at",
        "revoked_at", "state",
    }  # fmt: skip
    assert row["name"] == "of the dashboard"
