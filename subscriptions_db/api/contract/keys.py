"""Create, authenticate, list and revoke API keys.

Runs in the API and in `fanout` commands. A key is `fk_<12 characters>_<256 random bits>`. The part before the second underscore
is the id of the key, and is not secret. Postgres stores a SHA-256 digest of the key only; 256 random bits need no slow hash.
"""

from __future__ import annotations

import base64
import datetime as dt
import enum
import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from delivery import errors
from delivery.registry_model import EndpointId, TenantId
from delivery.secret import Secret
from subscriptions_db.api.contract.principals import Principal, Scope
from subscriptions_db.postgres import audit_entries, connect
from subscriptions_db.postgres.sql import query

SECRET_BYTES = 32
"""Random bytes in the secret part of a key. A SHA-256 digest has as many bytes, and `authenticate` relies on that."""
EXPIRES_SOON = dt.timedelta(days=14)
"""Answers to requests with a key have the header `Fanout-Key-Expires-At` if the key expires within this time."""
NOTE_USE_EVERY_S = 300.0
"""Least seconds between two writes of the last use of one key by one process. A process with more keys in use than it can
remember may write earlier (MAX_KEYS in admission/key_use.py)."""
LIMITED = "limited "
"""The stored digest of a key that is limited to endpoints or tenants is the digest of this prefix and the key. So a version of
the platform that knows no limits refuses the key. No other key has the same digest, because keys contain no space."""
MAX_ENDPOINTS = 100
"""Maximum endpoints of one limited key, because each transaction with the key names all of them."""
_FORM = re.compile(r"(fk_[a-z2-7]{12})_[A-Za-z0-9_-]{43}")


class KeyState(enum.StrEnum):
    """The state of an API key. An active or expiring key is valid. An expired or revoked key is not."""

    ACTIVE = "active"
    EXPIRING = "expiring"
    """The key is valid, and expires within `EXPIRES_SOON`."""
    EXPIRED = "expired"
    REVOKED = "revoked"


class NewKey(NamedTuple):
    """A new API key: its id, and its text, which is shown once and stored nowhere."""

    key_id: str
    text: Secret


def create(
    connection: connect.Connection,
    *,
    customer_id: str | None,
    scope: Scope,
    name: str = "",
    expires_at: dt.datetime | None = None,
    tenants: Sequence[str] = (),
    endpoints: Sequence[str] = (),
) -> NewKey:
    """Create a key of a customer, or of the platform, and write an audit entry with the actor `command`.

    `customer_id` None: a key of the platform. `expires_at` None: the key does not expire.
    `tenants` limits a publisher's key to events of these tenants. Empty: events of every tenant. `endpoints` limits a
    customer's key to these endpoints. Empty: every endpoint of the customer. Raise RegistrationError for an unknown customer,
    for an endpoint that the customer does not own, and for more than MAX_ENDPOINTS endpoints. Also raise it for a customer or a
    limit that does not fit the scope. `tenants` may name unknown tenants.
    """
    if scope.is_of_no_customer and customer_id is not None:
        raise errors.RegistrationError(
            "customer", f"a key of scope {scope} belongs to no customer, so no key was created: leave the customer out"
        )
    if customer_id is None and not scope.is_of_no_customer:
        raise errors.RegistrationError("customer", f"a key of scope {scope} needs a customer, so no key was created: name one")
    if tenants and scope is not Scope.PUBLISHER:
        raise errors.RegistrationError(
            "tenants", "only a key of scope publisher may name tenants, so no key was created: leave them out"
        )
    if endpoints and customer_id is None:
        raise errors.RegistrationError(
            "endpoints", "only a customer's key may name endpoints, so no key was created: leave them out"
        )
    limits = {"tenants": sorted(set(tenants)), "endpoints": sorted(set(endpoints))}
    limits = {field: named for field, named in limits.items() if named}
    if len(limits.get("endpoints", ())) > MAX_ENDPOINTS:
        raise errors.RegistrationError(
            "endpoints", f"a key may name at most {MAX_ENDPOINTS} endpoints, so no key was created: name fewer"
        )
    key_id = "fk_" + base64.b32encode(secrets.token_bytes(8))[:12].decode().lower()
    text = f"{key_id}_{secrets.token_urlsafe(SECRET_BYTES)}"
    row = {"key_id": key_id, "customer_id": customer_id, "scope": scope.value, "name": name, "expires_at": expires_at}
    with connect.translated_errors(), connection.transaction():
        _require_own(connection, customer_id, limits.get("endpoints", []))
        columns = {"tenants": None, "endpoints": None} | limits
        connection.execute(query("put_api_key"), row | {"digest": digest_of(text, is_limited=bool(limits))} | columns)
        after: dict[str, Any] = {"scope": scope.value, "name": name, "expires_at": expires_at} | limits
        audit_entries.note(connection, audit_entries.COMMAND, "create", "api_key", key_id, customer_id=customer_id, after=after)
    return NewKey(key_id, Secret(text.encode()))


def _require_own(connection: connect.Connection, customer_id: str | None, endpoints: Sequence[str]) -> None:
    """Raise RegistrationError unless all `endpoints` belong to the customer."""
    if not endpoints:
        return
    found = connection.execute(query("customers_of_endpoints"), {"ids": endpoints})
    own = {row["endpoint_id"] for row in found if row["customer_id"] == customer_id}
    if missing := [endpoint_id for endpoint_id in endpoints if endpoint_id not in own]:
        raise errors.RegistrationError(
            "endpoints",
            f"customer {customer_id} has no endpoint {', '.join(missing)}, so no key was created: name endpoints of "
            "this customer, as `fanout get endpoints` lists them",
        )


def list_keys(connection: connect.Connection, customer_id: str | None = None) -> list[dict[str, Any]]:
    """Return the keys of one customer, or all keys (None), the oldest first, each with its KeyState and without its digest.

    Expired and revoked keys are included.
    """
    now = dt.datetime.now(dt.UTC)
    with connect.translated_errors():
        rows = connection.execute(query("api_keys"), {"customer_id": customer_id}).fetchall()
    return [row | {"state": state(row["expires_at"], row["revoked_at"], now).value} for row in rows]


def revoke(connection: connect.Connection, key_id: str) -> None:
    """Revoke a key, by its id or its whole text, and write an audit entry; raise RegistrationError if there is no such key.

    A repeat changes nothing. The API refuses the key within 5 s.
    """
    with connect.translated_errors(), connection.transaction():
        found = connection.execute(query("revoke_api_key"), {"key_id": key_id_of(key_id) or key_id}).fetchone()
        if found is not None and found["held"]:
            change = {
                "customer_id": found["customer_id"],
                "before": {"revoked_at": None},
                "after": {"revoked_at": found["revoked_at"]},
            }
            audit_entries.note(connection, audit_entries.COMMAND, "revoke", "api_key", found["key_id"], **change)
    if found is None:
        named = key_id[:15]  # the id, without the secret of a whole key
        raise errors.RegistrationError(
            "api key", f"there is no key {named}, so no key was revoked: correct the id; `fanout api-keys list` lists all"
        )


def state(expires_at: dt.datetime | None, revoked_at: dt.datetime | None, now: dt.datetime) -> KeyState:
    """Return the state of a key. Pure."""
    if revoked_at is not None:
        return KeyState.REVOKED
    if expires_at is None or expires_at - now > EXPIRES_SOON:
        return KeyState.ACTIVE
    return KeyState.EXPIRING if expires_at > now else KeyState.EXPIRED


def shown_expiry(expires_at: dt.datetime) -> str:
    """Return the time at which a key expires, by RFC 3339 in UTC, to the second."""
    return expires_at.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def note_use(connection: connect.Connection, key_ids: Sequence[str], now: dt.datetime) -> None:
    """Store `now` as the last use of these keys, except of keys whose stored last use is less than `NOTE_USE_EVERY_S` / 2 old.

    Keys whose rows another process is writing are left out too.
    """
    earlier = now - dt.timedelta(seconds=NOTE_USE_EVERY_S / 2)
    connection.execute(query("note_use_of_api_keys"), {"key_ids": list(key_ids), "now": now, "earlier": earlier})


def key_id_of(text: str) -> str | None:
    """Return the id in the text of a key; None if the text does not have the form of a key."""
    matched = _FORM.fullmatch(text)
    return matched[1] if matched else None


def digest_of(text: str, *, is_limited: bool = False) -> bytes:
    """Return the digest of a key, which Postgres stores.

    The digest of a limited key includes `LIMITED`. So a version of the platform that knows no limits refuses the key, and never
    takes it for an unlimited one.
    """
    return hashlib.sha256((LIMITED + text if is_limited else text).encode()).digest()


def authenticate(row: Mapping[str, Any] | None, text: str, now: dt.datetime) -> Principal | None:
    """Return the principal of the key `text`; None if the key is wrong, revoked or expired. Pure.

    `row` is the stored row of the key's id; None if there is no such id. A key with a scope that this platform version does not
    know is refused too: a newer version may have created the key. The comparison takes the same time without a row, so timing
    does not reveal which ids exist.
    """
    is_limited = row is not None and (row["tenants"] is not None or row["endpoints"] is not None)
    digest = digest_of(text, is_limited=is_limited)
    is_right = hmac.compare_digest(digest, bytes(row["digest"]) if row else bytes(SECRET_BYTES))
    if row is None or not is_right or row["revoked_at"] is not None:
        return None
    if row["expires_at"] is not None and row["expires_at"] <= now:
        return None
    try:
        scope = Scope(row["scope"])
    except ValueError:
        return None
    tenants = None if row["tenants"] is None else frozenset(map(TenantId, row["tenants"]))
    endpoints = None if row["endpoints"] is None else frozenset(map(EndpointId, row["endpoints"]))
    return Principal(row["key_id"], row["customer_id"], scope, tenants, endpoints, row["expires_at"])
