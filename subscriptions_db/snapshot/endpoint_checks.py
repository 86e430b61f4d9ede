"""Check an endpoint, with the same rules when it is registered and when it is read.

Runs on the driver, in executors that look up the registry, in `fanout` commands, in the API, and in programs that read `GET
/v1/snapshot`. Plain SQL can register endpoints too, and the guard's rules may change. So endpoints are checked again when they
are read, and quarantined if a check fails.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace

from cryptography import exceptions, x509
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from delivery import errors
from delivery.registry_model import Auth, Endpoint, Tls
from delivery.secret import Secret
from delivery.webhooks.http import guard
from delivery.webhooks.sending import request, signing
from subscriptions_db.secrets import endpoint_secrets

MAX_HEADERS_BYTES = 16 * 1024
"""Maximum size of all headers as JSON. The table column has the same bound."""
MAX_RSA_BITS = 4096
"""Most bits of the RSA key of a client certificate. Each handshake signs with the key, on the event loop that all customers
share: 4,096 bits take 2 ms, and twice the bits take eight times as long."""
_ANY_URL = "https://example.com/"
_CURVES = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey
_CURVES_PUBLIC = ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey | ed448.Ed448PublicKey
_USABLE_KEYS = "Use a certificate with RSA of 2,048 to 4,096 bits, or with an elliptic curve of NIST"
_SPKI = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def check_endpoint(endpoint: Endpoint, address_guard: guard.Guard) -> None:
    """Raise RegistrationError, with the path of the field, for the first mistake of an endpoint. The error quotes no secret."""
    for problem in problems(endpoint, address_guard):
        raise problem


def problems(endpoint: Endpoint, address_guard: guard.Guard) -> Iterator[errors.RegistrationError]:
    """Yield the mistakes that make an endpoint unusable, each with the path of its field. The errors quote no secret.

    Each check stops at its first mistake, so two wrong headers yield one error.
    """
    refused_auth = list(errors_of("", _check_auth, endpoint.auth))
    yield from refused_auth
    if (size := len(json.dumps(dict(endpoint.headers)))) > MAX_HEADERS_BYTES:
        yield errors.TargetRefused(
            "headers", f"have {size} bytes as JSON; at most {MAX_HEADERS_BYTES} are allowed: shorten them"
        )
    if endpoint.tls is not None:
        yield from errors_of("", _check_tls, endpoint.tls)
    for number, key in enumerate(endpoint.signing_keys):
        yield from errors_of(f"signing_secrets[{number}]", signing.check, key)
    if len(endpoint.signing_keys) > endpoint_secrets.MAX_SIGNING_KEYS:
        yield errors.RegistrationError(
            "signing_secrets", f"has more than {endpoint_secrets.MAX_SIGNING_KEYS} secrets: remove the oldest"
        )
    # Build a request to check URL, headers and secrets. TLS is left out: `prepare` would create a TLS context.
    plain = replace(endpoint, tls=None, auth=Auth() if refused_auth else endpoint.auth)
    for problem in errors_of("", request.prepare, plain, address_guard):
        yield problem
        if problem.path == "url":  # check the other fields with a valid URL
            yield from errors_of("", request.prepare, replace(plain, url=_ANY_URL), address_guard)


def errors_of(parent: str, check: Callable[..., object], *arguments: object) -> Iterator[errors.RegistrationError]:
    """Call a check, and yield the RegistrationError that it raises, if any, with the path below `parent`."""
    try:
        check(*arguments)
    except errors.RegistrationError as exc:
        yield exc.within(parent) if parent else exc


@contextlib.contextmanager
def below(parent: str) -> Iterator[None]:
    """Prefix the paths of RegistrationErrors raised in the block with `parent`."""
    try:
        yield
    except errors.RegistrationError as exc:
        raise exc.within(parent) from None


def _check_auth(auth: Auth) -> None:
    if auth.header is not None and auth.secret is not None:
        with below("auth"):
            guard.check_headers({auth.header: auth.secret.reveal().decode("latin-1")})


def _check_tls(tls: Tls) -> None:
    if tls.authorities is not None:
        with below("tls.authorities"):
            _certificates(tls.authorities)
    if (tls.certificate is None) != (tls.key is None):
        raise errors.RegistrationError("tls", "certificate and key must be given together: add the missing one, or remove both")
    if tls.certificate is not None and tls.key is not None:
        with below("tls.certificate"):
            certified = _certified_key(_certificates(tls.certificate)[0])
        with below("tls.key"):
            if _public_key_of(tls.key) != certified:
                raise errors.RegistrationError(
                    "",
                    "is not the key of the first certificate in tls.certificate: give the key of the client certificate, and "
                    "put the client certificate before its chain",
                )


# Thousands of endpoints share the certificates of few authorities.
@functools.lru_cache(maxsize=1024)
def _certificates(pem: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem.encode("ascii"))
    except (ValueError, exceptions.UnsupportedAlgorithm, x509.InvalidVersion):
        raise errors.RegistrationError(
            "", "is not a list of PEM certificates in ASCII: paste each from -----BEGIN to -----END CERTIFICATE-----"
        ) from None


def _certified_key(certificate: x509.Certificate) -> bytes:
    with contextlib.suppress(ValueError, exceptions.UnsupportedAlgorithm):
        key = certificate.public_key()
        if isinstance(key, rsa.RSAPublicKey | _CURVES_PUBLIC):
            return key.public_bytes(*_SPKI)
    raise errors.RegistrationError(
        "", "has a key of an unknown kind or curve: use a certificate with an RSA key, or with an elliptic curve of NIST"
    )


def _public_key_of(pem: Secret) -> bytes:
    try:
        # The validation of an RSA key's numbers is skipped: it takes 48 ms, and the rest of a row 0.1 ms.
        key = load_pem_private_key(pem.reveal(), password=None, unsafe_skip_rsa_key_validation=True)
        if isinstance(key, _CURVES) or (isinstance(key, rsa.RSAPrivateKey) and _is_fast(key)):
            return key.public_key().public_bytes(*_SPKI)
        problem = (
            f"is an RSA key of more than {MAX_RSA_BITS:,} bits, or with longer primes than such a key has. It would take too "
            f"long in each handshake. {_USABLE_KEYS}"
        )
        if not isinstance(key, rsa.RSAPrivateKey):
            problem = f"is a key of another kind. {_USABLE_KEYS}"
    except TypeError:  # the key is encrypted
        problem = "has a password: paste the private key as PEM without a password"
    except (ValueError, exceptions.UnsupportedAlgorithm):
        problem = "is not a PEM private key: paste it as PEM, without a password"
    raise errors.RegistrationError("", problem)  # without the cause, which may quote the key


def _is_fast(key: rsa.RSAPrivateKey) -> bool:
    """Return True if no number of the key is longer than in a key of MAX_RSA_BITS.

    OpenSSL signs with the two primes. In a forged key, the primes may have thousands of bits more than the modulus. Then each
    signature would take too long, although the modulus has an allowed size.
    """
    numbers = key.private_numbers()
    halves = (numbers.p, numbers.q, numbers.dmp1, numbers.dmq1, numbers.iqmp)
    sizes = (key.key_size, numbers.d.bit_length(), *(2 * half.bit_length() for half in halves))
    return max(sizes) <= MAX_RSA_BITS
