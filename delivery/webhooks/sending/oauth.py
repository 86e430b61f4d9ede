"""Come by access tokens for endpoints that want OAuth2, by client credentials (RFC 6749, section 4.4).

Runs in the executors, inside the worker's event loop. Must not import pyspark or psycopg. Token requests go through the
deliveries' transport: guarded addresses, no redirects, bounded answers, a total time. No text made here holds a secret.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

import cachetools
import orjson

from delivery import errors
from delivery.model import Auth
from delivery.webhooks.http import origin, transport
from delivery.webhooks.scheduling import endpoint_clock, limits

MAX_TOKENS = 20_000
PAUSE_S = 5.0
"""For so long a failure holds for all that need the same token, and so far apart are renewals because of a 401: a token server
that is broken, or an endpoint that likes no token, must not be asked once for each delivery."""
DEFAULT_LIFETIME_S = 300.0
"""Of a token whose server names none; an earlier end shows as a 401."""
RENEW_BEFORE = 0.2
"""The last part of a token's life in which a new one is fetched while the old one still serves; at most a minute."""

_TOKEN = re.compile(r"[!-~]+")
_ERRORS = frozenset(
    {"invalid_request", "invalid_client", "invalid_grant", "unauthorized_client", "unsupported_grant_type", "invalid_scope"}
)
"""RFC 6749, section 5.2. Any other text of the server could repeat our secret."""


class Transport(Protocol):
    """What is needed of the network. See delivery.webhooks.http.transport.Transport."""

    async def post(self, to: origin.Target, headers: bytes, body: bytes, timeout_s: float) -> transport.Response: ...


@dataclass(slots=True, repr=False)
class _Token:
    """What is known of one token; `header` is the line that carries it."""

    header: bytes = b""
    renew_at: float = 0.0
    expires_at: float = 0.0
    failure: errors.AttemptFailed | None = None
    """Of the last request."""
    ask_again_at: float = 0.0
    heed_401_at: float = 0.0
    fetching: asyncio.Task[None] | None = None


class Tokens:
    """The access tokens of one worker process.

    `timeout_s` bounds a token request; `clock` gives seconds since the epoch; by `judging` token servers are judged.
    """

    def __init__(
        self,
        network: Transport,
        *,
        timeout_s: float,
        clock: Callable[[], float],
        judging: Callable[[], float] = endpoint_clock.loop_time,
    ) -> None:
        self._network = network
        self._timeout_s = timeout_s
        self._clock = clock
        self._judging = judging
        self._tokens: cachetools.LRUCache[Auth, _Token] = cachetools.LRUCache(maxsize=MAX_TOKENS)

    async def header(self, grant: origin.Grant, timeout_s: float) -> bytes:
        """Return the header line with the token; raise TokenRefused or LocalFailure.

        1. The token has long to live: it serves.
        2. It ends soon: it serves, and a new one is fetched meanwhile.
        3. There is none: all that need it wait for one and the same request.
        4. A request failed just now: that is the answer.
        """
        token = self._token(grant)
        now = self._clock()
        if now >= token.renew_at and now >= token.ask_again_at and token.fetching is None:
            token.fetching = asyncio.create_task(self._fetch(grant, token))
        if now < token.expires_at:
            return token.header
        if token.fetching is not None:
            await self._fetched(token.fetching, timeout_s)
        if token.failure is not None:
            raise type(token.failure)(*token.failure.args)
        return token.header

    async def _fetched(self, fetching: asyncio.Task[None], timeout_s: float) -> None:
        """Wait for a token request. An attempt that stops waiting leaves it to the others; it has a time of its own."""
        ends_at = self._judging() + timeout_s
        while not fetching.done():
            left_s = ends_at - self._judging()
            if left_s <= limits.ROUNDING_S:
                raise errors.TokenRefused("no token came within the attempt's time")
            await asyncio.wait({fetching}, timeout=left_s)
        fetching.result()  # raises what nobody foresaw

    async def instead_of(self, refused: bytes, grant: origin.Grant, timeout_s: float) -> bytes | None:
        """Return the header line to try after a 401 for `refused`; None when a new token would not help."""
        token = self._token(grant)
        if token.header == refused and token.fetching is None:
            now = self._clock()
            if now < token.heed_401_at:
                return None
            token.heed_401_at = now + PAUSE_S
            token.renew_at = token.expires_at = 0.0
        return await self.header(grant, timeout_s)

    def _token(self, grant: origin.Grant) -> _Token:
        token = self._tokens.get(grant.auth)
        if token is None:
            token = self._tokens[grant.auth] = _Token()
        return token

    async def _fetch(self, grant: origin.Grant, token: _Token) -> None:
        began = self._clock()
        try:
            answer = await self._network.post(grant.to, b"", grant.body, self._timeout_s)
            token.header, lifetime_s = _parsed(answer)
        except errors.LocalFailure as exc:
            token.failure = exc  # says nothing of the token server: the next attempt asks again
        except errors.AttemptFailed as exc:
            token.failure = exc if isinstance(exc, errors.TokenRefused) else errors.TokenRefused(f"the token server: {exc}")
            token.ask_again_at = self._clock() + PAUSE_S
        else:
            token.failure = None
            token.expires_at = began + lifetime_s
            token.renew_at = token.expires_at - min(60.0, lifetime_s * RENEW_BEFORE)
        finally:
            token.fetching = None


def _parsed(answer: transport.Response) -> tuple[bytes, float]:
    """Return the header line and the token's lifetime (RFC 6749, section 5.1); raise TokenRefused."""
    try:
        said = orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        said = None
    fields: dict[str, Any] = said if isinstance(said, dict) else {}
    if answer.status != HTTPStatus.OK:
        error = fields.get("error")
        reason = f" {error}" if isinstance(error, str) and error in _ERRORS else ""
        raise errors.TokenRefused(f"the token server answered {answer.status}{reason}")
    token, kind, lifetime = fields.get("access_token"), fields.get("token_type", "bearer"), fields.get("expires_in")
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise errors.TokenRefused("the token server's answer holds no usable access_token")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise errors.TokenRefused("the token server's answer is not of token_type bearer")
    return b"authorization: Bearer %s\r\n" % token.encode(), _lifetime_s(lifetime)


def _lifetime_s(said: object) -> float:
    """Return `expires_in`; some servers send it as text, and it is optional."""
    try:
        lifetime_s = float(said) if isinstance(said, int | float | str) else DEFAULT_LIFETIME_S
    except ValueError:
        lifetime_s = DEFAULT_LIFETIME_S
    return lifetime_s if lifetime_s > 0 else DEFAULT_LIFETIME_S
