"""Make the certificates of a Kafka broker that answers over TLS only: an authority, and a key that broker and clients share."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fanout.local import kafka_server

VALID_FOR = dt.timedelta(days=1)


def write(folder: Path) -> kafka_server.BrokerTls:
    """Write the PEM files to `folder`, and return their paths. The certificate is valid for 127.0.0.1, for a day."""
    authority_key, own_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority, own = _named("load test authority"), _named("load test broker")
    certified = _builder(authority, authority, authority_key.public_key())
    certified = certified.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    issued = _builder(own, authority, own_key.public_key()).add_extension(address, critical=False)
    files = kafka_server.BrokerTls(authority=folder / "authority.pem", keystore=folder / "keystore.pem")
    files.authority.write_bytes(_pem(certified.sign(authority_key, hashes.SHA256())))
    key = own_key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    files.keystore.touch(mode=0o600)
    files.keystore.write_bytes(key + _pem(issued.sign(authority_key, hashes.SHA256())))
    return files


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    named = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    return named.serial_number(x509.random_serial_number()).not_valid_before(now - VALID_FOR).not_valid_after(now + VALID_FOR)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
