"""Post bytes and read a bounded answer, by driving aiohttp's connector and response parser directly.

Runs in the executors. Must not import pyspark or psycopg. This module and pool.py alone know aiohttp's inner interfaces, for
which it is pinned: `ClientSession.post` costs about four times the CPU (docs/adr/0003). TLS and parser stay aiohttp's.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import ssl
from collections.abc import Mapping
from typing import NamedTuple

import aiohttp
from aiohttp import http_exceptions, streams

from delivery import errors
from delivery.webhooks import guard, pool
from delivery.webhooks.target import Target

MAX_RESPONSE_BYTES = 16 * 1024
"""What is read of a response at most; with more to come the connection is closed instead of drained."""
SWITCHING_PROTOCOLS = 101

_LOCAL_ERRNO = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""We ran out of something: no sign about the endpoint."""


class Response(NamedTuple):
    """What an endpoint answered. A tuple, because it is made for each request, and fastest."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    """At most MAX_RESPONSE_BYTES of it, still in whatever encoding it came."""


class Transport:
    """Requests to all endpoints of one worker process. Made inside the event loop that uses it."""

    def __init__(self, address_guard: guard.Guard, *, max_connections: int = 0) -> None:
        self._loop = asyncio.get_running_loop()
        self._pool = pool.Pool(address_guard, max_connections or pool.default_max_connections())
        self._deadlines = _Deadlines(self._loop)

    async def post(self, target: Target, headers: bytes, body: bytes, timeout_s: float) -> Response:
        """Send one request and return its response; raise a class of AttemptFailed when none came.

        `headers` are the delivery's own header lines, each ended by CRLF. `timeout_s` bounds the whole exchange, because a
        bound on single reads never fires on an endpoint that drips. Redirects are not followed.
        """
        deadline = self._loop.time() + timeout_s
        request = b"%s%scontent-length: %d\r\n\r\n%s" % (target.head, headers, len(body), body)
        connection = self._pool.take(target.origin)
        try:
            if connection is not None:
                try:
                    return await self._exchange(connection, request, deadline)
                except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                    # Servers close what is idle at any time, so also while a request is on its way: no sign about the
                    # endpoint, unless it had begun to answer.
                    if connection.has_spoken:
                        raise
            connection = await self._pool.open(target.origin, deadline)
            return await self._exchange(connection, request, deadline)
        except (errors.AttemptFailed, aiohttp.ClientError, http_exceptions.HttpProcessingError, OSError) as exc:
            raise translated(exc) from exc

    async def close(self) -> None:
        """Close all connections."""
        self._deadlines.stop()
        await self._pool.close_all()

    async def _exchange(self, connection: pool.Connection, request: bytes, deadline: float) -> Response:
        """Write a request, wait for its final response, and give the connection back."""
        try:
            if not connection.is_reused:  # the parser goes on from response to response
                connection.set_response_params(read_until_eof=True, auto_decompress=False, read_bufsize=MAX_RESPONSE_BYTES)
            self._deadlines.begin(connection, deadline)
            try:
                if connection.transport is not None:  # else it closed already, and reading says why
                    connection.transport.write(request)
                message, payload = await connection.read()
                while 100 <= message.code < 200 and message.code != SWITCHING_PROTOCOLS:
                    message, payload = await connection.read()  # interim answers come first (RFC 9110, section 15.2)
            finally:
                self._deadlines.end(connection)
            if payload.is_eof() and payload.total_bytes <= MAX_RESPONSE_BYTES:  # all here: the usual case, worth no timer
                body = payload.read_nowait()
            else:
                body = await _read(payload, deadline)
        except BaseException:
            self._pool.close(connection)
            raise
        self._pool.release(connection)
        return Response(status=message.code, headers=message.headers, body=body)


class _Deadlines:
    """Interrupt requests that get no answer in time. One timer for all: one for each would be a tenth of a request's cost."""

    TICK_S = 0.02
    """By so much a request may overrun its time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._running: dict[pool.Connection, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, connection: pool.Connection, deadline: float) -> None:
        self._running[connection] = deadline
        if self._timer is None:
            self._timer = self._loop.call_later(self.TICK_S, self._tick)

    def end(self, connection: pool.Connection) -> None:
        del self._running[connection]

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        now = self._loop.time()
        for connection, deadline in self._running.items():
            if deadline <= now:
                connection.set_exception(errors.AttemptTimedOut(f"the attempt's time ran out {_phase(connection)}"))
        self._timer = self._loop.call_later(self.TICK_S, self._tick) if self._running else None


def _phase(connection: pool.Connection) -> str:
    if connection.has_spoken:
        return "inside the head of the answer"
    if connection.transport is not None and connection.transport.get_write_buffer_size():
        return "while sending the request"
    return "while waiting for the answer"


async def _read(payload: streams.StreamReader, deadline: float) -> bytes:
    """Return the body, or as much of it as comes within the bounds.

    The status has come by now, and with it the endpoint's answer: a body that drips or breaks off does not take it back.
    """
    received = bytearray()
    with contextlib.suppress(TimeoutError, aiohttp.ClientError):
        async with asyncio.timeout_at(deadline):
            while len(received) < MAX_RESPONSE_BYTES and not payload.at_eof():
                received += await payload.read(MAX_RESPONSE_BYTES - len(received))
    return bytes(received)


def translated(exc: Exception) -> errors.AttemptFailed:
    """Return our class for a foreign error; the one place that knows aiohttp's. From the narrowest class to the widest."""
    if isinstance(exc, errors.AttemptFailed):
        return exc
    if isinstance(exc, aiohttp.ClientConnectorError) and isinstance(exc.os_error, guard.BlockedSocket):
        return errors.AddressBlocked("the address is not allowed")
    if isinstance(exc, OSError) and exc.errno in _LOCAL_ERRNO:
        return errors.LocalFailure(os.strerror(exc.errno or 0))
    if isinstance(exc, aiohttp.ClientConnectorDNSError):
        return errors.DnsFailed("the host name did not resolve")
    if isinstance(exc, aiohttp.ClientSSLError) or isinstance(exc.__cause__, ssl.SSLError):
        return errors.TlsFailed(str(exc.__cause__ or "no TLS connection")[:200])
    if isinstance(exc, aiohttp.ClientConnectorError):
        return errors.ConnectFailed(os.strerror(exc.errno) if exc.errno else "no connection")
    if isinstance(exc, http_exceptions.HttpProcessingError):
        return errors.ResponseInvalid("the answer is not HTTP, or its head is beyond the bounds")
    return errors.ConnectionLost("the connection broke before the answer")
