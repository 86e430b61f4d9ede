"""Read the signing keys of the OpenID Connect provider (discovery and JWKS), and keep them.

Runs in the API, on its event loop. The settings name the provider, and its discovery document names the URL of the keys. No
part of a token decides which server is asked.
"""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import aiohttp
import msgspec
from aiohttp import web
from cryptography import exceptions
from joserfc import errors as jose_errors
from joserfc import jwk

from delivery import errors
from delivery.config import oidc_settings
from delivery.observability import metrics
from subscriptions_db import server_bounds
from subscriptions_db.api.contract import problems

log = logging.getLogger(__name__)

DISCOVERY = "/.well-known/openid-configuration"
REFRESH_S = 600.0
"""Age of the keys, in seconds, from which the next request with a token starts a new read of the keys in the background. A key
that the provider has withdrawn works until that read succeeds, or until the keys are older than MAX_AGE_S."""
MAX_AGE_S = 86_400.0
"""Age of the keys, in seconds, beyond which they are not used. If the provider is away for so long, tokens are refused: a
stolen key must not work for ever."""
MAX_BYTES = 512 * 1024
"""Maximum bytes of a provider's document. The JWKS of a provider with three keys and their certificates has 5 KiB."""
MAX_KEYS = 100
"""Maximum entries of a JWKS that are read."""
MIN_RSA_TEXT = 342
"""Least characters of the modulus of an RSA key in base64: 2048 bits."""
KEY_TYPES = {"RS": "RSA", "PS": "RSA", "ES": "EC"}
"""The first letters of an algorithm → the type of its keys. Keys of other types, such as shared secrets, are left out."""
_OBJECT = msgspec.json.Decoder(dict[str, Any])
ON_FAILURE = (
    "API keys work, and tokens whose key was read within a day; other tokens are refused with 503. Check the provider, the "
    "network, oidc.issuer and oidc.ca_file"
)
"""The field `advice` of the log line about a provider that cannot be read."""


class SigningKey(NamedTuple):
    """A public key by which signatures of the provider's tokens are verified."""

    kid: str | None
    key_type: str
    algorithm: str | None
    """The only algorithm of the key. None: every algorithm of its type."""
    key: jwk.RSAKey | jwk.ECKey

    def identity(self) -> tuple[str | None, str | None, str]:
        """Return a value that differs for different keys. By this value, ProviderKeys notices a change of the keys."""
        return self.kid, self.algorithm, self.key.thumbprint()


class ProviderKeys:
    """The keys of one provider. Lives on the event loop."""

    def __init__(
        self,
        config: oidc_settings.OidcSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        read_every_s: float = server_bounds.DEFAULT.provider_read_every_s,
    ) -> None:
        """`read_every_s` are the least seconds between the starts of two reads.

        Raise SettingsError if `oidc.ca_file` cannot be read.
        """
        self._read_every_s = read_every_s
        self._issuer = config.issuer
        self._timeout_s = config.timeout_s
        self._tls = _tls(config.ca_file)
        self._clock = clock
        self._keys: tuple[SigningKey, ...] = ()
        self._read_at = -math.inf
        """The time of the last read that succeeded."""
        self._asked_at = -math.inf
        self._is_away = False
        self._reading: asyncio.Task[None] | None = None
        self.version = 0
        """A number that changes with the keys."""

    async def find(self, kid: str | None, algorithm: str) -> jwk.RSAKey | jwk.ECKey | None:
        """Return the key of a token; None if the provider had no such key when its keys were read last.

        The keys are read again first if they are older than MAX_AGE_S, or lack the key. A read begins only `read_every_s`
        after the start of the last one. Raise Refused with 503 if the last read failed and the key is not known. A token
        without `kid` has a key only if the provider has just one for the algorithm.
        """
        if not self.are_usable():
            await self.read()
        found = self._found(kid, algorithm)
        if found is None:
            await self.read()
            found = self._found(kid, algorithm)
        if found is None and self._is_away:
            raise problems.unavailable(
                "the keys of the token's provider cannot be read now, so the token was not checked and nothing was done: try "
                "again, or use an API key"
            )
        return found

    def are_usable(self) -> bool:
        """Return True if there are keys, at most MAX_AGE_S old.

        If there are no keys, or they are older than REFRESH_S, begin a background read, but not within `read_every_s` of the
        last read's start.
        """
        age_s = self._clock() - self._read_at
        if age_s > REFRESH_S:
            self._begin()
        return age_s <= MAX_AGE_S

    async def read(self) -> None:
        """Read the keys, or wait for a read that is running.

        Do nothing if the last read has ended, and began less than `read_every_s` ago. A failed read raises nothing, and is
        logged unless the read before failed too.
        """
        self._begin()
        if self._reading is not None:
            await asyncio.shield(self._reading)  # one client that hangs up must not end the read for the others

    async def begin(self, _: web.Application) -> None:
        """Begin to read the keys when the server starts, so that the log names a wrong setting. The start does not wait."""
        self._begin()

    async def end(self, _: web.Application) -> None:
        """Cancel a running read, because the server stops."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    def _begin(self) -> None:
        if self._reading is not None and not self._reading.done():
            return
        self._reading = None
        if self._clock() - self._asked_at >= self._read_every_s:
            self._asked_at = self._clock()
            self._reading = asyncio.create_task(self._read())

    def _found(self, kid: str | None, algorithm: str) -> jwk.RSAKey | jwk.ECKey | None:
        if self._clock() - self._read_at > MAX_AGE_S:
            return None
        key_type = KEY_TYPES.get(algorithm[:2])
        fitting = [known for known in self._keys if known.key_type == key_type and known.algorithm in {None, algorithm}]
        if kid is None:
            return fitting[0].key if len(fitting) == 1 else None
        return next((known.key for known in fitting if known.kid == kid), None)

    async def _read(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s), aiohttp.ClientSession() as session:
                keys = signing_keys(await self._document(session, await self._key_set_url(session)))
        except (aiohttp.ClientError, OSError, ValueError) as exc:  # asyncio's timeout is an OSError
            metrics.OIDC_KEY_REQUESTS.labels("failed").inc()
            if not self._is_away:
                cause = "no answer in time" if isinstance(exc, TimeoutError) else str(exc)
                log.warning("oidc.unavailable", extra={"issuer": self._issuer, "cause": cause, "advice": ON_FAILURE})
            self._is_away = True
            return
        metrics.OIDC_KEY_REQUESTS.labels("ok").inc()
        if self._is_away or self._read_at == -math.inf:
            log.info("oidc.available", extra={"issuer": self._issuer, "keys": len(keys)})
        self._is_away = False
        self._read_at = self._clock()
        before, self._keys = self._keys, keys
        if [key.identity() for key in before] != [key.identity() for key in keys]:
            self.version += 1

    async def _key_set_url(self, session: aiohttp.ClientSession) -> str:
        """Return the URL of the keys, by discovery.

        Raise ValueError if the document is of another issuer, or has no URL of keys with https or the issuer's scheme.
        """
        found = await self._document(session, self._issuer.rstrip("/") + DISCOVERY)
        named = found.get("issuer")
        if not named:
            raise ValueError("the discovery document names no issuer: check oidc.issuer")
        if named != self._issuer:
            raise ValueError(
                f"the discovery document is of issuer {str(named)[:200]!r}: if it is your provider, set oidc.issuer to its "
                "issuer; if not, correct oidc.issuer"
            )
        url = found.get("jwks_uri")
        if not isinstance(url, str) or not url.startswith(("https://", self._issuer.partition("://")[0] + "://")):
            raise ValueError("the discovery document has no jwks_uri that is an https URL")
        return url

    async def _document(self, session: aiohttp.ClientSession, url: str) -> Mapping[str, Any]:
        """Return a JSON object of the provider.

        Raise ValueError if the answer has another status than 200, is larger than MAX_BYTES, is no JSON object, or is nested
        too deeply.

        Redirects are not followed: they would lead to a server that nobody named.
        """
        async with session.get(url, ssl=self._tls, allow_redirects=False, headers={"accept": "application/json"}) as response:
            if response.status != 200:  # noqa: PLR2004
                raise ValueError(f"{url} answered with status {response.status}")
            body = bytearray()
            async for part in response.content.iter_any():
                body += part
                if len(body) > MAX_BYTES:
                    raise ValueError(f"the answer of {url} is larger than {MAX_BYTES} bytes")
        try:
            return _OBJECT.decode(body)
        except msgspec.DecodeError:
            raise ValueError(f"the answer of {url} is not a JSON object") from None
        except RecursionError:
            raise ValueError(f"the answer of {url} is nested too deeply") from None


def signing_keys(document: Mapping[str, Any]) -> tuple[SigningKey, ...]:
    """Return the usable keys of a JWKS; raise ValueError if it has none. Pure.

    Unusable keys, and entries beyond MAX_KEYS, are left out.
    """
    listed = document.get("keys")
    found = [_signing_key(entry) for entry in (listed[:MAX_KEYS] if isinstance(listed, list) else [])]
    usable = tuple(key for key in found if key is not None)
    if not usable:
        raise ValueError(
            "the provider's key set has no usable key: it must publish one for RSA (2048 bits or more) or an elliptic curve"
        )
    return usable


def _signing_key(entry: Any) -> SigningKey | None:
    """Return a key of a JWKS; None if the entry is no RSA or EC key for signatures, or is malformed, or is too short."""
    if not isinstance(entry, dict) or entry.get("use", "sig") != "sig":
        return None
    kid, key_type, algorithm = entry.get("kid"), entry.get("kty"), entry.get("alg")
    key: jwk.RSAKey | jwk.ECKey
    try:
        if key_type == "RSA" and len(entry["n"]) >= MIN_RSA_TEXT:
            key = jwk.RSAKey.import_key({"kty": "RSA", "n": entry["n"], "e": entry["e"]})
        elif key_type == "EC":
            key = jwk.ECKey.import_key({"kty": "EC", "crv": entry["crv"], "x": entry["x"], "y": entry["y"]})
        else:
            return None
    except (jose_errors.JoseError, exceptions.UnsupportedAlgorithm, ValueError, TypeError, KeyError):
        return None
    kid, algorithm = (text if isinstance(text, str) else None for text in (kid, algorithm))
    return SigningKey(kid, key_type, algorithm, key)


def _tls(ca_file: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except OSError as exc:  # also ssl.SSLError
        raise errors.SettingsError(
            f"setting oidc.ca_file: {ca_file} cannot be read as certificates in PEM ({exc.strerror or 'no PEM'}), so nothing "
            "was started. Correct the path or the file"
        ) from None
