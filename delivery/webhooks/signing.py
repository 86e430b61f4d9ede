"""Sign what is sent, as Standard Webhooks 1.0 says it ("Signature scheme": symmetric `v1`, asymmetric `v1a`).

Runs in the executors, and in the command for keys of customers. Must not import pyspark or psycopg.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hmac
import secrets
from collections.abc import Iterable

from cryptography.hazmat.primitives.asymmetric import ed25519

from delivery import errors
from delivery.model import SignatureScheme, SigningKey
from delivery.secret import Secret

PREFIX = "whsec_"
MIN_KEY_BYTES, MAX_KEY_BYTES = 24, 64
"""The bounds of Standard Webhooks 1.0 for a symmetric key."""


def sign(keys: Iterable[SigningKey], webhook_id: str, timestamp_s: int, body: bytes) -> str:
    """Return the value of `webhook-signature`: one for each key that holds at `timestamp_s`, in order.

    Raise RegistrationError when none does: nothing is ever sent unsigned.
    """
    content = b"%s.%d.%s" % (webhook_id.encode(), timestamp_s, body)
    signatures = [_signature(key, content) for key in keys if key.expires_at_s is None or timestamp_s < key.expires_at_s]
    if not signatures:
        raise errors.RegistrationError("signing_keys", "there is none that has not expired")
    return " ".join(signatures)


def _signature(key: SigningKey, content: bytes) -> str:
    if key.scheme is SignatureScheme.ED25519:
        return "v1a," + _base64(_ed25519(key.secret).sign(content))
    return "v1," + _base64(hmac.digest(key.secret.reveal(), content, "sha256"))


def _base64(signature: bytes) -> str:
    return binascii.b2a_base64(signature, newline=False).decode()


@functools.lru_cache(maxsize=4096)
def _ed25519(seed: Secret) -> ed25519.Ed25519PrivateKey:
    return ed25519.Ed25519PrivateKey.from_private_bytes(seed.reveal())


def generate_key() -> Secret:
    """Return a new random key of 32 bytes."""
    return Secret(secrets.token_bytes(32))


def to_text(key: Secret) -> str:
    """Return the `whsec_…` text that the customer puts into a Standard Webhooks library. It is the secret."""
    return PREFIX + base64.b64encode(key.reveal()).decode()


def from_text(text: str) -> Secret:
    """Return the key in a `whsec_…` text; raise RegistrationError (never quoting it) when it is not one."""
    problem = f"a signing secret is {PREFIX} followed by base64 of {MIN_KEY_BYTES} to {MAX_KEY_BYTES} bytes"
    if not text.startswith(PREFIX):
        raise errors.RegistrationError("", problem)
    try:
        key = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except binascii.Error:
        raise errors.RegistrationError("", problem) from None  # the cause would show the secret
    if not MIN_KEY_BYTES <= len(key) <= MAX_KEY_BYTES:
        raise errors.RegistrationError("", problem)
    return Secret(key)
