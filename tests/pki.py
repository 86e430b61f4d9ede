"""Certificates and keys made for a test, as PEM texts."""

from __future__ import annotations

import datetime as dt
import functools

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


@functools.cache
def key(name: str = "client") -> str:
    """A private key, the same for the same name."""
    plain = serialization.NoEncryption()
    return _key(name).private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain).decode()


@functools.cache
def certificate(name: str = "client") -> str:
    """A certificate of the key of that name, signed by itself."""
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(_key(name).public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=30))
    )
    return builder.sign(_key(name), hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def encrypted_key(name: str = "client") -> str:
    """The key of that name, behind a password."""
    locked = serialization.BestAvailableEncryption(b"password")
    return _key(name).private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked).decode()


@functools.cache
def _key(_name: str) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())
