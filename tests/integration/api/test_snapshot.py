"""A reader that follows the registry over HTTP gets what the driver reads from Postgres, and waits without a connection."""

import base64
import json
import random
import time
import zlib

import pytest

from delivery.config import settings
from delivery.webhooks.http import guard
from delivery.webhooks.routing.registry_snapshot import updated
from subscriptions_db.api.contract import keys
from subscriptions_db.api.contract.principals import Scope
from subscriptions_db.api.server import snapshot_feed, transactions
from subscriptions_db.api.server.route_table import ROUTES
from subscriptions_db.postgres import connect
from subscriptions_db.secrets import keyring
from subscriptions_db.snapshot import registry_reader, sealed_document
from tests.e2e.conftest import assert_eventually
from tests.integration.api import world

pytestmark = pytest.mark.integration

GUARD = guard.Guard()
PATH = "/v1/snapshot"
CHANGES = (
    "update tenants set status = 'suspended' where tenant_id = 't1'",
    "delete from tenants where tenant_id = 't2'",
    "insert into tenants values ('t4')",
    "update endpoints set status = 'paused', max_per_second = 2.5, retry_schedule_s = '{1, 2.5}' where customer_id = 'acme'",
    "delete from secrets where endpoint_id = 'other-orders'",
    "update secrets set expires_at = now() + interval '1 hour' where purpose = 'signing'",
    "update subscriptions set event_type = 'user.*' where subscription_id = 'acme-all'",
    "delete from scopes where subscription_id = 'other-all'",
    "delete from filters",
    "insert into subscriptions values ('new', 'acme-orders', 'acme', '*', 'selected')",
    "insert into scopes values ('new', 'selected', 'include', 't1', '100'), ('new', 'selected', 'exclude', 't9', null)",
    "update subscriptions set subscription_id = 'moved' where subscription_id = 'other-all'",
    "insert into filters values ('new', '{\"data\": {\"a\": [1e400]}}')",
    "delete from endpoints where endpoint_id = 'other-orders'",
    "delete from customers where customer_id = 'other'",
)


@pytest.fixture
def served(postgres):
    with world.served(postgres, max_poll_s=10) as made:
        yield made


@pytest.fixture
def reader(served):
    with served.registry() as opened:
        return served.client(keys.create(opened, customer_id=None, scope=Scope.EXECUTOR).text.reveal().decode())


def document_of(reader, path=PATH, **headers):
    answer = reader.get(path, **headers)
    assert answer.status == 200, answer.text
    return answer.json


def straight(served, ring):
    with served.registry() as opened:
        return registry_reader.read_full(opened, ring, GUARD)


def change(served, statement="update tenants set name = name || 'x'"):
    with served.registry() as opened:
        opened.execute(statement)


@pytest.mark.parametrize("seed", range(3))
def test_a_reader_reaches_the_drivers_registry_from_any_revision(served, reader, seed):
    ring = keyring.KeyRing.from_settings(served.config.keys)
    known = [sealed_document.whole(document_of(reader), ring, GUARD)]
    assert known[0] == straight(served, ring)
    for statement in random.Random(seed).sample(CHANGES, k=7):
        try:
            change(served, statement)
        except connect.psycopg.errors.IntegrityError:
            continue  # an earlier step took away what this one refers to
        now = straight(served, ring)
        assert sealed_document.whole(document_of(reader), ring, GUARD) == now
        for before in known:
            document = document_of(reader, f"{PATH}?since={before.revision}")
            assert document["since"] == before.revision
            assert updated(before, sealed_document.changes(document, ring, GUARD)) == now
        known.append(now)


def test_secrets_in_the_answer_are_sealed_as_in_postgres(served, reader):
    text = reader.get(PATH).text
    assert b"hunter2" not in text
    with served.registry() as opened:
        kept = {bytes(row["sealed"]) for row in opened.execute("select sealed from secrets")}
    assert {base64.b64decode(row["sealed"]) for row in json.loads(text)["secrets"]} == kept
    other_ring = keyring.KeyRing.from_settings(settings.KeysSettings(ring={"k1": keyring.generate()}))
    found = sealed_document.whole(json.loads(text), other_ring, GUARD)
    assert all(endpoint.fault and not endpoint.signing_keys for endpoint in found.endpoints.values())


@pytest.mark.parametrize("since", [0, 10_000, 2**63 - 1])
def test_a_revision_before_the_log_of_changes_gets_everything(served, reader, since):
    change(served, "delete from revisions where revision < 5")
    document = document_of(reader, f"{PATH}?since={since}&wait_s=10")
    assert document["since"] is None
    assert len(document["tenants"]) == 2


def test_a_revision_that_postgres_lost_gets_everything(served, reader):
    """Regression: the answer had only the changes after the lost revision, if Postgres went on at a higher one."""
    lost = document_of(reader)["revision"]
    change(served, "delete from revisions where revision = (select max(revision) from revisions)")
    change(served)
    document = document_of(reader, f"{PATH}?since={lost}")
    assert (document["since"], document["revision"] > lost, len(document["endpoints"])) == (None, True, 2)


@pytest.mark.parametrize("since", ["x", "-1", str(2**63)])
def test_an_invalid_revision_is_refused(reader, since):
    answer = reader.get(f"{PATH}?since={since}")
    assert (answer.status, answer.fields) == (422, ["since"])


def test_a_known_revision_gets_304(served, reader):
    answer = reader.get(PATH, accept_encoding="gzip")
    assert answer.headers["content-encoding"] == "gzip"
    assert json.loads(zlib.decompress(answer.text, wbits=31)) == document_of(reader)
    tag = answer.headers["etag"]
    assert tag == f'W/"{document_of(reader)["revision"]}"'
    for known in (tag, tag.removeprefix("W/"), f'"1", {tag}'):
        again = reader.get(PATH, if_none_match=known)
        assert (again.status, again.text, again.headers["etag"]) == (304, b"", tag)
    change(served)
    assert reader.get(PATH, if_none_match=tag).status == 200


@pytest.mark.parametrize(("accepted", "is_gzipped"), [("gzip;q=0, *", False), ("gzip; q=0.0", False), ("gzip;q=0.5", True)])
def test_a_reader_that_refuses_gzip_gets_plain_json(reader, accepted, is_gzipped):
    answer = reader.get(PATH, accept_encoding=accepted)
    assert ("content-encoding" in answer.headers) is is_gzipped
    plain = zlib.decompress(answer.text, wbits=31) if is_gzipped else answer.text
    assert json.loads(plain) == document_of(reader)


def test_a_waiting_reader_gets_the_next_change_or_304(served, reader):
    revision = document_of(reader)["revision"]
    nothing = document_of(reader, f"{PATH}?since={revision}&wait_s=0.1")
    assert (nothing["revision"], nothing["since"], nothing["tenants"], nothing["gone"]) == (revision, revision, [], {})
    tag = f'"{revision}"'
    assert reader.get(f"{PATH}?wait_s=0.1", if_none_match=tag).status == 304
    polls = [
        world.in_background(lambda: reader.get(f"{PATH}?since={revision}&wait_s=10")),
        world.in_background(lambda: reader.get(f"{PATH}?since={revision}&wait_s=10", if_none_match=tag)),
    ]
    began = time.monotonic()
    change(served, "insert into tenants values ('t4')")
    for poll in polls:
        assert [row["tenant_id"] for row in poll().json["tenants"]] == ["t4"]
    assert time.monotonic() - began < 5


def test_waiting_readers_share_one_query_and_one_answer(served, reader, monkeypatch):
    read, asked = [], []
    monkeypatch.setattr(sealed_document, "read", lambda *of, real=sealed_document.read: read.append(of[1]) or real(*of))
    monkeypatch.setattr(
        snapshot_feed.SnapshotFeed,
        "_newest",
        lambda self, real=snapshot_feed.SnapshotFeed._newest: asked.append(1) or real(self),
    )
    revision = document_of(reader)["revision"]
    read.clear()
    polls = [world.in_background(lambda: document_of(reader, f"{PATH}?since={revision}&wait_s=10")) for _ in range(20)]
    waited_for(served)
    began, before = time.monotonic(), len(asked)
    change(served)
    assert {poll()["revision"] for poll in polls} == {straight(served, ring_of(served)).revision}
    assert read == [revision]
    assert len(asked) - before <= (time.monotonic() - began) / snapshot_feed.ASK_EVERY_S + 1


def ring_of(served):
    return keyring.KeyRing.from_settings(served.config.keys)


def waited_for(served):
    """Return after the API has queried the newest revision for its waiting readers."""
    asked = "select max(query_start) as at from pg_stat_activity where application_name = 'fanout api'"
    with served.registry() as opened:
        [before] = opened.execute(asked).fetchall()
        for _ in range(500):
            [now] = opened.execute(asked).fetchall()
            if now["at"] != before["at"]:
                return
            opened.execute("select pg_sleep(0.01)")
    pytest.fail("nobody asks")


def test_a_key_revoked_during_the_wait_gets_no_answer(served):
    with served.registry() as opened:
        made = keys.create(opened, customer_id=None, scope=Scope.EXECUTOR)
        reader = served.client(made.text.reveal().decode())
        revision = document_of(reader)["revision"]
        poll = world.in_background(lambda: reader.get(f"{PATH}?since={revision}&wait_s=5"))
        keys.revoke(opened, made.key_id)
    assert poll().status == 401


def test_the_number_of_waiting_readers_is_bounded(postgres):
    with world.served(postgres, max_snapshot_polls=1, max_poll_s=3) as served:
        operator = served.client(served.keys["operator"])
        tag = operator.get(PATH).headers["etag"]
        polls = [world.in_background(lambda: operator.get(f"{PATH}?wait_s=3", if_none_match=tag)) for _ in range(2)]
        assert sorted(poll().status for poll in polls) == [304, 503]


def test_waiting_readers_do_not_block_other_requests(postgres):
    with world.served(postgres, max_waiting=1, max_poll_s=60) as served:
        operator, acme = (served.client(served.keys[name]) for name in ("operator", "acme"))
        tag = operator.get(PATH).headers["etag"]
        poll = world.in_background(lambda: operator.get(f"{PATH}?wait_s=60", if_none_match=tag))
        waited_for(served)
        # Until the reader waits, its own request is the one that may be in flight.
        assert_eventually(lambda: acme.get("/v1/endpoints").status, lambda status: status == 200, within_s=30)
    assert poll().status == 503


def test_a_waiting_reader_gets_503_while_postgres_is_away(served, reader, monkeypatch):
    tag = reader.get(PATH).headers["etag"]

    def away(*_, **__):
        raise connect.errors.RegistryUnavailable("away")

    poll = world.in_background(lambda: reader.get(f"{PATH}?wait_s=10", if_none_match=tag))
    waited_for(served)
    monkeypatch.setattr(transactions.Store, "transaction", away)
    answer = poll()
    assert (answer.status, answer.headers["retry-after"]) == (503, "2")
    assert reader.get(PATH).status == 503
    monkeypatch.undo()
    assert reader.get(PATH).status == 200


def test_a_stopping_server_answers_the_waiting_readers(served):
    with world.running(served.config) as port:
        client = world.Client(port, served.keys["operator"])
        tag = client.get(PATH).headers["etag"]
        poll = world.in_background(lambda: client.get(f"{PATH}?wait_s=10", if_none_match=tag))
        waited_for(served)
        began = time.monotonic()
    assert poll().status == 503
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("route", [route for route in ROUTES if route.name != "getSnapshot"], ids=lambda route: route.name)
def test_an_executors_key_permits_no_other_route(route):
    assert Scope.EXECUTOR not in route.scopes


def test_no_customers_key_reads_the_registry(served):
    for name in ("acme", "reader", "poller"):
        assert served.client(served.keys[name]).get(PATH).status == 403
    with served.registry() as opened, pytest.raises(connect.errors.RegistrationError, match="belongs to no customer"):
        keys.create(opened, customer_id="acme", scope=Scope.EXECUTOR)
    with served.registry() as opened, pytest.raises(connect.errors.RegistrationError, match="needs a customer"):
        keys.create(opened, customer_id=None, scope=Scope.READ_ONLY)
