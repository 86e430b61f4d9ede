"""Give an endpoint a new signing secret, while the earlier secrets sign too during an overlap.

Runs in `fanout` commands and in the API. A running job needs no restart. The job reads the new secret with the next revision.
The job stops using an earlier secret at the end time of that secret.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

from delivery import errors
from delivery.registry_model import SignatureScheme, SigningKey
from delivery.webhooks.sending import signing
from subscriptions_db.postgres import audit_entries, connect
from subscriptions_db.postgres.sql import query
from subscriptions_db.registration import apply
from subscriptions_db.secrets import endpoint_secrets, keyring
from subscriptions_db.secrets.endpoint_secrets import EndpointSecret

MAX_OVERLAP = dt.timedelta(days=30)
"""Maximum time in which an earlier secret signs beside a new one."""
OVERLAP_0 = "`--overlap 0s`, in the API `overlap_s: 0`"
"""The option and the field of a request that end earlier secrets at once, for messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """The result of a rotation: a new signing key, which is shown to the customer once, and the ends of earlier secrets."""

    key: SigningKey
    others_end_at: tuple[dt.datetime, ...]
    """The ends of the earlier secrets that still sign, the earliest first."""
    customer_id: str
    """The owner of the endpoint."""

    def audit_fields(self, overlap: dt.timedelta) -> dict[str, Any]:
        """Return the audit entry's fields, `scheme` and `overlap_s`, without the secret."""
        return {"scheme": self.key.scheme.value, "overlap_s": round(overlap.total_seconds())}


def rotate(
    connection: connect.Connection,
    ring: keyring.KeyRing,
    endpoint_id: str,
    *,
    scheme: SignatureScheme,
    overlap: dt.timedelta,
) -> Rotation:
    """Create a signing secret for `fanout endpoints rotate-secret`.

    Earlier secrets end after `overlap`, or at the end that an earlier rotation gave them, whichever is first.

    Safe to repeat: each call adds one secret, and no call lets an earlier secret sign for longer. Writes an audit entry. Raise
    RegistrationError, and change nothing, if the endpoint does not exist, or would have more valid signing secrets than
    endpoint_secrets.MAX_SIGNING_KEYS. The session has no statement timeout afterwards.
    """
    with connect.translated_errors(), apply.exclusive(connection), connection.transaction():
        rotated = rotate_in_transaction(connection, ring, endpoint_id, scheme=scheme, overlap=overlap)
        fields = rotated.audit_fields(overlap)
        audit_entries.note(
            connection,
            audit_entries.COMMAND,
            "rotate_secret",
            "endpoint",
            endpoint_id,
            customer_id=rotated.customer_id,
            after=fields,
        )
    return rotated


def rotate_in_transaction(
    connection: connect.Connection,
    ring: keyring.KeyRing,
    endpoint_id: str,
    *,
    scheme: SignatureScheme,
    overlap: dt.timedelta,
) -> Rotation:
    """Create a signing secret in the caller's transaction. The endpoint's row stays locked until the transaction ends.

    Earlier secrets end after `overlap`, or at the end that an earlier rotation gave them, whichever is first. Raise
    RegistrationError if the endpoint does not exist, or would have more valid signing secrets than
    endpoint_secrets.MAX_SIGNING_KEYS. The caller must then roll back, because earlier secrets have got their ends already.
    Writes no audit entry.
    """
    new = signing.generate(scheme)
    named = {"endpoint_id": endpoint_id, "purposes": endpoint_secrets.SIGNING}
    owner = connection.execute(query("lock_owned_endpoint"), named).fetchone()
    if owner is None:
        raise errors.RegistrationError(
            endpoint_id, "there is no such endpoint, so no secret was created; `fanout get endpoints` lists them"
        )
    connection.execute(query("delete_expired_secrets"), named)
    ends_before = [row["expires_at"] for row in connection.execute(query("overlapping_secrets"), named)]
    connection.execute(query("expire_signing_secrets"), named | {"overlap_s": overlap.total_seconds()})
    connection.execute(query("delete_expired_secrets"), named)
    ends = tuple(row["expires_at"] for row in connection.execute(query("overlapping_secrets"), named))
    if len(ends) >= endpoint_secrets.MAX_SIGNING_KEYS:
        raise errors.RegistrationError(endpoint_id, _too_many(len(ends), ends_before[0]))
    row = EndpointSecret.of_key(new).to_row(ring, customer_id=owner["customer_id"], endpoint_id=endpoint_id)
    connection.execute(query("put_secret"), row)
    connection.execute(query("touch_endpoint"), named)
    return Rotation(key=new, others_end_at=ends, customer_id=str(owner["customer_id"]))


def _too_many(count: int, first_end: dt.datetime | None) -> str:
    """Return why a rotation is refused. `first_end` is the earliest end of a secret before this rotation; None: none ends."""
    refused = f"has {count} signing secrets, the maximum, and nothing was changed"
    if first_end is not None:
        end = first_end.astimezone(dt.UTC).isoformat(timespec="seconds")
        return (
            f"{refused}: rotate again after {end}, when the first of them ends, or end them all now with an overlap of 0 s "
            f"({OVERLAP_0})"
        )
    return (
        f"{refused}: none of them has an end. End them all now with an overlap of 0 s ({OVERLAP_0}), or apply fewer "
        "`signing_secrets`"
    )


def secret_document(endpoint_id: str, rotated: Rotation) -> dict[str, Any]:
    """Return a rotation as a document for the customer: `endpoint`, `scheme`, `secret`, `public_key`, `others_end_at`.

    `public_key` is None for HMAC, and `secret` is None for ed25519.
    """
    is_public = rotated.key.scheme is SignatureScheme.ED25519
    return {
        "endpoint": endpoint_id,
        "scheme": rotated.key.scheme.value,
        "secret": None if is_public else signing.to_text(rotated.key),
        "public_key": signing.public_text(rotated.key) if is_public else None,
        "others_end_at": [end.astimezone(dt.UTC).isoformat(timespec="seconds") for end in rotated.others_end_at],
    }
