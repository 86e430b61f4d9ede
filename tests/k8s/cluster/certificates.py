"""The cluster's certificate authority, the certificates of its components, and their kubeconfig files."""

from __future__ import annotations

import base64
import datetime as dt
import functools
import ipaddress

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.k8s.cluster import layout

COMPONENTS = {
    "admin": ("system:masters", "admin"),
    "controller-manager": (None, "system:kube-controller-manager"),
    "scheduler": (None, "system:kube-scheduler"),
    "proxy": (None, "system:kube-proxy"),
    **{node.name: ("system:nodes", f"system:node:{node.name}") for node in layout.NODES},
}
"""Group and name of each, as the API server's default roles know them."""
SERVER_NAMES = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)
SERVER_ADDRESSES = ("127.0.0.1", layout.API_SERVICE, layout.CONTROL_PLANE)
VALID = dt.timedelta(days=365)


def write() -> None:
    """Write everything, unless it is there: pods keep the authority's certificate of their start."""
    if layout.KUBECONFIG.is_file():
        return
    layout.PKI.mkdir(parents=True, exist_ok=True)
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = _sign("fanout test authority", None, authority_key, issuer=None, issuer_key=authority_key)
    _write("ca.crt", _pem(authority))
    issue = functools.partial(_issue, authority=authority, authority_key=authority_key)
    issue("apiserver", None, "kube-apiserver", is_server=True)
    for component, (group, name) in COMPONENTS.items():
        issue(component, group, name)
    accounts = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    _write("accounts.key", _private(accounts))
    public = serialization.PublicFormat.SubjectPublicKeyInfo
    _write("accounts.pub", accounts.public_key().public_bytes(serialization.Encoding.PEM, public))
    for component in COMPONENTS:
        _write_kubeconfig(component)


def _issue(
    component: str,
    group: str | None,
    name: str,
    *,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    is_server: bool = False,
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _sign(name, group, key, issuer=authority, issuer_key=authority_key, is_server=is_server)
    _write(f"{component}.crt", _pem(certificate))
    _write(f"{component}.key", _private(key))


def _sign(
    name: str,
    group: str | None,
    key: ec.EllipticCurvePrivateKey,
    *,
    issuer: x509.Certificate | None,
    issuer_key: ec.EllipticCurvePrivateKey,
    is_server: bool = False,
) -> x509.Certificate:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
    if group:
        parts.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, group))
    subject, now = x509.Name(parts), dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + VALID)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    )
    if issuer is not None:
        usage = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(usage), critical=False)
    if is_server:
        addresses = [x509.IPAddress(ipaddress.ip_address(address)) for address in SERVER_ADDRESSES]
        names = [x509.DNSName(server) for server in SERVER_NAMES]
        builder = builder.add_extension(x509.SubjectAlternativeName([*names, *addresses]), critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def _write_kubeconfig(component: str) -> None:
    def data(name: str) -> str:
        return base64.b64encode((layout.PKI / name).read_bytes()).decode()

    user = {"client-certificate-data": data(f"{component}.crt"), "client-key-data": data(f"{component}.key")}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "fanout", "cluster": {"server": layout.API_URL, "certificate-authority-data": data("ca.crt")}}],
        "users": [{"name": component, "user": user}],
        "contexts": [{"name": "fanout", "context": {"cluster": "fanout", "user": component}}],
        "current-context": "fanout",
    }
    path = layout.STATE / f"{component}.kubeconfig"
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(document))


def _write(name: str, content: bytes) -> None:
    path = layout.PKI / name
    path.touch(mode=0o600)
    path.write_bytes(content)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    # The API server reads RSA keys of accounts in PKCS 8 as well.
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
