"""Serve the API until it is asked to stop.

Runs in `fanout serve`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import threading
from collections.abc import AsyncIterator

import uvloop
from aiohttp import web

from delivery import errors
from delivery.config import settings, worker_plans
from delivery.observability import health
from delivery.observability import http_endpoints as probes
from delivery.observability.health import Phase
from subscriptions_db.api.registry import test_events
from subscriptions_db.api.server import transactions
from subscriptions_db.api.server.app import Api

log = logging.getLogger(__name__)

NAME = "api"
STOP_TIMEOUT_S = 15.0
LINGER_S = 1.0
"""How long the rest of a body is read that was refused, so that the answer arrives before the connection ends."""


def run(config: settings.Settings, stop: threading.Event) -> None:
    """Serve until `stop` is set. What is under way then is answered."""

    async def until_stopped() -> None:
        async with serving(config, stop) as port:
            log.info("api.serving", extra={"host": config.api.host, "port": port})
            await asyncio.to_thread(stop.wait)

    uvloop.run(until_stopped())
    log.info("stopped in order: what was under way is answered")


@contextlib.asynccontextmanager
async def serving(config: settings.Settings, stop: threading.Event) -> AsyncIterator[int]:
    """Serve inside; yield the port. From when `stop` is set on, the probes say that it stops."""
    worker_plans.warn_of_open_guard(config.delivery)
    async with contextlib.AsyncExitStack() as stack:
        opened = stack.enter_context(transactions.Store(config))
        await asyncio.to_thread(_require_ready, opened)
        watch = health.Watch(pause_reason=functools.partial(_pause_reason, opened), stop=stop)
        probes.serve(config.metrics, {NAME: watch})
        sending = await stack.enter_async_context(test_events.opened(config.delivery, worker_plans.guard_of(config.delivery)))
        api = stack.enter_context(contextlib.closing(Api(config, opened, sending)))
        # The timeout ends a connection on which no whole head of a request has come for so long, however it drips.
        timeout_s = config.api.request_timeout_s
        runner = web.AppRunner(
            api.application(),
            access_log=None,
            logger=_quiet(),
            keepalive_timeout=timeout_s,
            lingering_time=LINGER_S,
            shutdown_timeout=STOP_TIMEOUT_S,
        )
        await runner.setup()
        site = web.TCPSite(runner, config.api.host, config.api.port, reuse_address=True)
        try:
            await site.start()
        except OSError as exc:
            await runner.cleanup()
            raise errors.SettingsError(f"setting api.port: cannot serve on it ({exc.strerror}); choose another") from exc
        await asyncio.to_thread(_warn_of_rights, opened)
        # What is there by now stays: 90,000 objects. To look for garbage among them held up every request for more than 0.1 s.
        gc.freeze()
        watch.enter(Phase.RUNNING)
        try:
            yield int(runner.addresses[0][1])
        finally:
            await runner.cleanup()


def _require_ready(opened: transactions.Store) -> None:
    """Raise SettingsError for settings that the registry refuses. Where it cannot be asked, the answers will say so."""
    try:
        opened.require_ready()
    except (errors.RegistryUnavailable, errors.RegistryOutdated) as exc:
        log.warning("not ready: %s", exc)


def _pause_reason(opened: transactions.Store) -> str | None:
    """Return why no request could be answered now."""
    try:
        opened.require_ready()
    except errors.FanoutError as exc:
        return str(exc)
    return None


def _warn_of_rights(opened: transactions.Store) -> None:
    with contextlib.suppress(errors.FanoutError):  # Postgres is away: the answers will say so
        if opened.passes_by_policies():
            log.warning("api.login passes by row-level security; each request steps down. Give it a login: api.database_url")


def _quiet() -> logging.Logger:
    """Return a logger for the HTTP server, which would log what is no HTTP, quoted, with a traceback, as an error of ours."""
    server_log = logging.getLogger(f"{__name__}.http")
    server_log.setLevel(logging.CRITICAL)
    return server_log
