"""Seal customers' secrets for Postgres, and open them again.

Runs on the driver and in the command. AES-256-GCM (NIST SP 800-38D) with a random 96-bit nonce. The associated data binds
a sealed secret to its row: moved to another customer's endpoint or purpose, it does not open.
"""

from __future__ import annotations

import base64
import binascii
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
from subscriptions_db.postgres import audit, connect
from subscriptions_db.postgres.sql import query

VERSION = b"\x01"
NONCE_BYTES = 12
KEY_BYTES = 32
MAX_KEY_ID_CHARS = 64
"""The bound of the column."""
HOW_TO_MAKE_ONE = "`fanout keys generate` prints a new one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The row that a sealed secret belongs to."""

    customer_id: str
    endpoint_id: str
    purpose: str
    secret_id: str

    def associated_data(self) -> bytes:
        """Return an encoding in which no two places look the same."""
        return json.dumps([self.customer_id, self.endpoint_id, self.purpose, self.secret_id]).encode()


class KeyRing:
    """Keys by id: all of them open, the active one seals."""

    def __init__(self, keys: Mapping[str, Secret], active: str) -> None:
        self.active = active
        self._ciphers = {key_id: AESGCM(key.reveal()) for key_id, key in keys.items()}

    @classmethod
    def from_settings(cls, config: settings.Keys) -> KeyRing:
        """Check the settings; raise SettingsError without ever quoting a key."""
        if not config.ring:
            raise errors.SettingsError(f"setting keys.ring is empty: customers' secrets need a key; {HOW_TO_MAKE_ONE}")
        keys = {key_id: _key(key_id, text.get_secret_value()) for key_id, text in config.ring.items()}
        active = config.active or (next(iter(keys)) if len(keys) == 1 else "")
        if active not in keys:
            raise errors.SettingsError(f"setting keys.active must name one of keys.ring: {', '.join(keys)}")
        return cls(keys, active)

    def seal(self, secret: Secret, place: Place) -> bytes:
        """Return the secret, sealed for its row under the active key."""
        nonce = os.urandom(NONCE_BYTES)
        return VERSION + nonce + self._ciphers[self.active].encrypt(nonce, secret.reveal(), place.associated_data())

    def open(self, key_id: str, sealed: bytes, place: Place) -> Secret:
        """Return the secret; raise SealError when the key is missing or the data belongs elsewhere."""
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise errors.SealError(f"key {key_id} is not in keys.ring")
        if sealed[:1] != VERSION:
            raise errors.SealError("the sealed form is of an unknown version")
        nonce, ciphertext = sealed[1 : 1 + NONCE_BYTES], sealed[1 + NONCE_BYTES :]
        try:
            return Secret(cipher.decrypt(nonce, ciphertext, place.associated_data()))
        except (InvalidTag, ValueError):  # ValueError: cut off within the nonce
            raise errors.SealError(f"does not open with key {key_id}: another key of that id, or a moved row") from None


def require_fits(connection: connect.Connection, ring: KeyRing) -> None:
    """Raise SettingsError where nothing opens that was sealed with one of the keys in use.

    For whoever starts. Later a secret that does not open quarantines its endpoint; at the start, that would be all of them, and
    their events would be skipped.
    """
    opens: dict[str, bool] = {}
    for row in connection.execute(query("sealed_samples")):
        with contextlib.suppress(errors.SealError):
            opens[row["key_id"]] = opens.get(row["key_id"], False)
            ring.open(row["key_id"], row["sealed"], place_of(row))
            opens[row["key_id"]] = True
    if wrong := sorted(key_id for key_id, is_right in opens.items() if not is_right):
        raise errors.SettingsError(
            f"setting keys.ring does not fit the registry: nothing opens that was sealed with key {', '.join(wrong)}. "
            "Start with the ring by which the endpoints were registered; `fanout keys rotate` seals them by another key"
        )


def rotate(connection: connect.Connection, ring: KeyRing) -> int:
    """Seal everything anew under the active key and return how many secrets that were. Safe to repeat and to interrupt.

    One that does not open stays as it is and hinders no other; a SealError tells of it in the end.
    """
    count, last = 0, uuid.UUID(int=0)
    faults: list[str] = []
    with connect.translating():
        while True:
            with connection.transaction():
                rows = connection.execute(query("secrets_to_reseal"), {"active": ring.active, "after": last}).fetchall()
                resealed = [row for row in (_resealed(row, ring, faults) for row in rows) if row is not None]
                connection.cursor().executemany(query("reseal"), resealed)
                if resealed:
                    count_of = {"secrets": len(resealed)}
                    audit.note(connection, audit.COMMAND, "seal", "key", ring.active, customer_id=None, after=count_of)
            count += len(resealed)
            if not rows:
                break
            last = rows[-1]["secret_id"]
    if faults:
        raise errors.SealError(f"sealed {count} secrets with {ring.active}, but {len(faults)} do not open: {faults[0]}")
    return count


def _resealed(row: Mapping[str, Any], ring: KeyRing, faults: list[str]) -> dict[str, Any] | None:
    place = place_of(row)
    try:
        secret = ring.open(row["key_id"], row["sealed"], place)
    except errors.SealError as exc:
        faults.append(f"the {place.purpose} secret of endpoint {place.endpoint_id}: {exc}")
        return None
    return {"secret_id": row["secret_id"], "key_id": ring.active, "sealed": ring.seal(secret, place)}


def place_of(row: Mapping[str, object]) -> Place:
    """Return the place of a row of `secrets`."""
    return Place(
        customer_id=str(row["customer_id"]),
        endpoint_id=str(row["endpoint_id"]),
        purpose=str(row["purpose"]),
        secret_id=str(row["secret_id"]),
    )


def generate() -> str:
    """Return a new key in the form of the setting."""
    return base64.b64encode(os.urandom(KEY_BYTES)).decode()


def _key(key_id: str, text: str) -> Secret:
    if not 1 <= len(key_id) <= MAX_KEY_ID_CHARS:
        raise errors.SettingsError(f"setting keys.ring: a key's id has 1 to {MAX_KEY_ID_CHARS} characters")
    try:
        key = base64.b64decode(text, validate=True)
    except binascii.Error:
        key = b""
    if len(key) != KEY_BYTES:
        raise errors.SettingsError(f"setting keys.ring.{key_id} is not base64 of {KEY_BYTES} bytes; {HOW_TO_MAKE_ONE}")
    return Secret(key)
