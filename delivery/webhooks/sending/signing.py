"""Sign requests by Standard Webhooks 1.0 ("Signature scheme"), and convert signing keys to text and back.

Signs in the executors and in the API. Converts keys where endpoints are registered or read: also in the commands, in the
archive and on the driver.
"""

from __future__ import annotations

import base64
import binascii
import functools
import secrets
from collections.abc import Iterable

from cryptography.hazmat.primitives import hashes, hmac
from cryptography.hazmat.primitives.asymmetric import ed25519

from delivery import errors
from delivery.registry_model import SignatureScheme, SigningKey
from delivery.secret import Secret

SCHEME_OF_PREFIX = {"whsec_": SignatureScheme.HMAC, "whsk_": SignatureScheme.ED25519}
PREFIX_OF_SCHEME = {scheme: prefix for prefix, scheme in SCHEME_OF_PREFIX.items()}
PUBLIC_PREFIX = "whpk_"
MIN_KEY_BYTES, MAX_KEY_BYTES = 24, 64
"""Minimum and maximum of bytes of a symmetric (HMAC) key, by Standard Webhooks 1.0."""
SEED_BYTES = 32
"""Bytes of the seed of an ed25519 key, which is the secret key."""
MAX_PREPARED = 16_384
"""Most prepared keys of each scheme in a process's cache, 0.8 kB each. The least recently used are dropped. A cache smaller
than the number of active endpoints would have no effect: each key would be dropped before its next use."""


def sign(keys: Iterable[SigningKey], webhook_id: str, timestamp_s: int, body: bytes) -> str:
    """Return the value of `webhook-signature`: one signature for each of `keys` that is valid at `timestamp_s`.

    Raise RegistrationError if no key is valid, because no request is sent unsigned.
    """
    content = b"%s.%d.%s" % (webhook_id.encode(), timestamp_s, body)
    signatures = [_signature(key, content) for key in keys if key.expires_at_s is None or timestamp_s < key.expires_at_s]
    if not signatures:
        problem = "none is valid now, and no request is sent unsigned: rotate the endpoint's secret"
        raise errors.RegistrationError("signing_keys", problem)
    return " ".join(signatures)


def _signature(key: SigningKey, content: bytes) -> str:
    if key.scheme is SignatureScheme.ED25519:
        return "v1a," + _base64(_ed25519(key.secret).sign(content))
    code = _hmac(key.secret).copy()
    code.update(content)
    return "v1," + _base64(code.finalize())


def _base64(signature: bytes) -> str:
    return binascii.b2a_base64(signature, newline=False).decode()


@functools.lru_cache(maxsize=MAX_PREPARED)
def _hmac(key: Secret) -> hmac.HMAC:
    """Return an HMAC with the key and no content. To copy an HMAC takes a third of the time that it takes to create one."""
    return hmac.HMAC(key.reveal(), hashes.SHA256())


@functools.lru_cache(maxsize=MAX_PREPARED)
def _ed25519(seed: Secret) -> ed25519.Ed25519PrivateKey:
    return ed25519.Ed25519PrivateKey.from_private_bytes(seed.reveal())


_ANOTHER = "{} (before base64) are needed: use another key, such as 32 random bytes"


def generate(scheme: SignatureScheme = SignatureScheme.HMAC) -> SigningKey:
    """Return a new random signing key of `scheme`, with 32 bytes."""
    return SigningKey(secret=Secret(secrets.token_bytes(SEED_BYTES)), scheme=scheme)


def check(key: SigningKey) -> None:
    """Raise RegistrationError if the key does not have the length of its scheme."""
    length = len(key.secret.reveal())
    if key.scheme is SignatureScheme.ED25519:
        if length != SEED_BYTES:
            raise errors.RegistrationError("", f"is an ed25519 seed of {length} bytes; {_ANOTHER.format(SEED_BYTES)}")
    elif not MIN_KEY_BYTES <= length <= MAX_KEY_BYTES:
        bytes_of_key = f"{MIN_KEY_BYTES} to {MAX_KEY_BYTES}"
        raise errors.RegistrationError("", f"is an HMAC key of {length} bytes; {_ANOTHER.format(bytes_of_key)}")


def to_text(key: SigningKey) -> str:
    """Return the key as `whsec_…` or `whsk_…`. The text is secret; for an ed25519 key the customer gets `public_text`."""
    raw = key.secret.reveal()
    if key.scheme is SignatureScheme.ED25519:
        raw += _public_key(key)  # the pair, as other implementations write it
    return PREFIX_OF_SCHEME[key.scheme] + base64.b64encode(raw).decode()


def public_text(key: SigningKey) -> str:
    """Return the public key of an ed25519 key as `whpk_…`, by which a customer verifies signatures. The text is not secret."""
    return PUBLIC_PREFIX + base64.b64encode(_public_key(key)).decode()


def from_text(text: str) -> SigningKey:
    """Return the key in a `whsec_…` or `whsk_…` text. Raise RegistrationError, which never quotes the text, if it is invalid.

    After `whsk_` comes the seed, with or without the public key: the standard defines no form, and both forms are in use.
    """
    prefix, underscore, encoded = text.partition("_")
    scheme = SCHEME_OF_PREFIX.get(prefix + underscore)
    if scheme is None:
        problem = f"does not begin with {' or '.join(SCHEME_OF_PREFIX)}: write whsec_ and 24 to 64 random bytes in base64"
        raise errors.RegistrationError("", problem)
    try:
        raw = base64.b64decode(encoded, validate=True)
    except ValueError:  # binascii.Error, or a character that is not ASCII
        problem = f"is not base64 after {prefix}_: write the bytes of the key in base64"
        raise errors.RegistrationError("", problem) from None  # the cause would show the secret
    seed = raw[:SEED_BYTES] if scheme is SignatureScheme.ED25519 else raw
    key = SigningKey(secret=Secret(seed), scheme=scheme)
    check(key)
    if len(raw) > len(seed) and raw[SEED_BYTES:] != _public_key(key):
        raise errors.RegistrationError("", "has bytes after the seed that are not its public key: leave these bytes out")
    return key


def _public_key(key: SigningKey) -> bytes:
    return ed25519.Ed25519PrivateKey.from_private_bytes(key.secret.reveal()).public_key().public_bytes_raw()
