"""Check what is said of an endpoint: the same when it is registered and when it is read.

Runs on the driver and in the command. Plain SQL registers too, and the guard's rules may have changed since; so what is read is
checked again, and quarantined where it fails.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace

from cryptography import exceptions, x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from delivery import errors
from delivery.model import Auth, Endpoint, Tls
from delivery.secret import Secret
from delivery.webhooks.http import guard
from delivery.webhooks.sending import request, signing
from subscriptions_db.secrets import endpoint_secrets

MAX_HEADERS_BYTES = 16 * 1024
"""Of all headers as JSON: the bound of the column."""
_ANY_URL = "https://example.com/"
_SPKI = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def check_endpoint(endpoint: Endpoint, address_guard: guard.Guard) -> None:
    """Raise RegistrationError, with the path of what is wrong, when no request could be made. Quotes no secret."""
    for problem in problems(endpoint, address_guard):
        raise problem


def problems(endpoint: Endpoint, address_guard: guard.Guard) -> Iterator[errors.RegistrationError]:
    """Yield why no request could be made, each with the path of what is wrong. Quotes no secret."""
    refused_auth = list(found("", _check_auth, endpoint.auth))
    yield from refused_auth
    if len(json.dumps(dict(endpoint.headers))) > MAX_HEADERS_BYTES:
        yield errors.TargetRefused("headers", f"are more than {MAX_HEADERS_BYTES} bytes together")
    if endpoint.tls is not None:
        yield from found("", _check_tls, endpoint.tls)
    for number, key in enumerate(endpoint.signing_keys):
        yield from found(f"signing_secrets[{number}]", signing.check, key)
    if len(endpoint.signing_keys) > endpoint_secrets.MAX_SIGNING_KEYS:
        yield errors.RegistrationError("signing_secrets", f"are more than {endpoint_secrets.MAX_SIGNING_KEYS}")
    # What a request is made of: URLs, headers, secrets. Without TLS, for which it would make a context.
    plain = replace(endpoint, tls=None, auth=Auth() if refused_auth else endpoint.auth)
    for problem in found("", request.prepare, plain, address_guard):
        yield problem
        if problem.path == "url":  # the rest is looked at as if it were another
            yield from found("", request.prepare, replace(plain, url=_ANY_URL), address_guard)


def found(parent: str, check: Callable[..., object], *arguments: object) -> Iterator[errors.RegistrationError]:
    """Yield what a check raises, if it does, with its path below `parent`."""
    try:
        check(*arguments)
    except errors.RegistrationError as exc:
        yield exc.within(parent) if parent else exc


@contextlib.contextmanager
def below(parent: str) -> Iterator[None]:
    """Put the path of the parent before that of what is raised inside."""
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
        raise errors.RegistrationError("tls", "certificate and key go together")
    if tls.certificate is not None and tls.key is not None:
        with below("tls.certificate"):
            leaf = _certificates(tls.certificate)[0]
        with below("tls.key"):
            if _public_key_of(tls.key) != leaf.public_key().public_bytes(*_SPKI):
                raise errors.RegistrationError("", "is not the key of the certificate; that comes before its chain")


# Thousands of endpoints share the certificates of few authorities.
@functools.lru_cache(maxsize=1024)
def _certificates(pem: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem.encode("ascii"))
    except (ValueError, exceptions.UnsupportedAlgorithm):
        raise errors.RegistrationError("", "is no PEM of certificates, in ASCII") from None


def _public_key_of(pem: Secret) -> bytes:
    try:
        # Whether the numbers of an RSA key fit each other is not asked: that takes 48 ms, the rest of a row a tenth of one.
        key = load_pem_private_key(pem.reveal(), password=None, unsafe_skip_rsa_key_validation=True)
        return key.public_key().public_bytes(*_SPKI)
    except (ValueError, TypeError, exceptions.UnsupportedAlgorithm):  # TypeError: it is encrypted
        raise errors.RegistrationError("", "is no PEM of a private key without a password") from None  # the cause may quote it
