"""Start the API, serve it, and stop it.

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
from aiohttp import web, web_response

from delivery import errors
from delivery.config import plan_builder, service_settings, settings
from delivery.observability import health, listening
from delivery.observability import http_endpoints as probes
from delivery.observability.health import QueryPhase
from subscriptions_db import server_bounds
from subscriptions_db.api.registry import test_events
from subscriptions_db.api.server import transactions
from subscriptions_db.api.server.app import Api

log = logging.getLogger(__name__)

NAME = "api"
"""The name of this process in probes and metrics."""
STOP_TIMEOUT_S = 15.0
"""Seconds that requests in flight may still take when the server stops."""
LINGER_S = 1.0
"""Seconds to read the rest of a refused body, so that the client receives the answer before the connection closes."""


def run(config: settings.Settings, stop: threading.Event) -> None:
    """Serve until `stop` is set, then give the requests in flight up to STOP_TIMEOUT_S to end.

    Raise SettingsError for a wrong setting.
    """

    async def until_stopped() -> None:
        async with serving(config, stop) as port:
            log.info("api.serving", extra={"host": config.api.host, "port": port})
            await asyncio.to_thread(stop.wait)

    uvloop.run(until_stopped())
    log.info("the API has stopped: requests in flight had up to %g s to end, and longer ones were cancelled", STOP_TIMEOUT_S)


@contextlib.asynccontextmanager
async def serving(
    config: settings.Settings, stop: threading.Event, bounds: server_bounds.ServerBounds = server_bounds.DEFAULT
) -> AsyncIterator[int]:
    """Serve while the context is open; yield the port. Once `stop` is set, the probes report that the process stops.

    Raise SettingsError for a wrong setting. If Postgres is not ready, serve all the same. The objects that exist at the start
    are exempt from garbage collection (`gc.freeze`), also after the context.
    """
    plan_builder.warn_of_open_guard(config.delivery)
    _hide_versions()
    async with contextlib.AsyncExitStack() as stack:
        opened = stack.enter_context(transactions.Store(config, wait_s=bounds.connection_wait_s))
        await asyncio.to_thread(_require_ready, opened)
        watch = health.Watch(pause_reason=functools.partial(_pause_reason, opened), stop=stop)
        probes.serve(config.metrics, {NAME: watch})
        sending = await stack.enter_async_context(
            test_events.open_sender(config.delivery, plan_builder.guard_of(config.delivery), bounds)
        )
        api = stack.enter_context(contextlib.closing(Api(config, opened, sending, bounds)))
        # The keep-alive timeout also closes a connection whose request head is not complete in time, even if bytes keep coming.
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
        try:
            await _site(runner, config.api).start()
        except OSError as exc:
            await runner.cleanup()
            raise errors.SettingsError(
                f"settings api.host and api.port: {config.api.host}:{config.api.port} cannot be opened ({exc.strerror}), so "
                "nothing was started. Free the port, or change api.host or api.port"
            ) from exc
        await asyncio.to_thread(_warn_of_rights, opened)
        # The 90,000 objects of the API live as long as the process. Scanning them for garbage delayed every request by more
        # than 0.1 s.
        gc.freeze()
        watch.enter(QueryPhase.RUNNING)
        try:
            yield int(runner.addresses[0][1])
        finally:
            await runner.cleanup()


def _site(runner: web.AppRunner, api: service_settings.ApiSettings) -> web.BaseSite:
    """Return the site for `api.host` and `api.port`. Raise OSError if an address of IPv6 cannot be opened.

    For an address of IPv6, open the socket here: a socket of asyncio for `::` would take connections by IPv6 only.
    """
    if ":" not in api.host:
        return web.TCPSite(runner, api.host, api.port, reuse_address=True)
    return web.SockSite(runner, listening.opened(api.host, api.port))


def _require_ready(opened: transactions.Store) -> None:
    """Raise SettingsError for settings that do not fit the registry. If Postgres is not ready, log that and return."""
    try:
        opened.require_ready()
    except (errors.RegistryUnavailable, errors.RegistryOutdated) as exc:
        log.warning(
            "the API starts, but is not ready: until this is repaired, /readyz answers 503, and requests may fail: %s", exc
        )


def _pause_reason(opened: transactions.Store) -> str | None:
    """Return why the API is not ready, for the readiness probe; None if it is ready."""
    try:
        opened.require_ready()
    except errors.FanoutError as exc:
        return str(exc)
    return None


def _warn_of_rights(opened: transactions.Store) -> None:
    with contextlib.suppress(errors.FanoutError):  # Postgres is away: requests are answered with 503
        if opened.passes_by_policies():
            log.warning(
                "the API's login to Postgres bypasses row-level security. The API serves, and each request switches to a "
                "restricted role. Set api.database_url to a login with the roles fanout_api and fanout_operator only "
                "(docs/operations.md)"
            )


def _hide_versions() -> None:
    """Keep aiohttp from naming its version in the header `Server`.

    app.py removes the header from the answers that it makes. aiohttp itself answers requests that are not valid HTTP, and has
    no setting for the header.
    """
    vars(web_response)["SERVER_SOFTWARE"] = "fanout"


def _quiet() -> logging.Logger:
    """Return a logger that drops aiohttp's own log lines. aiohttp would quote malformed requests at level ERROR."""
    server_log = logging.getLogger(f"{__name__}.http")
    server_log.setLevel(logging.CRITICAL)
    return server_log
