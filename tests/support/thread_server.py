"""An HTTP server of a test, on a thread of its own, that can be stopped and started again on its port."""

from __future__ import annotations

import asyncio
import ssl
import threading
from typing import Any, Self

from aiohttp import web


class ThreadServer:
    """The base of servers that a test runs beside itself. A subclass has the routes, and a middleware around all of them."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self._context = context
        self._loop = asyncio.new_event_loop()
        self._port = 0

    @property
    def url(self) -> str:
        """Return the URL of the server, without a path."""
        return f"{'http' if self._context is None else 'https'}://127.0.0.1:{self._port}"

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        raise NotImplementedError

    async def around(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Answer a request, mostly by its `handler`."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def start(self) -> None:
        """Listen, again on the same port if the server was stopped."""
        self._runner = asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result()
        self._port = self._runner.addresses[0][1]

    def stop(self) -> None:
        """Close the port: connections are refused."""
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result()

    async def _serve(self) -> web.AppRunner:
        @web.middleware
        async def around(request: web.Request, handler: Any) -> web.StreamResponse:
            return await self.around(request, handler)

        app = web.Application(middlewares=[around])
        app.router.add_routes(self.routes())
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self._port, reuse_address=True, ssl_context=self._context).start()
        return runner
