"""API keys: make, recognise, list and revoke them.

Runs in the API and in the command. A key is `fk_<12 characters>_<256 random bits>`. Its beginning is its id and no secret; of
the whole there is a SHA-256 digest only, which is enough for what nobody can guess.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple

from delivery import errors
from delivery.secret import Secret
from subscriptions_db.api.contract.principals import Principal, Scope
from subscriptions_db.postgres import audit, connect
from subscriptions_db.postgres.sql import query

SECRET_BYTES = 32
_FORM = re.compile(r"(fk_[a-z2-7]{12})_[A-Za-z0-9_-]{43}")


class Made(NamedTuple):
    """A new key. Its text is shown once and kept nowhere."""

    key_id: str
    text: Secret


def create(
    connection: connect.Connection,
    *,
    customer_id: str | None,
    scope: Scope,
    name: str = "",
    expires_at: dt.datetime | None = None,
) -> Made:
    """Make a key for a customer, or one of the platform's own. By the command, as which it is noted."""
    if scope.is_of_no_customer != (customer_id is None):
        raise errors.RegistrationError(
            "scope", "operator and executor are for keys of no customer, the others for a customer's"
        )
    key_id = "fk_" + base64.b32encode(secrets.token_bytes(8))[:12].decode().lower()
    text = f"{key_id}_{secrets.token_urlsafe(SECRET_BYTES)}"
    row = {"key_id": key_id, "customer_id": customer_id, "scope": scope.value, "name": name, "expires_at": expires_at}
    with connect.translating(), connection.transaction():
        connection.execute(query("put_api_key"), row | {"digest": digest_of(text)})
        told = {"scope": scope.value, "name": name, "expires_at": expires_at}
        audit.note(connection, audit.COMMAND, "create", "api_key", key_id, customer_id=customer_id, after=told)
    return Made(key_id, Secret(text.encode()))


def all_(connection: connect.Connection, customer_id: str | None = None) -> list[dict[str, Any]]:
    """Return what is known of the keys: of one customer, or of everybody."""
    with connect.translating():
        return connection.execute(query("api_keys"), {"customer_id": customer_id}).fetchall()


def revoke(connection: connect.Connection, key_id: str) -> None:
    """Take a key away: within 5 s nothing is answered to it. Safe to repeat. Takes the whole key as well as its beginning."""
    with connect.translating(), connection.transaction():
        found = connection.execute(query("revoke_api_key"), {"key_id": id_of(key_id) or key_id}).fetchone()
        if found is not None and found["held"]:
            told = {
                "customer_id": found["customer_id"],
                "before": {"revoked_at": None},
                "after": {"revoked_at": found["revoked_at"]},
            }
            audit.note(connection, audit.COMMAND, "revoke", "api_key", found["key_id"], **told)
    if found is None:
        raise errors.RegistrationError("api key", "there is no such key; `fanout api-keys list` lists them")


def id_of(text: str) -> str | None:
    """Return the beginning of a key; None when this is none."""
    matched = _FORM.fullmatch(text)
    return matched[1] if matched else None


def digest_of(text: str) -> bytes:
    """Return what is kept of a key."""
    return hashlib.sha256(text.encode()).digest()


def recognise(row: Mapping[str, Any] | None, text: str, now: dt.datetime) -> Principal | None:
    """Return who a key is, by the row of its id; None for one that is wrong, revoked or expired. Pure.

    Compares in the same time whether or not there is a row: nobody learns which ids exist.
    """
    is_right = hmac.compare_digest(digest_of(text), bytes(row["digest"]) if row else bytes(SECRET_BYTES))
    if row is None or not is_right or row["revoked_at"] is not None:
        return None
    if row["expires_at"] is not None and row["expires_at"] <= now:
        return None
    return Principal(row["key_id"], row["customer_id"], Scope(row["scope"]))
