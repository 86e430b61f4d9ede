"""Make certificates for tests, as PEM: of an authority, of servers and clients, and some that must not be trusted."""

from __future__ import annotations

import datetime as dt
import functools
import ipaddress
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from delivery.registry_model import Tls
from delivery.secret import Secret

NOW = dt.datetime.now(dt.UTC)


@dataclass(frozen=True)
class Certified:
    """A certificate with its private key. Without `issuer` it is self-signed."""

    certificate: x509.Certificate
    private_key: ec.EllipticCurvePrivateKey
    issuer: Certified | None = None

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    @property
    def key(self) -> str:
        return self.private_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode()

    @property
    def locked_key(self) -> str:
        """Return the private key, encrypted by a password."""
        return self.private_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"password")
        ).decode()

    def client_tls(self, **fields: object) -> Tls:
        return Tls(certificate=self.pem, key=Secret(self.key.encode()), **fields)  # type: ignore[arg-type]


@functools.cache
def issue(
    name: str, *, issuer: Certified | None = None, is_authority: bool = False, days: int = 1, address: str = "127.0.0.1"
) -> Certified:
    """Return a certificate for `address`, an IP address or a host name. With negative `days` it has expired."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    ends = NOW + dt.timedelta(days=days)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.certificate.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(ends - dt.timedelta(days=30))
        .not_valid_after(ends)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_name(address)]), critical=False)
    )
    return Certified(builder.sign(issuer.private_key if issuer else key, hashes.SHA256()), key, issuer)


@functools.cache
def weak_client_tls() -> Tls:
    """Return the settings of a client certificate that OpenSSL does not use: its key, of RSA, has 1,024 bits."""
    key = rsa.generate_private_key(65537, 1024)  # noqa: S505  # weak, as its name says
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "weak")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(NOW).not_valid_after(NOW + dt.timedelta(days=1))
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    signed = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    return Tls(certificate=signed.decode(), key=Secret(private))


def of_unknown_curve() -> str:
    """Return a certificate whose key has a curve that no library knows."""
    known, unknown = bytes.fromhex("06082a8648ce3d030107"), bytes.fromhex("06082a8648ce3d030106")
    signed = issue("client").certificate.public_bytes(serialization.Encoding.DER)
    return ssl.DER_cert_to_PEM_cert(signed.replace(known, unknown))


def _name(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def authority(name: str = "authority") -> Certified:
    return issue(name, is_authority=True)


def server_context(server: Certified, *chain: Certified, clients_of: Certified | None = None) -> ssl.SSLContext:
    """Return a TLS context that sends the certificates `server` and `chain`.

    With `clients_of`, it demands a client certificate of this authority.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "server.pem"
        path.write_text(server.key + server.pem + "".join(issuer.pem for issuer in chain))
        context.load_cert_chain(path)
    if clients_of is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=clients_of.pem)
    return context
