"""Create the TLS context for connections to an endpoint: the authorities to trust, and the client certificate to show.

Runs wherever `delivery.webhooks.sending.request` prepares a request. Registration checks the customer's TLS settings by
`require_usable` (`subscriptions_db/snapshot/endpoint_checks.py`). Chain and host name are always verified. Endpoints with the
same context may share connections, so different settings never get the same context.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import ssl
import sys
from pathlib import Path

from delivery import errors
from delivery.registry_model import Tls

MAX_CONTEXTS = 4096
"""Most contexts that one process keeps; the least recently used are dropped."""
MAX_PEM_BYTES = 48 * 1024
"""Most bytes of a PEM text. A chain of ten certificates takes about 20 KiB. The bound is below the capacity of a pipe, 64 KiB
(`_descriptor_of`)."""
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20:ECDHE+AES:!AESCCM"
"""Cipher suites of TLS 1.2, in OpenSSL's notation: the key exchange is ECDHE. With DHE the server chooses the group. A group of
9,999 bits takes 0.9 s of CPU per handshake, on the event loop that all customers of a worker share."""
_SCARCE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors of a process that lacks file descriptors or memory. These errors say nothing about a certificate."""
_HASHED = re.compile(r"[0-9a-f]{8}\.[0-9]+")


@functools.lru_cache(maxsize=MAX_CONTEXTS)
def context(settings: Tls | None) -> ssl.SSLContext:
    """Return the context for an endpoint's TLS settings; raise TargetRefused if they are invalid.

    Raise OSError if this process lacks file descriptors or memory. `settings` None: trust the system's authorities, and show no
    client certificate. Equal settings get the same context object while it is cached. aiohttp and ConnectionPool reuse a
    connection only with the same context object. So different settings never share a connection.
    """
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # verifies the chain and the host name
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.set_ciphers(CIPHERS)  # those of TLS 1.3 stay
    made.set_alpn_protocols(["http/1.1"])
    if settings is None or settings.authorities is None:
        _trust_the_system(made)
    else:
        try:
            made.load_verify_locations(cadata=settings.authorities)
        except (ssl.SSLError, TypeError, ValueError):
            raise errors.TargetRefused("tls.authorities", "cannot be read: write certificates in PEM") from None
    if settings is not None and settings.certificate is not None:
        _present(made, settings)
    return made


def _trust_the_system(made: ssl.SSLContext) -> None:
    """Make a context trust the system's authorities.

    If the system has a folder of authorities by hash, OpenSSL reads an authority only when a certificate names it. Otherwise
    the whole bundle is loaded, which takes 28 ms in the event loop, and 860 KiB per context. Each customer with a client
    certificate has its own context.
    """
    folder = ssl.get_default_verify_paths().capath
    if folder is not None and any(_HASHED.fullmatch(entry.name) for entry in Path(folder).iterdir()):
        made.load_verify_locations(capath=folder)
    else:
        made.load_default_certs()


def require_usable(settings: Tls) -> None:
    """Raise TargetRefused if OpenSSL does not accept the client certificate with its key, for example because it is too weak.

    Raise OSError if this process lacks file descriptors or memory. Settings without a client certificate are usable.
    """
    if settings.certificate is not None:
        _present(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), settings)


def _present(made: ssl.SSLContext, settings: Tls) -> None:
    if settings.key is None or settings.certificate is None:
        problem = "is missing, and the client certificate needs its private key: add the key, or remove the certificate"
        raise errors.TargetRefused("tls.key", problem)
    try:
        certificate = _descriptor_of(settings.certificate.encode("ascii"))
        try:
            key = _descriptor_of(settings.key.reveal())
            try:
                # Without `password`, OpenSSL would ask the terminal for the password of an encrypted key.
                made.load_cert_chain(f"/dev/fd/{certificate}", f"/dev/fd/{key}", password="")
            finally:
                os.close(key)
        finally:
            os.close(certificate)
    except (OSError, ValueError) as exc:  # ssl.SSLError is an OSError
        if isinstance(exc, OSError) and not isinstance(exc, ssl.SSLError) and exc.errno in _SCARCE:
            raise
        # OpenSSL's word for the reason, such as EE_KEY_TOO_SMALL, quotes nothing.
        reason = f" ({exc.reason})" if isinstance(exc, ssl.SSLError) and exc.reason else ""
        problem = (
            f"the client certificate cannot be used{reason}: certificate and key must be PEM and belong together, the key must "
            "not be encrypted, and both must be strong enough, such as RSA with 2,048 bits, signed with SHA-256"
        )
        raise errors.TargetRefused("tls", problem) from None  # the cause could quote the PEM texts


def _descriptor_of(pem: bytes) -> int:
    """Return the file descriptor of a file in memory with `pem`; raise TargetRefused if `pem` is longer than MAX_PEM_BYTES.

    Python's OpenSSL reads keys from files only. The file has a path (`/dev/fd/N`), and its content is never on a disk, not even
    after a crash. No other user can open it. Outside Linux, the file is a pipe.
    """
    if len(pem) > MAX_PEM_BYTES:
        problem = f"certificate and key may have at most {MAX_PEM_BYTES // 1024} KiB each, and one has more: shorten the chain"
        raise errors.TargetRefused("tls", problem)
    if sys.platform == "linux" and hasattr(os, "memfd_create"):  # Python for an old C library lacks it
        # No pipe: a user with 1,024 pipes gets new ones of 8 KiB, and writing more than that would block for ever.
        memory = os.memfd_create("pem")
        try:
            os.write(memory, pem)
        except OSError:
            os.close(memory)
            raise
        return memory
    readable, writable = os.pipe()
    try:
        os.write(writable, pem)
    finally:
        os.close(writable)
    return readable
