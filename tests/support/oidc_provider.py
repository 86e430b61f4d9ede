"""An OpenID Connect provider on a port of this machine: discovery, and the keys of an issuer."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Self

from aiohttp import web

from tests.support import tokens

DISCOVERY = "/.well-known/openid-configuration"
KEYS = "/keys"


class Provider:
    """A server on a thread of its own.

    `discovered` replaces fields of the discovery document, and `answer` makes another answer to each request.
    """

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.requests: list[str] = []
        self.discovered: dict[str, Any] = {}
        self.answer: Callable[[], Awaitable[web.StreamResponse]] | None = None
        self._context = context
        self._loop = asyncio.new_event_loop()
        self._port = 0

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.start()
        scheme = "http" if self._context is None else "https"
        self.issuer = tokens.Issuer(f"{scheme}://127.0.0.1:{self._port}")
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def start(self) -> None:
        """Listen, again on the same port if the provider was stopped."""
        self._runner = asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result()
        self._port = self._runner.addresses[0][1]

    def stop(self) -> None:
        """Close the port: connections are refused."""
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result()

    async def _serve(self) -> web.AppRunner:
        app = web.Application(middlewares=[self._counted])
        app.router.add_get(DISCOVERY, self._discovery)
        app.router.add_get(KEYS, self._keys)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self._port, reuse_address=True, ssl_context=self._context).start()
        return runner

    @web.middleware
    async def _counted(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.requests.append(request.path)
        answer: web.StreamResponse = await (handler(request) if self.answer is None else self.answer())
        return answer

    async def _discovery(self, _: web.Request) -> web.Response:
        url = self.issuer.url
        return web.json_response({"issuer": url, "jwks_uri": url + KEYS} | self.discovered)

    async def _keys(self, _: web.Request) -> web.Response:
        return web.json_response(self.issuer.key_set())
