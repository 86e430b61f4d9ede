"""Convert the secrets of an endpoint: signing key → secret → row of `secrets`, and row → secret → signing key.

Runs on the driver, in executors that look up the registry, in `fanout` commands, in the API, and in programs that read `GET
/v1/snapshot`.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from delivery.registry_model import SignatureScheme, SigningKey
from delivery.secret import Secret
from subscriptions_db.secrets import keyring

AUTH, TLS_KEY = "auth", "tls_key"
"""The purposes of secrets that do not sign."""
PURPOSE_OF = {SignatureScheme.HMAC: "signing", SignatureScheme.ED25519: "signing_v1a"}
"""Signature scheme → purpose of its secrets. A secret is sealed for its purpose, so it never opens for another scheme. v1a is
the version of ed25519 signatures in Standard Webhooks."""
SCHEME_OF = {purpose: scheme for scheme, purpose in PURPOSE_OF.items()}
SIGNING = list(SCHEME_OF)
"""The purposes of signing secrets."""
FIELD_OF = {AUTH: "auth_secret", TLS_KEY: "tls_key"} | dict.fromkeys(SIGNING, "signing_secrets")
"""Purpose → the field of an endpoint's row in registered_rows. The field has a placeholder in place of the stored secret, and
None if no secret is stored."""
MAX_SIGNING_KEYS = 5
"""Maximum valid signing secrets of one endpoint. Each secret adds a signature to every request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSecret:
    """An opened secret with its purpose and expiry."""

    purpose: str
    secret: Secret
    expires_at_s: float | None = None
    """Seconds since 1970. None: the secret does not expire."""

    @classmethod
    def from_row(cls, row: Mapping[str, Any], ring: keyring.KeyRing) -> Self:
        """Return the opened secret of a row of `secrets`; raise SealError if the key ring does not open it."""
        secret = ring.open(row["key_id"], row["sealed"], keyring.secret_row_of(row))
        return cls(purpose=row["purpose"], secret=secret, expires_at_s=row["expires_at_s"])

    @classmethod
    def of_key(cls, key: SigningKey) -> Self:
        """Return the secret of a signing key."""
        return cls(purpose=PURPOSE_OF[key.scheme], secret=key.secret, expires_at_s=key.expires_at_s)

    def signing_key(self) -> SigningKey:
        """Return the signing key. Raise KeyError for a purpose that is not in SIGNING."""
        return SigningKey(secret=self.secret, scheme=SCHEME_OF[self.purpose], expires_at_s=self.expires_at_s)

    def to_row(self, ring: keyring.KeyRing, *, customer_id: str, endpoint_id: str) -> dict[str, Any]:
        """Return a new row of `secrets`, with the secret sealed for this row.

        The new row does not expire, whatever this secret's `expires_at_s`: the row has no such field.
        """
        identity = keyring.SecretRow(
            customer_id=customer_id, endpoint_id=endpoint_id, purpose=self.purpose, secret_id=str(uuid.uuid4())
        )
        return dataclasses.asdict(identity) | {"key_id": ring.active, "sealed": ring.seal(self.secret, identity)}
