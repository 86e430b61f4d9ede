"""Customers' secrets are stored sealed, and open only for their own row."""

import base64

import pytest
from psycopg import sql

from delivery import errors
from delivery.config import settings
from fanout.admin import diagnosis
from fanout.local import stack
from subscriptions_db.secrets import keyring
from subscriptions_db.snapshot import registry_reader
from tests.integration.registry.documents import CLIENT, DOCUMENT, GUARD, WHOLE, applied

pytestmark = pytest.mark.integration


def test_no_table_has_an_unsealed_secret(connection, ring):
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
    for secret in (
        b"hunter2",
        b"0123456789abcdef0123456789abcdef",
        b"e" * 32,
        CLIENT.key.splitlines()[1].encode(),
    ):
        for form in (secret.decode(), secret.hex(), base64.b64encode(secret).decode()):
            assert form not in dump


def test_a_sealed_secret_moved_to_another_row_does_not_open(connection, ring):
    applied(connection, ring, DOCUMENT)
    connection.execute(
        "update secrets set sealed = (select sealed from secrets where endpoint_id = 'ep2') "
        "where endpoint_id = 'ep1' and purpose = 'signing'"
    )
    read = registry_reader.read_full(connection, ring, GUARD)
    assert list(read.quarantined()) == ["endpoint ep1"]


def test_a_secret_does_not_open_for_another_scheme(connection, ring):
    applied(connection, ring, DOCUMENT)
    connection.execute("update secrets set purpose = 'signing_v1a' where endpoint_id = 'ep1' and purpose = 'signing'")
    assert "cannot be opened" in registry_reader.read_full(connection, ring, GUARD).quarantined()["endpoint ep1"]


def test_after_a_key_rotation_the_old_key_is_not_needed(connection):
    old, new = stack.new_key(), stack.new_key()
    applied(connection, keyring.KeyRing.from_settings(settings.KeysSettings(ring={"old": old})), DOCUMENT)
    before = registry_reader.read_full(
        connection, keyring.KeyRing.from_settings(settings.KeysSettings(ring={"old": old})), GUARD
    )
    both = keyring.KeyRing.from_settings(settings.KeysSettings(ring={"old": old, "new": new}, active="new"))
    assert keyring.rotate(connection, both) == 3
    assert keyring.rotate(connection, both) == 0
    after = registry_reader.read_full(
        connection, keyring.KeyRing.from_settings(settings.KeysSettings(ring={"new": new})), GUARD
    )
    assert after.endpoints == before.endpoints


def test_a_rotation_with_another_key_of_a_known_id_changes_nothing(connection):
    """Regression: one id stood for two keys afterwards, so no key ring could open all secrets."""
    old, new, mistaken = stack.new_key(), stack.new_key(), stack.new_key()
    applied(connection, keyring.KeyRing.from_settings(settings.KeysSettings(ring={"old": old})), DOCUMENT)
    applied(
        connection,
        keyring.KeyRing.from_settings(settings.KeysSettings(ring={"old": old, "new": new}, active="new")),
        {"endpoints": [WHOLE]},
    )
    before = connection.execute("select key_id, sealed from secrets order by secret_id").fetchall()
    ring = keyring.KeyRing.from_settings(settings.KeysSettings(ring={"old": old, "new": mistaken}, active="new"))
    with pytest.raises(errors.SettingsError, match="has another key new than the one that sealed secrets"):
        keyring.rotate(connection, ring)
    assert connection.execute("select key_id, sealed from secrets order by secret_id").fetchall() == before


def test_doctor_names_the_keys_that_may_not_be_removed_yet(connection, database):
    """Regression: nothing named a key that an API with the old settings still used, and the job did not start without it."""
    keys = {"old": stack.new_key(), "new": stack.new_key()}
    applied(connection, keyring.KeyRing.from_settings(settings.KeysSettings(ring=keys, active="old")), DOCUMENT)
    config = settings.Settings(
        database=settings.DatabaseSettings(url=database), keys=settings.KeysSettings(ring=keys, active="new")
    )
    [found] = diagnosis._findings(config, {"registry": diagnosis._registry})
    assert found.is_fine
    assert "; keys in use beside new: old. Run `fanout keys rotate` before" in found.text
    keyring.rotate(connection, keyring.KeyRing.from_settings(config.keys))
    [found] = diagnosis._findings(config, {"registry": diagnosis._registry})
    assert found.text.endswith(" subscriptions")


def test_a_secret_that_does_not_open_blocks_no_other_resealing(connection, ring, ring_key):
    applied(connection, ring, DOCUMENT)
    connection.execute("update secrets set key_id = 'lost' where endpoint_id = 'ep2'")
    new = keyring.KeyRing.from_settings(settings.KeysSettings(ring={"k1": ring_key, "k2": stack.new_key()}, active="k2"))
    said = r"re-sealed 2 secrets with k2, but 1 cannot be opened and stay unchanged. The first is the signing secret of .* ep2"
    with pytest.raises(errors.SealError, match=said):
        keyring.rotate(connection, new)
    used = connection.execute("select key_id from secrets order by 1").fetchall()
    assert [row["key_id"] for row in used] == ["k2", "k2", "lost"]
