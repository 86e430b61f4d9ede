"""Give an endpoint a new signing secret, while the ones before it go on to sign for an overlap.

Runs in the command and in the API. What is rotated takes effect in running jobs by itself: the new secret by the revision, the
end of the old ones by the passing of time.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

from delivery import errors
from delivery.model import SignatureScheme, SigningKey
from delivery.webhooks.sending import signing
from subscriptions_db.postgres import audit, connect
from subscriptions_db.postgres.sql import query
from subscriptions_db.registration import apply
from subscriptions_db.secrets import endpoint_secrets, keyring
from subscriptions_db.secrets.endpoint_secrets import Opened

MAX_OVERLAP = dt.timedelta(days=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """What the customer must be told, once."""

    key: SigningKey
    others_end_at: tuple[dt.datetime, ...]
    """When each of the secrets before it ends, the next first."""
    customer_id: str
    """Whose endpoint it is."""

    def noted(self, overlap: dt.timedelta) -> dict[str, Any]:
        """Return what the audit log has of it: no secret."""
        return {"scheme": self.key.scheme.value, "overlap_s": round(overlap.total_seconds())}


def rotate(
    connection: connect.Connection,
    ring: keyring.KeyRing,
    endpoint_id: str,
    *,
    scheme: SignatureScheme,
    overlap: dt.timedelta,
) -> Rotation:
    """Make a new signing secret; let the others end after `overlap`, or before where that is settled already. For the command.

    Safe to repeat: each call adds one secret, and no secret ever gets more time. A call that would make more than
    MAX_SIGNING_KEYS hold at once raises RegistrationError and changes nothing.
    """
    with connect.translating(), apply.alone(connection), connection.transaction():
        rotated = rotate_alone(connection, ring, endpoint_id, scheme=scheme, overlap=overlap)
        who, whose, told = audit.COMMAND, rotated.customer_id, rotated.noted(overlap)
        audit.note(connection, who, "rotate_secret", "endpoint", endpoint_id, customer_id=whose, after=told)
    return rotated


def rotate_alone(
    connection: connect.Connection,
    ring: keyring.KeyRing,
    endpoint_id: str,
    *,
    scheme: SignatureScheme,
    overlap: dt.timedelta,
) -> Rotation:
    """Do so in the caller's transaction, which keeps others from changing the endpoint."""
    new = signing.generate(scheme)
    of = {"endpoint_id": endpoint_id, "purposes": endpoint_secrets.SIGNING}
    owner = connection.execute(query("customer_of"), of).fetchone()
    if owner is None:
        raise errors.RegistrationError(endpoint_id, "there is no such endpoint; `fanout get endpoints` lists them")
    connection.execute(query("expire_signing_secrets"), of | {"overlap_s": overlap.total_seconds()})
    connection.execute(query("delete_expired_secrets"), of)
    ends = tuple(row["expires_at"] for row in connection.execute(query("overlapping_secrets"), of))
    if len(ends) >= endpoint_secrets.MAX_SIGNING_KEYS:
        problem = f"has {len(ends)} signing secrets, the most there may be: wait until {ends[0]}, or shorten the overlap"
        raise errors.RegistrationError(endpoint_id, problem)
    row = Opened.of_key(new).to_row(ring, customer_id=owner["customer_id"], endpoint_id=endpoint_id)
    connection.execute(query("put_secret"), row)
    return Rotation(key=new, others_end_at=ends, customer_id=str(owner["customer_id"]))


def told(endpoint_id: str, rotated: Rotation) -> dict[str, Any]:
    """Return what the endpoint's customer needs, for machines. Of an ed25519 key only the public part leaves the registry."""
    is_public = rotated.key.scheme is SignatureScheme.ED25519
    return {
        "endpoint": endpoint_id,
        "scheme": rotated.key.scheme.value,
        "secret": None if is_public else signing.to_text(rotated.key),
        "public_key": signing.public_text(rotated.key) if is_public else None,
        "others_end_at": [end.astimezone(dt.UTC).isoformat(timespec="seconds") for end in rotated.others_end_at],
    }
