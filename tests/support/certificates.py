"""Make certificates for tests, as PEM: of an authority, of servers and clients, and some that must not be trusted."""

from __future__ import annotations

import base64
import datetime as dt
import functools
import ipaddress
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, rsa
from cryptography.x509.oid import NameOID

from delivery.registry_model import Tls
from delivery.secret import Secret

NOW = dt.datetime.now(dt.UTC)


@dataclass(frozen=True)
class Certified:
    """A certificate with its private key. Without `issuer` it is self-signed."""

    certificate: x509.Certificate
    private_key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
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
    name: str,
    *,
    issuer: Certified | None = None,
    is_authority: bool = False,
    days: int = 1,
    address: str = "127.0.0.1",
    rsa_bits: int = 0,
) -> Certified:
    """Return a certificate for `address`, an IP address or a host name. With negative `days` it has expired.

    Its key has a curve of NIST, or with `rsa_bits` it is an RSA key.
    """
    key = rsa.generate_private_key(65537, rsa_bits) if rsa_bits else ec.generate_private_key(ec.SECP256R1())
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


@functools.cache
@functools.cache
def dsa_key() -> str:
    """Return a private key of DSA, with which OpenSSL still signs."""
    return (
        dsa.generate_private_key(1024)  # noqa: S505  # quickly made
        .private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        .decode()
    )


def rsa_client_tls(modulus_bits: int, prime_bits: int) -> Tls:
    """Return the settings of a client certificate with a forged RSA key: numbers of these sizes that make no key."""
    modulus, prime = (1 << modulus_bits) - 1, (1 << prime_bits) - 1
    authority_key = authority().private_key
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "forged")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(authority().certificate.subject)
    builder = builder.public_key(rsa.RSAPublicNumbers(65537, modulus).public_key())
    builder = builder.serial_number(1).not_valid_before(NOW).not_valid_after(NOW + dt.timedelta(days=1))
    signed = builder.sign(authority_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    content = b"".join(_der(0x02, _integer(number)) for number in (0, modulus, 65537, 3, prime, prime, 3, 3, 3))
    private = base64.encodebytes(_der(0x30, content))
    pem = b"-----BEGIN RSA PRIVATE KEY-----\n" + private + b"-----END RSA PRIVATE KEY-----\n"
    return Tls(certificate=signed.decode(), key=Secret(pem))


def _integer(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "big")


def _der(tag: int, content: bytes) -> bytes:
    size = len(content)
    length = bytes([size]) if size < 0x80 else b"\x82" + size.to_bytes(2, "big")
    return bytes([tag]) + length + content


def of_unknown_curve() -> str:
    """Return a certificate whose key has a curve that no library knows."""
    known, unknown = bytes.fromhex("06082a8648ce3d030107"), bytes.fromhex("06082a8648ce3d030106")
    signed = issue("client").certificate.public_bytes(serialization.Encoding.DER)
    return ssl.DER_cert_to_PEM_cert(signed.replace(known, unknown))


def of_unknown_version() -> str:
    """Return a certificate of a version of X.509 that does not exist."""
    third, sixth = bytes.fromhex("a003020102"), bytes.fromhex("a003020105")
    signed = issue("client").certificate.public_bytes(serialization.Encoding.DER)
    return ssl.DER_cert_to_PEM_cert(signed.replace(third, sixth, 1))


def _name(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def authority(name: str = "authority") -> Certified:
    return issue(name, is_authority=True)


def keystore(folder: Path, certified: Certified) -> Path:
    """Write a private key and its certificate to one file in `folder`. The certificate's subject names the file."""
    [name] = certified.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    path = folder / f"{name.value}.pem"
    path.write_text(certified.key + certified.pem)
    return path


def server_context(server: Certified, *chain: Certified, clients_of: Certified | None = None) -> ssl.SSLContext:
    """Return a TLS context that sends the certificates `server` and `chain`.

    With `clients_of`, it demands a client certificate of this authority.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        path = keystore(Path(folder), server)
        path.write_text(path.read_text() + "".join(issuer.pem for issuer in chain))
        context.load_cert_chain(path)
    if clients_of is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=clients_of.pem)
    return context
