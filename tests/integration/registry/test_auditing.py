"""What the commands change is in the audit log: by whom, whose it is, what there was before, and never a secret."""

import datetime as dt
import json

import pytest

from delivery import errors
from delivery.config import settings
from delivery.model import SignatureScheme
from subscriptions_db.api.contract import keys
from subscriptions_db.api.contract.principals import Scope
from subscriptions_db.registration import apply, endpoint_status, rotation
from subscriptions_db.secrets import keyring
from tests.integration.registry.documents import DOCUMENT, SIGNING, UNREADABLE, WHOLE, applied

pytestmark = pytest.mark.integration

CHANGED = [DOCUMENT["endpoints"][0] | {"url": "https://example.com/moved"}]


@pytest.fixture
def noted(connection):
    """What was noted since it was called last."""

    def read():
        rows = connection.execute("delete from audit_log returning *").fetchall()
        return sorted(rows, key=lambda row: row["entry_id"])

    return read


@pytest.fixture
def registered(connection, ring, noted):
    applied(connection, ring, DOCUMENT)
    noted()
    return connection


def said(entries):
    return [(entry["action"], entry["entity"], entry["entity_id"], entry["customer_id"]) for entry in entries]


def test_what_a_document_registers_is_noted_with_whose_it_is(connection, ring, noted):
    applied(connection, ring, DOCUMENT)
    entries = noted()
    assert said(entries) == [
        ("create", "tenant", "1", None), ("create", "tenant", "2", None), ("create", "tenant", "3", None),
        ("create", "customer", "c1", "c1"), ("create", "endpoint", "ep1", "c1"), ("create", "endpoint", "ep2", "c1"),
        ("create", "subscription", "s1", "c1"), ("create", "subscription", "s2", "c1"),
    ]  # fmt: skip
    assert {(entry["key_id"], entry["login"]) for entry in entries} == {("command", "postgres")}
    assert {entry["before"] for entry in entries} == {None}
    told = {entry["entity_id"]: entry["after"] for entry in entries}
    assert told["ep1"]["url"] == "https://example.com/1"
    assert told["s1"]["scopes"] == [["exclude", "2", None]]
    assert told["s2"]["filter"] == {"data": {"a": [1]}}


def test_what_a_document_changes_is_noted_with_what_there_was_before(registered, ring, noted):
    applied(registered, ring, {"endpoints": CHANGED})
    [entry] = noted()
    assert said([entry]) == [("update", "endpoint", "ep1", "c1")]
    assert (entry["before"], entry["after"]) == ({"url": "https://example.com/1"}, {"url": "https://example.com/moved"})


def test_what_a_document_takes_away_is_noted_with_all_that_it_was(registered, ring, noted):
    applied(registered, ring, {"customers": [{"id": "c1"}], "endpoints": DOCUMENT["endpoints"][:1]}, prune=True)
    entries = {entry["entity_id"]: entry for entry in noted()}
    assert sorted(said(entries.values())) == [
        ("delete", "endpoint", "ep2", "c1"), ("delete", "subscription", "s1", "c1"), ("delete", "subscription", "s2", "c1"),
    ]  # fmt: skip
    assert [entry["after"] for entry in entries.values()] == [None, None, None]
    assert entries["s2"]["before"]["event_type"] == "order"
    assert entries["ep2"]["before"]["url"] == "https://example.com/2"


def test_what_changes_nothing_or_is_refused_or_only_tried_is_not_noted(registered, ring, noted):
    applied(registered, ring, DOCUMENT)
    applied(registered, ring, {"endpoints": CHANGED}, dry_run=True)
    with pytest.raises(errors.RegistrationError):
        applied(
            registered, ring, {"endpoints": [*CHANGED, {"id": "ep3", "customer": "nobody", "url": "https://example.com/3"}]}
        )
    assert noted() == []


def test_a_large_document_is_noted_to_its_end(connection, ring, noted, monkeypatch):
    monkeypatch.setattr(apply, "AUDIT_ENTRIES_AT_ONCE", 3)
    applied(connection, ring, DOCUMENT)
    assert len(noted()) == 8


@pytest.mark.parametrize("pattern", [*UNREADABLE, '{"a": ' + "[" * 450 + "]" * 450 + "}", '{"a": [-1e5000]}'])
def test_what_no_parser_takes_is_replaced_and_noted_all_the_same(registered, ring, noted, pattern):
    registered.execute("update filters set pattern = %s", [pattern])
    applied(registered, ring, {"subscriptions": DOCUMENT["subscriptions"][1:]})
    [entry] = noted()
    assert said([entry]) == [("update", "subscription", "s2", "c1")]
    assert entry["before"].keys() == {"filter"}
    assert entry["after"] == {"filter": {"data": {"a": [1]}}}


def test_what_has_a_nul_is_replaced_and_noted_all_the_same(registered, ring, noted):
    registered.execute("""insert into event_types (event_type, examples) values ('order', '["\\u0000"]')""")
    applied(registered, ring, {"event_types": [{"id": "order", "examples": [1]}]})
    [entry] = noted()
    assert (entry["before"], entry["after"]) == ({"examples": ["\ufffd"]}, {"examples": [1]})


def test_who_rotates_a_secret_or_sets_a_status_by_hand_is_noted(registered, ring, noted):
    rotation.rotate(registered, ring, "ep1", scheme=SignatureScheme.ED25519, overlap=dt.timedelta(hours=1))
    for _ in range(2):
        endpoint_status.disable(registered, "ep1", "moving")
    endpoint_status.enable(registered, "ep1")
    entries = noted()
    assert [(entry["key_id"], *told) for entry, told in zip(entries, said(entries), strict=True)] == [
        ("command", "rotate_secret", "endpoint", "ep1", "c1"), *2 * [("command", "update", "endpoint", "ep1", "c1")],
    ]  # fmt: skip
    assert entries[0]["after"] == {"scheme": "v1a", "overlap_s": 3600}
    assert entries[1]["before"] == {"status": "active", "disabled_reason": None}
    assert entries[1]["after"] == entries[2]["before"] == {"status": "disabled", "disabled_reason": "moving"}


def test_a_key_that_is_made_or_taken_away_is_noted_once(registered, noted):
    made = keys.create(registered, customer_id="c1", scope=Scope.READ_ONLY, name="mine")
    for _ in range(2):
        keys.revoke(registered, made.key_id)
    with pytest.raises(errors.RegistrationError):
        keys.revoke(registered, "fk_zzzzzzzzzzzz")
    with pytest.raises(errors.RegistrationError):
        keys.create(registered, customer_id="nobody", scope=Scope.READ_ONLY)
    entries = noted()
    assert said(entries) == [("create", "api_key", made.key_id, "c1"), ("revoke", "api_key", made.key_id, "c1")]
    assert entries[0]["after"] == {"scope": "read_only", "name": "mine", "expires_at": None}
    assert entries[1]["before"] == {"revoked_at": None}
    assert entries[1]["after"]["revoked_at"]
    assert made.text.reveal().decode().rpartition("_")[2] not in json.dumps(entries, default=str)


def test_the_key_ring_is_rotated_with_a_note_of_how_many_secrets_that_was(registered, ring_key, noted):
    both = keyring.KeyRing.from_settings(settings.Keys(ring={"k1": ring_key, "k2": keyring.generate()}, active="k2"))
    for _ in range(2):
        keyring.rotate(registered, both)
    [entry] = noted()
    assert said([entry]) == [("seal", "key", "k2", None)]
    assert (entry["key_id"], entry["after"]) == ("command", {"secrets": 3})


def test_no_secret_is_noted(connection, ring, noted):
    applied(connection, ring, DOCUMENT)
    applied(connection, ring, {"endpoints": [WHOLE]})
    rotated = rotation.rotate(connection, ring, "ep2", scheme=SignatureScheme.HMAC, overlap=dt.timedelta())
    changed = DOCUMENT["endpoints"][0] | {"auth": {"kind": "basic", "username": "ann", "secret": "hunter3"}}
    applied(connection, ring, {"endpoints": [changed]})
    applied(connection, ring, {"customers": [{"id": "c1"}]}, prune=True)
    text = json.dumps(noted(), default=str)
    assert "https://example.com/whole" in text
    told = rotation.secret_document("ep2", rotated)["secret"]
    for secret in ("hunter2", "hunter3", SIGNING.removeprefix("whsec_"), "whsk_", "PRIVATE KEY", told.removeprefix("whsec_")):
        assert secret not in text
