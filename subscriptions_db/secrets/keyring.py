"""Seal customers' secrets for Postgres, and open them again.

Runs on the driver, in executors that look up the registry, in `fanout` commands, in the API, and in programs that read `GET
/v1/snapshot`. AES-256-GCM (NIST SP 800-38D) with a random 96-bit nonce. The associated data binds a sealed secret to its row: a
secret moved to another customer, endpoint or purpose does not open.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from delivery import errors
from delivery.config import settings
from delivery.secret import Secret
from subscriptions_db.postgres import audit_entries, connect
from subscriptions_db.postgres.sql import query

VERSION = b"\x01"
"""The first byte of a sealed secret: its format version."""
NONCE_BYTES = 12
KEY_BYTES = 32
MAX_KEY_ID_CHARS = 64
"""Maximum length of a key id. The table column has the same bound."""
NEW_KEY_HINT = "If no secret is stored yet, `fanout keys generate` prints a new key"
"""The end of messages about a key ring that is missing or wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRow:
    """The identity of the row for which a secret is sealed."""

    customer_id: str
    endpoint_id: str
    purpose: str
    secret_id: str

    def associated_data(self) -> bytes:
        """Return an unambiguous encoding of the identity."""
        return json.dumps([self.customer_id, self.endpoint_id, self.purpose, self.secret_id]).encode()


class KeyRing:
    """Keys by id. Every key opens secrets; only the active key seals."""

    def __init__(self, keys: Mapping[str, Secret], active: str) -> None:
        self.active = active
        self._ciphers = {key_id: AESGCM(key.reveal()) for key_id, key in keys.items()}

    @classmethod
    def from_settings(cls, config: settings.KeysSettings) -> KeyRing:
        """Return the key ring of the settings; raise SettingsError, without quoting a key, if they are invalid."""
        if not config.ring:
            raise errors.SettingsError(
                "setting keys.ring is empty, so no customer's secret can be sealed or opened. Nothing was changed. Set it to "
                f"the keys that sealed the stored secrets. {NEW_KEY_HINT}"
            )
        keys = {key_id: _key(key_id, text.get_secret_value()) for key_id, text in config.ring.items()}
        active = config.active or (next(iter(keys)) if len(keys) == 1 else "")
        if active not in keys:
            raise errors.SettingsError(
                "setting keys.active names no key of keys.ring, so no secret can be sealed. Nothing was changed. Set it to one "
                f"of {', '.join(keys)}"
            )
        return cls(keys, active)

    def seal(self, secret: Secret, row: SecretRow) -> bytes:
        """Return the secret sealed for its row with the active key."""
        nonce = os.urandom(NONCE_BYTES)
        return VERSION + nonce + self._ciphers[self.active].encrypt(nonce, secret.reveal(), row.associated_data())

    def open(self, key_id: str, sealed: bytes, row: SecretRow) -> Secret:
        """Return the secret; raise SealError if the key is missing or differs, or the bytes are of another row or format."""
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise errors.SealError(
                f"key {key_id} is not in keys.ring, so a secret that it sealed was not opened: add this key to keys.ring"
            )
        if sealed[:1] != VERSION:
            raise errors.SealError(
                "the sealed secret has an unknown format, so it was not opened: run the version of fanout that sealed it, "
                "or a later version"
            )
        nonce, ciphertext = sealed[1 : 1 + NONCE_BYTES], sealed[1 + NONCE_BYTES :]
        try:
            return Secret(cipher.decrypt(nonce, ciphertext, row.associated_data()))
        except (InvalidTag, ValueError):  # ValueError: truncated within the nonce
            raise errors.SealError(
                f"a secret cannot be opened with key {key_id}, so it was not used: the key differs from the one that sealed "
                "the secret, or the row was changed. Restore the key, or the row"
            ) from None


def require_fits(connection: connect.Connection, ring: KeyRing) -> None:
    """Try to open up to ten stored secrets of each key id. Raise SettingsError if, for some key id, none of them opens.

    Called before the job reads or the API uses the registry, and by commands that seal new secrets, such as `fanout apply`.
    Later, a secret that does not open quarantines its endpoint. Without this check, a wrong key ring would quarantine every
    endpoint.
    """
    if wrong := _misfits(connection, ring):
        raise errors.SettingsError(
            "setting keys.ring does not fit the registry: of the secrets that were sealed with key "
            f"{', '.join(wrong)}, none of a sample can be opened. Nothing was changed. Put the key that sealed them into "
            "keys.ring, and start again. After that, `fanout keys rotate` can re-seal them with another key"
        )


def _misfits(connection: connect.Connection, ring: KeyRing) -> list[str]:
    """Return the ids of the keys for which the ring opens none of the sampled secrets."""
    opens: dict[str, bool] = {}
    for row in connection.execute(query("sealed_samples")):
        with contextlib.suppress(errors.SealError):
            opens[row["key_id"]] = opens.get(row["key_id"], False)
            ring.open(row["key_id"], row["sealed"], secret_row_of(row))
            opens[row["key_id"]] = True
    return sorted(key_id for key_id, is_right in opens.items() if not is_right)


def ids_in_use(connection: connect.Connection) -> frozenset[str]:
    """Return the ids of the keys with which the stored secrets are sealed."""
    with connect.translated_errors():
        return frozenset(row["key_id"] for row in connection.execute(query("key_ids_in_use")))


def rotate(connection: connect.Connection, ring: KeyRing) -> int:
    """Re-seal, with the active key, every secret that another key has sealed; return their number.

    Safe to repeat and to interrupt. A secret that does not open stays unchanged. The function then re-seals all other secrets,
    and raises SealError with the number of such secrets and the first of them. Raise SettingsError, and change nothing, if
    secrets were sealed by another key with the id of the active key: one id would stand for two keys.
    """
    count, last = 0, uuid.UUID(int=0)
    faults: list[str] = []
    with connect.translated_errors():
        if ring.active in _misfits(connection, ring):
            raise errors.SettingsError(
                f"setting keys.ring has another key {ring.active} than the one that sealed secrets of the registry: none of a "
                "sample can be opened. Nothing was changed. Use the key that the job and the API have, or a new id"
            )
        while True:
            with connection.transaction():
                rows = connection.execute(query("secrets_to_reseal"), {"active": ring.active, "after": last}).fetchall()
                resealed = [row for row in (_resealed(row, ring, faults) for row in rows) if row is not None]
                connection.cursor().executemany(query("reseal"), resealed)
                if resealed:
                    count_of = {"secrets": len(resealed)}
                    audit_entries.note(
                        connection, audit_entries.COMMAND, "seal", "key", ring.active, customer_id=None, after=count_of
                    )
            count += len(resealed)
            if not rows:
                break
            last = rows[-1]["secret_id"]
    if faults:
        raise errors.SealError(
            f"re-sealed {count} secrets with {ring.active}, but {len(faults)} cannot be opened and stay unchanged. "
            f"The first is {faults[0]}. Then run `fanout keys rotate` again"
        )
    return count


def _resealed(row: Mapping[str, Any], ring: KeyRing, faults: list[str]) -> dict[str, Any] | None:
    identity = secret_row_of(row)
    try:
        secret = ring.open(row["key_id"], row["sealed"], identity)
    except errors.SealError as exc:
        faults.append(f"the {identity.purpose} secret of endpoint {identity.endpoint_id}: {exc}")
        return None
    return {"secret_id": row["secret_id"], "key_id": ring.active, "sealed": ring.seal(secret, identity)}


def secret_row_of(row: Mapping[str, object]) -> SecretRow:
    """Return the identity of a row of `secrets`."""
    return SecretRow(
        customer_id=str(row["customer_id"]),
        endpoint_id=str(row["endpoint_id"]),
        purpose=str(row["purpose"]),
        secret_id=str(row["secret_id"]),
    )


def generate() -> str:
    """Return a new random key in base64, for the setting `keys.ring`."""
    return base64.b64encode(os.urandom(KEY_BYTES)).decode()


def _key(key_id: str, text: str) -> Secret:
    if not 1 <= len(key_id) <= MAX_KEY_ID_CHARS:
        raise errors.SettingsError(
            f"setting keys.ring: a key's id has 1 to {MAX_KEY_ID_CHARS} characters, and one has {len(key_id)}, so no secret "
            "can be sealed or opened. Write each key as id1=base64, with a shorter or longer id before the `=`"
        )
    try:
        key = base64.b64decode(text, validate=True)
    except ValueError:  # binascii.Error, or a character that is not ASCII
        key = b""
    if len(key) != KEY_BYTES:
        raise errors.SettingsError(
            f"setting keys.ring.{key_id} is not base64 of {KEY_BYTES} bytes, so no secret can be sealed or opened. Restore the "
            f"key that sealed the stored secrets. {NEW_KEY_HINT}"
        )
    return Secret(key)
