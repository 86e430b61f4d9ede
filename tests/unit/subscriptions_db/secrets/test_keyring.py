"""A secret sealed for a row opens for that row only, and only with its key."""

import base64
from dataclasses import replace

import pytest

from delivery import errors
from delivery.config import settings
from delivery.secret import Secret
from subscriptions_db.secrets import keyring

KEY = base64.b64encode(b"k" * 32).decode()
OTHER_KEY = base64.b64encode(b"o" * 32).decode()
PLACE = keyring.SecretRow(customer_id="c1", endpoint_id="ep1", purpose="signing", secret_id="8a1f")
SECRET = Secret(b"hunter2")


def ring(active="k1", **keys):
    return keyring.KeyRing.from_settings(settings.KeysSettings(ring=keys or {"k1": KEY}, active=active))


def test_a_sealed_secret_opens_again():
    sealed = ring().seal(SECRET, PLACE)
    assert ring().open("k1", sealed, PLACE) == SECRET
    assert b"hunter2" not in sealed


def test_a_sealed_secret_is_version_nonce_ciphertext_and_tag():
    assert ring().seal(SECRET, PLACE)[0] == 1
    assert len(ring().seal(SECRET, PLACE)) == 1 + 12 + len(b"hunter2") + 16


def test_no_nonce_is_used_twice():
    assert len({ring().seal(SECRET, PLACE)[1:13] for _ in range(1000)}) == 1000


@pytest.mark.parametrize(
    "elsewhere",
    [
        replace(PLACE, customer_id="c2"),
        replace(PLACE, endpoint_id="ep2"),
        replace(PLACE, purpose="auth"),
        replace(PLACE, secret_id="8a20"),
        replace(PLACE, customer_id="c1e", endpoint_id="p1"),  # the same letters, parted elsewhere
        replace(PLACE, customer_id='c1", "ep1', endpoint_id=""),
    ],
)
def test_a_sealed_secret_opens_for_no_other_row(elsewhere):
    with pytest.raises(errors.SealError, match="cannot be opened with key k1"):
        ring().open("k1", ring().seal(SECRET, PLACE), elsewhere)


def test_a_sealed_secret_with_a_changed_byte_does_not_open():
    sealed = ring().seal(SECRET, PLACE)
    for position in range(len(sealed)):
        changed = bytearray(sealed)
        changed[position] ^= 1
        with pytest.raises(errors.SealError):
            ring().open("k1", bytes(changed), PLACE)


@pytest.mark.parametrize("length", [0, 1, 13, 20])
def test_a_truncated_sealed_secret_does_not_open(length):
    with pytest.raises(errors.SealError):
        ring().open("k1", ring().seal(SECRET, PLACE)[:length], PLACE)


def test_a_missing_key_is_named():
    with pytest.raises(errors.SealError, match="key k0 is not in"):
        ring().open("k0", ring().seal(SECRET, PLACE), PLACE)


def test_another_key_of_the_same_id_does_not_open_a_secret():
    with pytest.raises(errors.SealError, match="the key differs"):
        ring(k1=OTHER_KEY).open("k1", ring().seal(SECRET, PLACE), PLACE)


def test_the_active_key_seals_and_every_key_opens():
    both = ring(active="k2", k1=KEY, k2=OTHER_KEY)
    assert both.open("k1", ring().seal(SECRET, PLACE), PLACE) == SECRET
    assert ring(active="", k2=OTHER_KEY).open("k2", both.seal(SECRET, PLACE), PLACE) == SECRET


def test_a_generated_key_is_valid_in_the_settings():
    generated = keyring.generate()
    assert ring(k1=generated).active == "k1"
    assert generated != keyring.generate()


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({}, "keys.ring is empty.*fanout keys generate"),
        ({"ring": {"a": "c2hvcnQ="}}, "keys.ring.a is not base64 of 32 bytes.*fanout keys generate"),
        ({"ring": {"a": "%%%"}}, "keys.ring.a is not base64 of 32 bytes"),
        ({"ring": {"a": "é"}}, "keys.ring.a is not base64 of 32 bytes"),  # regression: a ValueError
        ({"ring": {"a" * 65: KEY}}, "a key's id has 1 to 64 characters"),
        ({"ring": {"": KEY}}, "a key's id has 1 to 64 characters"),
        ({"ring": {"a": KEY, "b": OTHER_KEY}}, "so no secret can be sealed. Nothing was changed. Set it to one of a, b"),
        ({"ring": {"a": KEY}, "active": "b"}, "keys.active names no key of keys.ring, so no secret can be sealed"),
    ],
)
def test_a_wrong_key_ring_is_refused_without_quoting_a_key(keys, said):
    with pytest.raises(errors.SettingsError, match=said) as refused:
        keyring.KeyRing.from_settings(settings.KeysSettings(**keys))
    assert not any(text in str(refused.value) for text in (KEY.rstrip("="), OTHER_KEY, "c2hvcnQ=", "%%%"))
