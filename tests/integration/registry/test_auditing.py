"""Changes by commands have audit entries: author, customer, fields before and after, and never a secret."""

import datetime as dt
import json

import pytest

from delivery import errors
from delivery.config import settings
from delivery.registry_model import SignatureScheme
from subscriptions_db.api.contract import keys
from subscriptions_db.api.contract.principals import Scope
from subscriptions_db.registration import apply, endpoint_status, rotation
from subscriptions_db.secrets import keyring
from tests.integration.registry.documents import DOCUMENT, SIGNING, UNREADABLE, WHOLE, applied

pytestmark = pytest.mark.integration

CHANGED = [DOCUMENT["endpoints"][0] | {"url": "https://example.com/moved"}]


@pytest.fixture
def noted(connection):
    """Return the audit entries since the last call."""

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


def test_a_created_row_has_an_audit_entry_with_its_customer(connection, ring, noted):
    applied(connection, ring, DOCUMENT)
    entries = noted()
    assert said(entries) == [
        ("create", "tenant", "1", None), ("create", "tenant", "2", None), ("create", "tenant", "3", None),
        ("create", "customer", "c1", "c1"), ("create", "endpoint", "ep1", "c1"), ("create", "endpoint", "ep2", "c1"),
        ("create", "subscription", "s1", "c1"), ("create", "subscription", "s2", "c1"),
    ]  # fmt: skip
    assert {(entry["key_id"], entry["login"]) for entry in entries} == {("command", "postgres")}
    assert {entry["before"] for entry in entries} == {None}
    after = {entry["entity_id"]: entry["after"] for entry in entries}
    assert after["ep1"]["url"] == "https://example.com/1"
    assert after["s1"]["scopes"] == [["exclude", "2", None]]
    assert after["s2"]["filter"] == {"data": {"a": [1]}}


def test_a_changed_row_has_an_audit_entry_with_old_fields(registered, ring, noted):
    applied(registered, ring, {"endpoints": CHANGED})
    [entry] = noted()
    assert said([entry]) == [("update", "endpoint", "ep1", "c1")]
    assert (entry["before"], entry["after"]) == ({"url": "https://example.com/1"}, {"url": "https://example.com/moved"})


def test_a_pruned_row_has_an_audit_entry_with_all_fields(registered, ring, noted):
    applied(registered, ring, {"customers": [{"id": "c1"}], "endpoints": DOCUMENT["endpoints"][:1]}, prune=True)
    entries = {entry["entity_id"]: entry for entry in noted()}
    assert sorted(said(entries.values())) == [
        ("delete", "endpoint", "ep2", "c1"), ("delete", "subscription", "s1", "c1"), ("delete", "subscription", "s2", "c1"),
    ]  # fmt: skip
    assert [entry["after"] for entry in entries.values()] == [None, None, None]
    assert entries["s2"]["before"]["event_type"] == "order"
    assert entries["ep2"]["before"]["url"] == "https://example.com/2"


def test_no_audit_entry_without_a_written_change(registered, ring, noted):
    applied(registered, ring, DOCUMENT)
    applied(registered, ring, {"endpoints": CHANGED}, dry_run=True)
    with pytest.raises(errors.RegistrationError):
        applied(
            registered, ring, {"endpoints": [*CHANGED, {"id": "ep3", "customer": "nobody", "url": "https://example.com/3"}]}
        )
    assert noted() == []


def test_a_large_manifest_has_all_its_audit_entries(connection, ring, noted):
    names = [f"c{number}" for number in range(2 * apply.AUDIT_ENTRIES_AT_ONCE + 1)]
    applied(connection, ring, {"customers": [{"id": name} for name in names]})
    assert [entry["entity_id"] for entry in noted()] == names


@pytest.mark.parametrize("pattern", [*UNREADABLE, '{"a": ' + "[" * 450 + "]" * 450 + "}", '{"a": [-1e5000]}'])
def test_an_unparsable_filter_is_audited_when_replaced(registered, ring, noted, pattern):
    registered.execute("update filters set pattern = %s", [pattern])
    applied(registered, ring, {"subscriptions": DOCUMENT["subscriptions"][1:]})
    [entry] = noted()
    assert said([entry]) == [("update", "subscription", "s2", "c1")]
    assert entry["before"].keys() == {"filter"}
    assert entry["after"] == {"filter": {"data": {"a": [1]}}}


def test_a_text_with_nul_is_audited_when_replaced(registered, ring, noted):
    registered.execute("""insert into event_types (event_type, examples) values ('order', '["\\u0000"]')""")
    applied(registered, ring, {"event_types": [{"id": "order", "examples": [1]}]})
    [entry] = noted()
    assert (entry["before"], entry["after"]) == ({"examples": ["\ufffd"]}, {"examples": [1]})


def test_rotations_and_status_changes_have_audit_entries(registered, ring, noted):
    rotation.rotate(registered, ring, "ep1", scheme=SignatureScheme.ED25519, overlap=dt.timedelta(hours=1))
    for _ in range(2):
        endpoint_status.disable(registered, "ep1", "moving")
    endpoint_status.enable(registered, "ep1")
    entries = noted()
    assert [(entry["key_id"], *fields) for entry, fields in zip(entries, said(entries), strict=True)] == [
        ("command", "rotate_secret", "endpoint", "ep1", "c1"), *2 * [("command", "update", "endpoint", "ep1", "c1")],
    ]  # fmt: skip
    assert entries[0]["after"] == {"scheme": "v1a", "overlap_s": 3600}
    assert entries[1]["before"] == {"status": "active", "disabled_reason": None}
    assert entries[1]["after"] == entries[2]["before"] == {"status": "disabled", "disabled_reason": "moving"}


def test_creating_and_revoking_a_key_is_audited_once(registered, noted):
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


def test_a_key_rotation_is_audited_with_its_secret_count(registered, ring_key, noted):
    both = keyring.KeyRing.from_settings(settings.KeysSettings(ring={"k1": ring_key, "k2": keyring.generate()}, active="k2"))
    for _ in range(2):
        keyring.rotate(registered, both)
    [entry] = noted()
    assert said([entry]) == [("seal", "key", "k2", None)]
    assert (entry["key_id"], entry["after"]) == ("command", {"secrets": 3})


def test_no_audit_entry_has_a_secret(connection, ring, noted):
    applied(connection, ring, DOCUMENT)
    applied(connection, ring, {"endpoints": [WHOLE]})
    rotated = rotation.rotate(connection, ring, "ep2", scheme=SignatureScheme.HMAC, overlap=dt.timedelta())
    changed = DOCUMENT["endpoints"][0] | {"auth": {"kind": "basic", "username": "ann", "secret": "hunter3"}}
    applied(connection, ring, {"endpoints": [changed]})
    applied(connection, ring, {"customers": [{"id": "c1"}]}, prune=True)
    text = json.dumps(noted(), default=str)
    assert "https://example.com/whole" in text
    new_secret = rotation.secret_document("ep2", rotated)["secret"]
    for secret in (
        "hunter2",
        "hunter3",
        SIGNING.removeprefix("whsec_"),
        "whsk_",
        "PRIVATE KEY",
        new_secret.removeprefix("whsec_"),
    ):
        assert secret not in text
