"""Verify tokens of the OpenID Connect provider: signature, issuer, audience and times. Return the principal of a token.

Runs in the API, on its event loop. A verified token is cached at most until `oidc.leeway_s` after its expiry, or until the
provider's keys change. The cache has digests, no tokens. No refusal and no log line quotes a token.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

import cachetools
import orjson
from joserfc import errors as jose_errors
from joserfc import jws, jwt
from joserfc.jwk import ECKey, RSAKey

from delivery.config import oidc_settings
from subscriptions_db.api.contract import problems
from subscriptions_db.api.contract.principals import Principal, Scope
from subscriptions_db.api.oidc.provider_keys import ProviderKeys

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")
"""Algorithms of signatures that only the provider can make. `none` and HS256 are left out: other parties could make a signature
with them."""
TYPES = {"", "jwt", "at+jwt"}
"""Values of the header `typ` in access tokens. A logout token has another value (OpenID Connect Back-Channel Logout)."""
MAX_TOKEN_BYTES = 16 * 1024
"""Maximum bytes of a token. In the API, aiohttp already refuses a header of more than 8,190 bytes."""
MAX_CACHED_TOKENS = 10_000
"""Maximum verified tokens that one process remembers."""
MAX_SUBJECT = 255
"""Most characters of a subject (OpenID Connect Core, section 2)."""
_SEND_ACCESS_TOKEN = "send the provider's access token"  # noqa: S105  # advice, no token
PREFIX = "oidc:"
"""Beginning of the `key_id` of a token's principal. No id of an API key begins with it."""


class KnownToken(NamedTuple):
    """A verified token: its principal, its expiry plus `oidc.leeway_s`, and the version of the keys that verified it."""

    principal: Principal
    until: float
    """Seconds since the epoch."""
    version: int


class TokenVerifier:
    """Verify tokens, and remember the verified ones. Lives on the event loop."""

    def __init__(self, config: oidc_settings.OidcSettings, keys: ProviderKeys, *, now: Callable[[], float] = time.time) -> None:
        self._config = config
        self._keys = keys
        self._now = now
        self._known: cachetools.TLRUCache[bytes, KnownToken] = cachetools.TLRUCache(
            MAX_CACHED_TOKENS, lambda _, known, __: known.until, timer=now
        )
        # The provider may add headers, such as `nonce`, which RFC 7515 says to ignore.
        self._signatures = jws.JWSRegistry(algorithms=ALGORITHMS, strict_check_header=False)

    def known(self, text: str) -> Principal | None:
        """Return the principal of a token that was verified before; None if it must be verified.

        If the provider's keys are old, begin a background read of the keys, as `ProviderKeys.are_usable` does.
        """
        if not self._keys.are_usable():
            return None
        found = self._known.get(_digest(text))
        return found.principal if found is not None and found.version == self._keys.version else None

    async def verified(self, text: str) -> Principal:
        """Return the principal of a token.

        Raise Refused:

        * 401: the token is not valid, or has no usable subject.
        * 403: the token gives no scope.
        * 503: the token's key is not known, and the keys of the provider cannot be read.
        """
        claims = await self._claims(text)
        principal = Principal(PREFIX + self._subject(claims), None, self._scope(claims))
        self._known[_digest(text)] = KnownToken(principal, claims["exp"] + self._config.leeway_s, self._keys.version)
        return principal

    async def _claims(self, text: str) -> dict[str, Any]:
        """Return the claims of a token.

        Raise Refused with 401 if the token is not valid. Raise it with 503 if the token's key is not known, and the keys of the
        provider cannot be read.
        """
        if not text.isascii():
            _refuse(f"the token is no JWT: {_SEND_ACCESS_TOKEN}")
        if len(text) > MAX_TOKEN_BYTES:
            _refuse(
                f"the token is too large, with {len(text)} bytes; at most {MAX_TOKEN_BYTES} are accepted: ask the operator to "
                "let the provider leave out claims"
            )
        try:
            signed = jws.extract_compact(text.encode(), None, self._signatures)
        except (jose_errors.JoseError, ValueError, TypeError, RecursionError):
            _refuse(f"the token is no signed JWT: {_SEND_ACCESS_TOKEN}")
        header = signed.headers()
        algorithm, kid, kind = header.get("alg"), header.get("kid"), str(header.get("typ", ""))
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            _refuse(f"the algorithm of the token is not allowed: the provider must sign with one of {', '.join(ALGORITHMS)}")
        if "crit" in header or "b64" in header:
            _refuse("the header of the token has crit or b64, which are not read: the provider must sign without them")
        if kind.lower().removeprefix("application/") not in TYPES:
            _refuse(f"the token is no access token, by its header typ: {_SEND_ACCESS_TOKEN}")
        if kid is not None and not isinstance(kid, str):
            _refuse(f"the token is no signed JWT: {_SEND_ACCESS_TOKEN}")
        key = await self._keys.find(kid, algorithm)
        if key is None or not self._is_signed(signed, key):
            _refuse("the token is not signed by a key of the provider: get a new token from the operator's provider")
        return self._checked(signed.payload)

    def _is_signed(self, signed: jws.CompactSignature, key: RSAKey | ECKey) -> bool:
        try:
            return jws.validate_compact(signed, key, registry=self._signatures)
        except (jose_errors.JoseError, ValueError, TypeError):  # such as a curve of another algorithm
            return False

    def _checked(self, payload: bytes) -> dict[str, Any]:
        """Return the claims in a payload.

        Raise Refused with 401 if the payload is no JSON object, or lacks `iss`, `aud` or `exp`. Also raise Refused with 401 if
        the token is of another issuer or for another API, has expired, or is not valid yet.
        """
        rules = jwt.JWTClaimsRegistry(
            now=int(self._now()),
            leeway=self._config.leeway_s,
            iss={"essential": True, "value": self._config.issuer},
            aud={"essential": True, "value": self._config.audience},
            exp={"essential": True},
        )
        try:
            claims = orjson.loads(payload)
            rules.validate(claims)
        except jose_errors.ExpiredTokenError:
            _refuse("the token is expired: get a new one from the provider")
        except jose_errors.MissingClaimError as exc:
            _refuse(f"the token lacks the claim {_name(exc)}: ask the provider for a token for this API")
        except jose_errors.ClaimError as exc:
            if exc.claim in {"nbf", "iat"}:
                _refuse(
                    f"the claim {exc.claim} of the token is later than now, or no time: try again in a minute. If that fails, "
                    "ask the operator to compare the clocks of the provider and of the API"
                )
            _refuse(f"the claim {_name(exc)} of the token is not valid here: ask the provider for a token for this API")
        except (ValueError, TypeError, AttributeError):  # no JSON, or no object
            _refuse(f"the token has no claims: {_SEND_ACCESS_TOKEN}")
        return claims  # type: ignore[no-any-return]  # a list has no claims and is refused

    def _subject(self, claims: Mapping[str, Any]) -> str:
        subject = claims.get(self._config.subject_claim)
        if not isinstance(subject, str) or not 0 < len(subject) <= MAX_SUBJECT or not subject.isprintable():
            _refuse(
                f"the claim {self._config.subject_claim} of the token is missing, or no printable text of at most "
                f"{MAX_SUBJECT} characters: ask the operator to correct oidc.subject_claim"
            )
        return subject

    def _scope(self, claims: Mapping[str, Any]) -> Scope:
        values = _values(claims, self._config.claim)
        for value, scope in self._config.scopes.items():
            if value in values:
                return Scope(scope)
        raise problems.Refused(
            403,
            f"the claim {self._config.claim} of the token is missing or gives no scope: ask the operator to add its value to "
            "oidc.scopes, or to let the provider add the claim",
        )


def _values(claims: Mapping[str, Any], claim: str) -> set[str]:
    """Return the texts in a claim; empty if it has none. `claim` is the name of the claim, or a dotted path to it. Pure.

    A claim of one text gives the text and each of its words. A claim with a list gives the texts of the list.
    """
    found: Any = claims.get(claim)
    if found is None:
        found = claims
        for part in claim.split("."):
            found = found.get(part) if isinstance(found, dict) else None
    if isinstance(found, str):
        return {found, *found.split()}
    return {value for value in found if isinstance(value, str)} if isinstance(found, list) else set()


def _name(exc: jose_errors.ClaimError) -> str:
    """Return the name of the refused claim, if the error names one; else the names of the three required claims.

    The library joins the names of several missing claims by commas.
    """
    return exc.claim if exc.claim in {"iss", "aud", "exp", "nbf", "iat", "sub", "jti"} else "iss, aud or exp"


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _refuse(detail: str) -> NoReturn:
    raise problems.Refused(401, detail, headers={"www-authenticate": 'Bearer error="invalid_token"'})
