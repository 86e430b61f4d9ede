"""A manifest becomes rows of the registry: differences are written, and nothing else changes."""

import pytest

from delivery import errors
from delivery.registry_model import Batching, DeliveryMode, EndpointStatus, Retrying
from delivery.secret import Secret
from subscriptions_db.postgres.sql import query
from subscriptions_db.registration import apply, diff, registered_rows
from subscriptions_db.snapshot import registry_reader
from tests.integration.registry.documents import (
    AS_READ,
    DOCUMENT,
    ED25519,
    GUARD,
    SIGNING,
    UNREADABLE,
    WHOLE,
    applied,
)
from tests.support import builders, waiting

pytestmark = pytest.mark.integration


def summary(result):
    return [(change.action, change.kind, change.id) for change in result.changes]


def test_the_first_apply_creates_all_rows_and_shows_new_secrets(connection, ring):
    result = applied(connection, ring, DOCUMENT)
    assert summary(result) == [
        *[("create", "tenant", row_id) for row_id in ("1", "2", "3")],
        ("create", "customer", "c1"),
        *[("create", "endpoint", row_id) for row_id in ("ep1", "ep2")],
        *[("create", "subscription", row_id) for row_id in ("s1", "s2")],
    ]
    assert list(result.new_secrets) == ["ep2"]
    assert result.new_secrets["ep2"] not in repr(result)


def test_the_last_of_two_equal_sub_tenants_counts(connection, ring):
    """Regression: one statement for many rows refused to write a row twice."""
    tenant = {"id": "t", "sub_tenants": [{"id": "a", "name": "first"}, {"id": "b"}, {"id": "a", "name": "last"}]}
    applied(connection, ring, {"tenants": [tenant]})
    assert registered_rows.rows_of(connection)["tenant"]["t"]["sub_tenants"] == {"a": "last", "b": ""}


def test_applying_a_manifest_again_changes_nothing(connection, ring):
    applied(connection, ring, DOCUMENT)
    before = registered_rows.revision(connection)
    assert applied(connection, ring, DOCUMENT) == apply.Result(changes=())
    assert registered_rows.revision(connection) == before


def test_only_differences_are_written_and_listed(connection, ring):
    applied(connection, ring, DOCUMENT)
    moved = DOCUMENT["endpoints"][0] | {"url": "https://example.com/moved"}
    result = applied(connection, ring, DOCUMENT | {"endpoints": [moved, DOCUMENT["endpoints"][1]]})
    [change] = result.changes
    assert (change.action, change.id) == ("update", "ep1")
    assert change.fields == (("url", "https://example.com/1", "https://example.com/moved"),)


def of_value(value):
    """Return a document with a filter, a JSON Schema and an example that contain a value."""
    [_, subscription] = DOCUMENT["subscriptions"]
    schema = {"properties": {"paid": {"const": value}}}
    event_type = {"id": "order", "json_schema": schema, "examples": [{"paid": value}]}
    filtered = subscription | {"filter": {"data": {"paid": [value]}}}
    return DOCUMENT | {"subscriptions": [filtered], "event_types": [event_type]}


@pytest.mark.parametrize(("before", "after"), [(1, True), (False, 0)])
def test_a_change_between_a_number_and_a_boolean_is_written(connection, ring, before, after):
    """Regression: 1 == True in Python, so the filter, the schema and the examples silently stayed."""
    applied(connection, ring, of_value(before))
    changes = applied(connection, ring, of_value(after)).changes
    assert {name for change in changes for name, *_ in change.fields} == {"filter", "json_schema", "examples"}
    rows = registered_rows.rows_of(connection)
    assert repr(rows["subscription"]["s2"]["filter"]) == repr({"data": {"paid": [after]}})
    assert repr(rows["event_type"]["order"]["examples"]) == repr([{"paid": after}])


def test_a_filter_with_numbers_of_any_size_is_written_once(connection, ring):
    """Regression: Postgres returns 1e300 as an integer, and each `fanout apply` wrote the filter again."""
    filtered = DOCUMENT["subscriptions"][1] | {"filter": {"data": {"a": [1e300, 1e22, 1e16, 2**63, 1e-300, 0.1]}}}
    applied(connection, ring, DOCUMENT | {"subscriptions": [filtered]})
    assert applied(connection, ring, DOCUMENT | {"subscriptions": [filtered]}).changes == ()


def test_a_filter_of_large_numbers_is_refused_or_can_be_read(connection, ring):
    """Regression: 56 numbers such as 1e300 were accepted, and their subscription was quarantined at the next read."""

    def document(most):
        numbers = [{"numeric": ["=", float(f"{number}e300")]} for number in range(1, most + 1)]
        return DOCUMENT | {"subscriptions": [DOCUMENT["subscriptions"][1] | {"filter": {"data": {"a": numbers}}}]}

    with pytest.raises(errors.RegistrationError, match=r"^subscriptions\[0\].filter: has \d+ bytes as JSON; at most 16384"):
        applied(connection, ring, document(56))
    applied(connection, ring, document(50))
    assert registry_reader.read_full(connection, ring, GUARD).quarantined() == {}


def test_event_types_are_registered_without_a_new_revision(connection, ring):
    applied(connection, ring, DOCUMENT)
    before = registered_rows.revision(connection)
    entry = {"id": "order", "json_schema": {"type": "object", "required": ["b", "a"]}, "examples": [{"b": 1, "a": 2}]}
    assert summary(applied(connection, ring, {"event_types": [entry]})) == [("create", "event_type", "order")]
    assert applied(connection, ring, DOCUMENT | {"event_types": [entry]}, prune=True).changes == ()
    [change] = applied(connection, ring, {"event_types": [entry | {"deprecated": True}]}).changes
    assert change.fields == (("deprecated", False, True),)
    row = registered_rows.document(connection)["event_type"]["order"]
    assert (row["json_schema"], row["examples"], row["deprecated"]) == (entry["json_schema"], entry["examples"], True)
    assert registered_rows.revision(connection) == before


def test_a_changed_secret_is_listed_without_the_secret(connection, ring):
    applied(connection, ring, DOCUMENT)
    changed = DOCUMENT["endpoints"][0] | {"auth": {"kind": "basic", "username": "ann", "secret": "tiger"}}
    result = applied(connection, ring, {"endpoints": [changed]})
    assert summary(result) == [("update", "endpoint", "ep1")]
    assert "tiger" not in str(result.changes)
    read = registry_reader.read_full(connection, ring, GUARD)
    assert read.endpoints["ep1"].auth.secret == Secret(b"tiger")


def test_a_dry_run_lists_the_differences_and_writes_none(connection, ring):
    tried = applied(connection, ring, DOCUMENT, dry_run=True)
    assert (len(tried.changes), tried.new_secrets) == (8, {})  # a secret that is stored nowhere must not be shown
    assert len(applied(connection, ring, DOCUMENT, dry_run=True).changes) == 8


def test_rows_outside_the_manifest_stay_unless_pruned(connection, ring):
    applied(connection, ring, DOCUMENT)
    fewer = DOCUMENT | {"endpoints": DOCUMENT["endpoints"][:1], "subscriptions": DOCUMENT["subscriptions"][:1]}
    assert summary(applied(connection, ring, fewer)) == []
    assert summary(applied(connection, ring, fewer, prune=True)) == [
        ("delete", "subscription", "s2"),
        ("delete", "endpoint", "ep2"),
    ]


def test_prune_refuses_a_document_that_names_a_subscription_only(connection, ring):
    """Regression: the subscription was deleted with its endpoint, without a line in the output and without an audit entry."""
    applied(connection, ring, DOCUMENT)
    before = registered_rows.rows_of(connection)
    for endpoints in ([], DOCUMENT["endpoints"][:1]):
        lacking = DOCUMENT | {"endpoints": endpoints}
        with pytest.raises(
            errors.RegistrationError,
            match=r"subscriptions\[1\].endpoint: prune would delete ep2, which the document does not name, and s2 with it",
        ):
            applied(connection, ring, lacking, prune=True)
        assert registered_rows.rows_of(connection) == before
        assert applied(connection, ring, lacking).changes == ()


def test_prune_deletes_an_endpoint_whose_subscription_moves(connection, ring):
    applied(connection, ring, DOCUMENT)
    first, second = DOCUMENT["subscriptions"]
    moved = DOCUMENT | {"endpoints": DOCUMENT["endpoints"][:1], "subscriptions": [first, second | {"endpoint": "ep1"}]}
    assert summary(applied(connection, ring, moved, prune=True)) == [
        ("update", "subscription", "s2"),
        ("delete", "endpoint", "ep2"),
    ]
    assert registered_rows.rows_of(connection)["subscription"].keys() == {"s1", "s2"}


def test_a_reference_to_a_missing_row_is_refused(connection, ring):
    broken = DOCUMENT | {"subscriptions": [DOCUMENT["subscriptions"][0] | {"endpoint": "nobody"}]}
    with pytest.raises(errors.RegistrationError, match=r"subscriptions\[0\].endpoint: there is no endpoint nobody"):
        applied(connection, ring, broken)
    assert registered_rows.revision(connection) == 0


def test_an_endpoint_cannot_move_to_another_customer(connection, ring):
    applied(connection, ring, DOCUMENT)
    moved = {"customers": [{"id": "c2"}], "endpoints": [DOCUMENT["endpoints"][0] | {"customer": "c2"}]}
    with pytest.raises(errors.RegistrationError, match=r"endpoints\[0\].customer: ep1 belongs to customer c1"):
        applied(connection, ring, moved)


def test_a_change_of_lane_is_refused_by_its_path(connection, ring):
    applied(connection, ring, DOCUMENT)
    first, second = DOCUMENT["endpoints"]
    with pytest.raises(errors.RegistrationError, match=r"^endpoints\[1\].mode: ep2 has mode direct, which cannot change"):
        applied(connection, ring, DOCUMENT | {"endpoints": [first, second | {"mode": "batch"}]})
    batched = DOCUMENT["endpoints"] + [second | {"id": "ep3", "mode": "batch"}]
    moved = [DOCUMENT["subscriptions"][0], DOCUMENT["subscriptions"][1] | {"endpoint": "ep3"}]
    with pytest.raises(
        errors.RegistrationError, match=r"^subscriptions\[1\].endpoint: s2 cannot move to an endpoint of another mode"
    ):
        applied(connection, ring, DOCUMENT | {"endpoints": batched, "subscriptions": moved})


def test_a_missing_signing_secret_is_created(connection, ring):
    applied(connection, ring, DOCUMENT)
    connection.execute("delete from secrets where endpoint_id = 'ep2'")
    result = applied(connection, ring, DOCUMENT)
    assert summary(result) == [("update", "endpoint", "ep2")]
    assert list(result.new_secrets) == ["ep2"]
    assert registry_reader.read_full(connection, ring, GUARD).quarantined() == {}


def test_a_secret_that_does_not_open_stays_unless_the_document_has_another(connection, ring):
    applied(connection, ring, DOCUMENT)
    connection.execute("update secrets set key_id = 'lost'")
    assert summary(applied(connection, ring, DOCUMENT)) == [("update", "endpoint", "ep1")]
    assert list(registry_reader.read_full(connection, ring, GUARD).quarantined()) == ["endpoint ep2"]


def test_expired_signing_secrets_are_replaced_by_a_new_one(connection, ring):
    applied(connection, ring, DOCUMENT)
    connection.execute("update secrets set expires_at = now() where purpose = 'signing'")
    assert list(applied(connection, ring, DOCUMENT).new_secrets) == ["ep2"]
    assert registry_reader.read_full(connection, ring, GUARD).quarantined() == {}
    assert connection.execute("select from secrets where expires_at is not null").fetchone() is None


def test_every_field_of_an_endpoint_is_shown_and_no_secret(connection, ring):
    applied(connection, ring, DOCUMENT)
    result = applied(connection, ring, {"endpoints": [WHOLE]})
    changed = [name for name, *_ in result.changes[0].fields]
    fields = registered_rows.document(connection)["endpoint"]["whole"]
    of_others = {"auth_username", "auth_header", "order_by", "disabled_reason", "disabled_at", "awaits_permission",
                 "permitted_origin", "permitted_per_minute", "permitted_at", "created_at", "updated_at"}  # fmt: skip
    assert changed == [name for name in fields if name not in of_others]
    assert applied(connection, ring, {"endpoints": [WHOLE]}) == apply.Result(changes=(), awaiting_permission=("whole",))
    shown = str(result) + str(result.changes) + str(registered_rows.document(connection))
    assert not any(secret in shown for secret in ("hunter2", SIGNING, ED25519, "PRIVATE"))
    read = registry_reader.read_full(connection, ring, GUARD)
    assert (read.endpoints["whole"], read.quarantined()) == (AS_READ, {})


def test_an_omitted_field_gets_its_default(connection, ring):
    applied(connection, ring, DOCUMENT)
    applied(connection, ring, {"endpoints": [WHOLE]})
    plain = {"id": "whole", "customer": "c1", "url": WHOLE["url"], "signing_secrets": [SIGNING], "mode": "batch"}
    [change] = applied(connection, ring, {"endpoints": [plain]}).changes
    assert ("tls_key", "***", None) in change.fields
    read = registry_reader.read_full(connection, ring, GUARD).endpoints["whole"]
    assert read == builders.endpoint(
        "whole", url=WHOLE["url"], mode=DeliveryMode.BATCH, batching=Batching(), retrying=Retrying()
    )


@pytest.mark.parametrize(
    "field", [{"auth": WHOLE["auth"] | {"secret": "tiger"}}, {"tls": {}}, {"signing_secrets": [ED25519]}], ids=str
)
def test_a_secret_of_any_purpose_can_be_replaced(connection, ring, field):
    applied(connection, ring, DOCUMENT)
    applied(connection, ring, {"endpoints": [WHOLE]})
    assert summary(applied(connection, ring, {"endpoints": [WHOLE | field]})) == [("update", "endpoint", "whole")]
    assert summary(applied(connection, ring, {"endpoints": [WHOLE | field]})) == []


def test_an_empty_schedule_differs_from_the_default_schedule(connection, ring):
    first = DOCUMENT["endpoints"][0] | {"retry": {"schedule_s": []}, "order_by": "customer.id"}
    applied(connection, ring, DOCUMENT | {"endpoints": [first, DOCUMENT["endpoints"][1]]})
    read = registry_reader.read_full(connection, ring, GUARD).endpoints
    assert (read["ep1"].retrying, read["ep1"].order_by) == (Retrying(schedule_s=()), "customer.id")
    assert (read["ep2"].retrying, read["ep2"].order_by) == (Retrying(), None)
    assert summary(applied(connection, ring, DOCUMENT | {"endpoints": [first]})) == []


DISABLE = "update endpoints set status = 'disabled', disabled_reason = 'gone' where endpoint_id = 'ep1'"


def test_a_manifest_without_status_keeps_a_disabled_endpoint(connection, ring):
    """Regression: the next automatic apply enabled the endpoint, which was disabled again days later."""
    applied(connection, ring, DOCUMENT)
    connection.execute(DISABLE)
    result = applied(connection, ring, DOCUMENT)
    assert (result.changes, result.still_disabled) == ((), {"ep1": "gone"})
    moved = DOCUMENT["endpoints"][0] | {"url": "https://example.com/moved"}
    assert [name for name, *_ in applied(connection, ring, {"endpoints": [moved]}).changes[0].fields] == ["url"]
    row = registered_rows.document(connection)["endpoint"]["ep1"]
    assert (row["url"], row["status"], row["disabled_reason"]) == ("https://example.com/moved", "disabled", "gone")
    assert row["disabled_at"] is not None
    assert registry_reader.read_full(connection, ring, GUARD).endpoints["ep1"].status is EndpointStatus.DISABLED


def test_a_manifest_with_status_active_enables_an_endpoint(connection, ring):
    applied(connection, ring, DOCUMENT)
    connection.execute(DISABLE)
    result = applied(connection, ring, {"endpoints": [DOCUMENT["endpoints"][0] | {"status": "active"}]})
    assert (result.changes[0].fields, result.still_disabled) == ((("status", "disabled", "active"),), {})
    row = registered_rows.document(connection)["endpoint"]["ep1"]
    assert (row["status"], row["disabled_reason"], row["disabled_at"]) == ("active", None, None)


@pytest.mark.parametrize("status", ["paused", "disabled"])
def test_a_status_set_by_manifest_ends_when_omitted(connection, ring, status):
    applied(connection, ring, {**DOCUMENT, "endpoints": [DOCUMENT["endpoints"][0] | {"status": status}], "subscriptions": []})
    [change] = applied(connection, ring, {"endpoints": [DOCUMENT["endpoints"][0]]}).changes
    assert change.fields == (("status", status, "active"),)


@pytest.mark.parametrize("pattern", UNREADABLE)
def test_an_unparsable_filter_can_be_replaced(connection, ring, pattern):
    applied(connection, ring, DOCUMENT)
    connection.execute("update filters set pattern = %s::jsonb", [pattern])
    [change] = applied(connection, ring, DOCUMENT).changes
    assert change.fields[0][2] == {"data": {"a": [1]}}
    assert registry_reader.read_full(connection, ring, GUARD).quarantined() == {}


def test_text_that_postgres_cannot_store_is_refused(connection, ring):
    with pytest.raises(errors.RegistrationError, match="NUL"):
        applied(connection, ring, {"customers": [{"id": "c1", "name": "a\0"}]})


def test_a_concurrent_commit_is_read_whole_or_not_at_all(connection, ring, other, in_background):
    """Regression: a subscription that was read without its endpoint ended the command with a KeyError."""
    applied(connection, ring, DOCUMENT)
    with other.transaction():
        other.execute("lock table subscriptions")  # the reader has the endpoints by then, and waits
        other.execute("insert into endpoints (endpoint_id, customer_id, url) values ('ep9', 'c1', 'https://example.com/')")
        other.execute("insert into subscriptions values ('s9', 'ep9', 'c1', '*', 'everything')")
        running = in_background(lambda: applied(connection, ring, DOCUMENT | {"tenants": [{"id": 9}]}, prune=True))
        waiting.for_a_lock(other)
    assert summary(running.result()) == [("create", "tenant", "9")]


def test_concurrent_applies_run_one_after_the_other(connection, ring, other, in_background):
    other.execute(query("apply_lock"))
    running = in_background(lambda: applied(connection, ring, {"tenants": [{"id": 1}, {"id": 2}]}))
    waiting.for_a_lock(other)
    other.execute("insert into tenants values ('1')")
    other.execute(query("apply_unlock"))
    assert summary(running.result()) == [("create", "tenant", "2")]


def test_a_row_changed_meanwhile_is_not_overwritten(connection, ring, other, in_background):
    applied(connection, ring, DOCUMENT)
    with other.transaction():
        other.execute("update tenants set name = 'theirs' where tenant_id = '1'")
        running = in_background(lambda: applied(connection, ring, {"tenants": [{"id": 1, "name": "ours"}]}))
        waiting.for_a_lock(other)
    with pytest.raises(errors.RegistryUnavailable, match="another transaction changed or locked the same rows"):
        running.result()


CHANGED = {
    "delete from tenants where tenant_id = '2'": {"tenants": [{"id": "2", "name": "ours"}]},
    "delete from customers where customer_id = 'c1'": {"customers": [{"id": "c1", "name": "ours"}]},
    "delete from endpoints where endpoint_id = 'ep1'": {"endpoints": [DOCUMENT["endpoints"][0] | {"status": "paused"}]},
    "delete from subscriptions where subscription_id = 's2'": {
        "subscriptions": [DOCUMENT["subscriptions"][1] | {"event_type": "*"}]
    },
    "delete from event_types where event_type = 'order'": {"event_types": [{"id": "order", "description": "ours"}]},
}
"""The deletion of a row → a manifest that changes the row."""


@pytest.mark.parametrize("deletes", CHANGED)
def test_a_row_deleted_meanwhile_is_not_inserted_again(connection, ring, other, monkeypatch, deletes):
    """Regression: the row was inserted again without its secrets, subscriptions or scopes, and apply reported success."""
    applied(connection, ring, DOCUMENT | {"event_types": [{"id": "order"}]})
    require_possible = diff.require_possible

    def deleting(*compared):
        require_possible(*compared)
        other.execute(deletes)

    monkeypatch.setattr(diff, "require_possible", deleting)
    with pytest.raises(errors.RegistryUnavailable, match="another transaction changed or locked the same rows"):
        applied(connection, ring, CHANGED[deletes])
    [(kind, [row])] = CHANGED[deletes].items()
    assert row["id"] not in registered_rows.document(connection)[kind.removesuffix("s")]
