"""An OpenID Connect provider on a port of this machine: discovery, and the keys of an issuer."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Self

from aiohttp import web

from tests.support import tokens
from tests.support.thread_server import ThreadServer

DISCOVERY = "/.well-known/openid-configuration"
KEYS = "/keys"


class Provider(ThreadServer):
    """The provider.

    `discovered` replaces fields of the discovery document. `answer`, if it is set, makes the answer to every request.
    """

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        super().__init__(context)
        self.requests: list[str] = []
        self.discovered: dict[str, Any] = {}
        self.answer: Callable[[], Awaitable[web.StreamResponse]] | None = None

    def __enter__(self) -> Self:
        super().__enter__()
        self.issuer = tokens.Issuer(self.url)
        return self

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of discovery and keys."""
        return [web.get(DISCOVERY, self._discovery), web.get(KEYS, self._keys)]

    async def around(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Count a request, and answer by `answer` if it is set."""
        self.requests.append(request.path)
        answer: web.StreamResponse = await (handler(request) if self.answer is None else self.answer())
        return answer

    async def _discovery(self, _: web.Request) -> web.Response:
        url = self.issuer.url
        return web.json_response({"issuer": url, "jwks_uri": url + KEYS} | self.discovered)

    async def _keys(self, _: web.Request) -> web.Response:
        return web.json_response(self.issuer.key_set())
