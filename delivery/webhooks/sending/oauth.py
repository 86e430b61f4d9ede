"""Fetch access tokens for endpoints that use OAuth2 client credentials (RFC 6749, section 4.4).

Token requests use the deliveries' transport: guarded addresses, no redirects, bounded responses, a total timeout. No error and
no log line of this module contains a secret.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

import cachetools
import orjson

from delivery import errors
from delivery.registry_model import Auth
from delivery.webhooks.http import origin, transport
from delivery.webhooks.policy import error_classes
from delivery.webhooks.scheduling import endpoint_clock, limits

log = logging.getLogger(__name__)

MAX_TOKENS = 20_000
"""Most tokens that a process keeps. The least recently used are forgotten."""
RETRY_PAUSE_S = 5.0
"""Seconds after a failed token request in which attempts without a valid token fail at once, and request no token. After a
LocalFailure of the transport the next attempt requests a token at once. Two renewals after a 401 are also at least this far
apart. So a broken token server, or an endpoint that accepts no token, causes no token request for each delivery."""
DEFAULT_LIFETIME_S = 300.0
"""Lifetime of a token in seconds if the token server returns none. If the token ends earlier, a 401 shows it."""
RENEW_BEFORE = 0.2
"""Last share of a token's lifetime in which a new token is fetched while the old token is still used. This time is at most a
minute."""

_HEADER = b"authorization: Bearer "
_TOKEN = re.compile(r"[!-~]+")
_ERRORS = frozenset(
    {"invalid_request", "invalid_client", "invalid_grant", "unauthorized_client", "unsupported_grant_type", "invalid_scope"}
)
"""Error codes of RFC 6749, section 5.2, which may be shown. Any other text of the server could contain the customer's
secret."""
_WRONG_AUTH = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND})
"""Statuses of a token server that the customer can cure by correct settings."""
_CHECK = "check that server and auth.token_url"


class TokenTransport(Protocol):
    """Post a request. Implemented by delivery.webhooks.http.transport.Transport."""

    async def post(self, to: origin.Target, headers: bytes, body: bytes, timeout_s: float) -> transport.Response: ...


@dataclass(slots=True, repr=False)
class _Token:
    """The access token of one Auth, and the state of its renewal. `header` is the token's header line.

    All times are by the monotonic clock of Tokens. The driver's clock, as a worker follows it, may jump by seconds, and would
    then make these times wrong: they are only some seconds ahead.
    """

    header: bytes = b""
    renew_at: float = 0.0
    expires_at: float = 0.0
    failure: errors.AttemptFailed | None = None
    """Failure of the last token request. None: the request succeeded, or there was none."""
    retry_at: float = 0.0
    renew_on_401_at: float = 0.0
    fetching: asyncio.Task[None] | None = None


def token_of(header: bytes) -> str:
    """Return the access token in a header line that Tokens returned; "" for an empty line. No log may show the token."""
    return header.removeprefix(_HEADER).rstrip().decode()


class Tokens:
    """Fetch and keep access tokens, one for each Auth, in one process.

    `timeout_s` is the timeout of a token request. `monotonic` is a monotonic clock, in seconds. `endpoint_time` is the clock,
    in seconds, by which waits for token servers are measured.
    """

    def __init__(
        self,
        network: TokenTransport,
        *,
        timeout_s: float,
        monotonic: Callable[[], float],
        endpoint_time: Callable[[], float] = endpoint_clock.loop_time,
    ) -> None:
        self._network = network
        self._timeout_s = timeout_s
        self._monotonic = monotonic
        self._endpoint_time = endpoint_time
        self._tokens: cachetools.LRUCache[Auth, _Token] = cachetools.LRUCache(maxsize=MAX_TOKENS)

    async def header(self, grant: origin.Grant, timeout_s: float) -> bytes:
        """Return the header line with a token for an attempt; raise TokenRefused or LocalFailure if there is none.

        1. The token is valid for long: return the token.
        2. The token ends soon (RENEW_BEFORE): return the token, and fetch a new one meanwhile.
        3. There is no valid token, and a token request failed less than RETRY_PAUSE_S ago: raise that failure. A LocalFailure
           of the transport does not count here.
        4. There is no valid token, and case 3 does not apply: all attempts that need the token wait for one token request, each
           at most `timeout_s`. If the request fails, raise its failure.
        """
        token = self._token(grant)
        now = self._monotonic()
        if now >= token.renew_at and now >= token.retry_at and token.fetching is None:
            token.fetching = asyncio.create_task(self._fetch(grant, token))
        return token.header if now < token.expires_at else await self._newest(token, timeout_s)

    async def _newest(self, token: _Token, timeout_s: float) -> bytes:
        """Wait for the token request in flight, if any, and return the token. Raise the failure of the last token request."""
        if token.fetching is not None:
            await self._wait_for_token(token.fetching, timeout_s)
        if token.failure is not None:
            raise type(token.failure)(*token.failure.args)
        return token.header

    async def _wait_for_token(self, fetching: asyncio.Task[None], timeout_s: float) -> None:
        """Wait for a token request. Raise TokenRefused after `timeout_s`: the request continues for other attempts."""
        ends_at = self._endpoint_time() + timeout_s
        while not fetching.done():
            left_s = ends_at - self._endpoint_time()
            if left_s <= limits.ROUNDING_S:
                problem = "the token server sent no token within the attempt's time, so the attempt failed: check that server"
                raise errors.TokenRefused(problem)
            await asyncio.wait({fetching}, timeout=left_s)
        fetching.result()  # raises CancelledError if the request was cancelled

    async def header_after_401(self, refused: bytes, grant: origin.Grant, timeout_s: float) -> bytes | None:
        """Return a header line for a second request, after a response 401 to a request with the header line `refused`.

        1. The refused token was replaced meanwhile: do what `header` does.
        2. A token request is in flight: wait for its token.
        3. A token request failed less than RETRY_PAUSE_S ago: raise that failure.
        4. A renewal after a 401 began less than RETRY_PAUSE_S ago: None, because another renewal would not help.
        5. Otherwise request a token, and wait for it.

        Other attempts use the refused token until it is replaced or ends. Another endpoint with the same Auth may accept it,
        and a 401 may have another cause than the token. Raise TokenRefused or LocalFailure if there is no new token.
        """
        token = self._token(grant)
        if token.header != refused:
            return await self.header(grant, timeout_s)
        now = self._monotonic()
        has_just_failed = token.failure is not None and now < token.retry_at
        if token.fetching is None and now < token.renew_on_401_at and not has_just_failed:
            return None
        if token.fetching is None and now >= token.retry_at:
            token.fetching = asyncio.create_task(self._fetch(grant, token))
        if token.fetching is not None:
            token.renew_on_401_at = now + RETRY_PAUSE_S
        return await self._newest(token, timeout_s)

    def _token(self, grant: origin.Grant) -> _Token:
        token = self._tokens.get(grant.auth)
        if token is None:
            token = self._tokens[grant.auth] = _Token()
        return token

    async def _fetch(self, grant: origin.Grant, token: _Token) -> None:
        began = self._monotonic()
        try:
            answer = await self._network.post(grant.to, b"", grant.body, self._timeout_s)
            token.header, lifetime_s = _parsed(answer)
        except errors.LocalFailure as exc:
            token.failure = exc  # proves nothing about the token server: the next attempt asks again
        except errors.AttemptFailed as exc:
            refused = errors.TokenRefused(f"no token from the token server ({exc}), so the attempt failed: {_CHECK}")
            token.failure = exc if isinstance(exc, errors.TokenRefused) else refused
            token.retry_at = self._monotonic() + RETRY_PAUSE_S
        except Exception:  # no caller awaits a renewal, and without RETRY_PAUSE_S each attempt would request a token
            log.exception(
                "an unforeseen error in a request for an access token: attempts without a valid token fail as a fault of the "
                "platform (local), and the first attempt after %.0f s requests the token again. Send this traceback to the "
                "maintainers of the platform",
                RETRY_PAUSE_S, extra={"endpoint_id": grant.to.endpoint.endpoint_id},
            )  # fmt: skip
            token.failure = errors.LocalFailure(error_classes.UNFORESEEN_DETAIL)
            token.retry_at = self._monotonic() + RETRY_PAUSE_S
        else:
            token.failure = None
            token.expires_at = began + lifetime_s
            token.renew_at = token.expires_at - min(60.0, lifetime_s * RENEW_BEFORE)
        finally:
            token.fetching = None


def _parsed(answer: transport.Response) -> tuple[bytes, float]:
    """Read the response of a token server (RFC 6749, section 5.1).

    Return the `authorization` header line that sends the token to the endpoint, and the token's lifetime in seconds.
    Raise TokenRefused if the response has no usable token.
    """
    try:
        document = orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        document = None
    fields: dict[str, Any] = document if isinstance(document, dict) else {}
    if answer.status != HTTPStatus.OK:
        error = fields.get("error")
        reason = f" {error}" if isinstance(error, str) and error in _ERRORS else ""
        advice = "correct the endpoint's auth" if reason or answer.status in _WRONG_AUTH else _CHECK
        raise errors.TokenRefused(f"the token server answered {answer.status}{reason}, so the attempt failed: {advice}")
    token, kind, lifetime = fields.get("access_token"), fields.get("token_type", "bearer"), fields.get("expires_in")
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        problem = "the token server's answer has no usable access_token, so the attempt failed: check auth.token_url"
        raise errors.TokenRefused(problem)
    if not isinstance(kind, str) or kind.lower() != "bearer":
        problem = "the token server's answer is not of token_type bearer, so the attempt failed: let it issue bearer tokens"
        raise errors.TokenRefused(problem)
    return b"%s%s\r\n" % (_HEADER, token.encode()), _lifetime_s(lifetime)


def _lifetime_s(expires_in: object) -> float:
    """Return the lifetime of a token in seconds. `expires_in` is optional, and some servers send it as text.

    Return DEFAULT_LIFETIME_S if `expires_in` is missing, or is no finite number above 0.
    """
    try:
        lifetime_s = float(expires_in) if isinstance(expires_in, int | float | str) else DEFAULT_LIFETIME_S
    except ValueError:
        lifetime_s = DEFAULT_LIFETIME_S
    return lifetime_s if 0 < lifetime_s < math.inf else DEFAULT_LIFETIME_S
