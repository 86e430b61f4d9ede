"""Serve the API until it is asked to stop; cut off who keeps a connection without sending a request.

Runs in `fanout serve`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator

import uvloop
from aiohttp import web, web_protocol

from delivery import errors, settings
from subscriptions_db.api import store
from subscriptions_db.api.app import Api, Handler

log = logging.getLogger(__name__)

SWEEP_S = 1.0
STOP_TIMEOUT_S = 15.0


def run(config: settings.Settings, stop: threading.Event) -> None:
    """Serve until `stop` is set. What is under way then is answered."""

    async def until_stopped() -> None:
        async with serving(config) as port:
            log.info("api.serving", extra={"host": config.api.host, "port": port})
            await asyncio.to_thread(stop.wait)

    uvloop.run(until_stopped())


@contextlib.asynccontextmanager
async def serving(config: settings.Settings) -> AsyncIterator[int]:
    """Serve inside; yield the port."""
    with store.Store(config) as opened, contextlib.closing(Api(config, opened)) as api:
        connections = _Connections(config.api.request_timeout_s)
        app = api.application(connections.watched)
        runner = web.AppRunner(
            app, access_log=None, keepalive_timeout=config.api.request_timeout_s, shutdown_timeout=STOP_TIMEOUT_S
        )
        await runner.setup()
        site = web.TCPSite(runner, config.api.host, config.api.port, reuse_address=True)
        try:
            await site.start()
        except OSError as exc:
            await runner.cleanup()
            raise errors.SettingsError(f"setting api.port: cannot serve on it ({exc.strerror}); choose another") from exc
        sweeping = asyncio.create_task(connections.sweep(runner))
        try:
            yield int(runner.addresses[0][1])
        finally:
            sweeping.cancel()
            await runner.cleanup()


class _Connections:
    """Since when each connection has been without a request that is complete up to its body.

    aiohttp bounds the time between requests, but not that of a request's head: of a byte a second it would wait for ever.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._idle_since: dict[web_protocol.RequestHandler, float] = {}
        self._busy: set[web_protocol.RequestHandler] = set()

    @web.middleware
    async def watched(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Leave the connection alone while it is being answered: that has a bound of its own."""
        self._busy.add(request.protocol)
        try:
            return await handler(request)
        finally:
            self._busy.discard(request.protocol)
            self._idle_since[request.protocol] = asyncio.get_running_loop().time()

    async def sweep(self, runner: web.AppRunner) -> None:
        """Cut off, again and again, who has been idle for too long."""
        while True:
            await asyncio.sleep(SWEEP_S)
            now = asyncio.get_running_loop().time()
            open_now = runner.server.connections if runner.server else []
            self._idle_since = {one: self._idle_since.get(one, now) for one in open_now}
            for one, since in self._idle_since.items():
                if one not in self._busy and now - since > self._timeout_s:
                    one.force_close()
