"""Post bytes and read a bounded answer, by driving aiohttp's connector and response parser directly.

Runs in the executors. Must not import pyspark or psycopg. This is the only module that knows aiohttp's inner interfaces,
which is why aiohttp is pinned: `ClientSession.post` costs about four times the CPU (docs/adr/0003). Pool, TLS, DNS and parser
stay aiohttp's.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import cachetools
import yarl
from aiohttp import client_reqrep, connector, http_exceptions, http_parser, streams
from aiohttp.helpers import TimerNoop

from delivery import errors
from delivery.webhooks import guard
from delivery.webhooks.target import Target

MAX_RESPONSE_BYTES = 16 * 1024
"""What is read of a response at most; with more to come the connection is closed instead of drained."""
KEEPALIVE_S = 30.0
DNS_TTL_S = 30
SWITCHING_PROTOCOLS = 101
MAX_ORIGINS = 20_000
"""Origins whose connection request is kept ready; the mission names 10,000 endpoints and more."""

_LOCAL_ERRNO = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""We ran out of something: no sign about the endpoint."""
_NO_TIMEOUT = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None)
_NO_TRACES: list[Any] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """What an endpoint answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    """At most MAX_RESPONSE_BYTES of it, still in whatever encoding it came."""


class Transport:
    """Connections to all endpoints of one worker process. Made inside the event loop that uses it."""

    def __init__(self, address_guard: guard.Guard) -> None:
        # The guard stands where the socket is made: a resolver would not be asked for literal addresses.
        # The connector sets no limits of its own: the dispatcher decides who may send, and how much at once.
        self._connector = aiohttp.TCPConnector(
            limit=0,
            limit_per_host=0,
            keepalive_timeout=KEEPALIVE_S,
            ttl_dns_cache=DNS_TTL_S,
            socket_factory=address_guard.socket_factory,
        )
        self._session = aiohttp.ClientSession(connector=self._connector, trust_env=False)
        self._requests: cachetools.LRUCache[yarl.URL, client_reqrep.ClientRequest] = cachetools.LRUCache(maxsize=MAX_ORIGINS)

    async def post(self, target: Target, headers: bytes, body: bytes, timeout_s: float) -> Response:
        """Send one request and return its response; raise a class of AttemptFailed when none came.

        `headers` are the delivery's own header lines, each ended by CRLF. `timeout_s` bounds the whole exchange, because a
        bound on single reads never fires on an endpoint that drips. Redirects are not followed.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                connection = await self._connector.connect(self._request(target.url), _NO_TRACES, _NO_TIMEOUT)
                try:
                    message, payload = await _exchange(connection, target.head + headers, body)
                except BaseException:
                    connection.close()
                    raise
        except (errors.AttemptFailed, aiohttp.ClientError, http_exceptions.HttpProcessingError, OSError) as exc:
            raise translated(exc) from exc
        received = await _read(payload, deadline)
        if payload.at_eof():
            connection.release()
        else:
            connection.close()
        return Response(status=message.code, headers=message.headers, body=received)

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    def _request(self, url: yarl.URL) -> client_reqrep.ClientRequest:
        origin = url.origin()
        request = self._requests.get(origin)
        if request is None:
            request = self._requests[origin] = client_reqrep.ClientRequest(
                "POST", origin, session=self._session, loop=asyncio.get_running_loop(), timer=TimerNoop(), ssl=True
            )
        return request


async def _exchange(
    connection: connector.Connection, head: bytes, body: bytes
) -> tuple[http_parser.RawResponseMessage, streams.StreamReader]:
    """Write a request and wait for the head of its final response."""
    protocol = connection.protocol
    if protocol is None or protocol.transport is None:
        raise errors.ConnectionLost("the connection closed before the request")
    protocol.set_response_params(read_until_eof=True, auto_decompress=False, read_bufsize=MAX_RESPONSE_BYTES)
    protocol.transport.write(b"%scontent-length: %d\r\n\r\n%s" % (head, len(body), body))
    message, payload = await protocol.read()
    while 100 <= message.code < 200 and message.code != SWITCHING_PROTOCOLS:
        message, payload = await protocol.read()  # interim answers precede the final one (RFC 9110, section 15.2)
    return message, payload


async def _read(payload: streams.StreamReader, deadline: float) -> bytes:
    """Return the body, or as much of it as comes within the bounds.

    The status has come by now, and with it the endpoint's answer: a body that drips or breaks off does not take it back.
    """
    received = bytearray()
    with contextlib.suppress(TimeoutError, aiohttp.ClientError):
        while len(received) < MAX_RESPONSE_BYTES and not payload.at_eof():
            if payload.total_bytes > len(received):  # already here: the usual case, and worth no timer
                received += payload.read_nowait(MAX_RESPONSE_BYTES - len(received))
                continue
            async with asyncio.timeout_at(deadline):
                received += await payload.read(MAX_RESPONSE_BYTES - len(received))
    return bytes(received)


def translated(exc: Exception) -> errors.AttemptFailed:
    """Return our class for a foreign error; the one place that knows aiohttp's. From the narrowest class to the widest."""
    if isinstance(exc, errors.AttemptFailed):
        return exc
    if isinstance(exc, TimeoutError) and not isinstance(exc, aiohttp.ClientConnectorError):
        return errors.AttemptTimedOut("no answer within the attempt's time")
    if isinstance(exc, aiohttp.ClientConnectorError) and isinstance(exc.os_error, guard.BlockedSocket):
        return errors.AddressBlocked("the address is not allowed")
    if isinstance(exc, OSError) and exc.errno in _LOCAL_ERRNO:
        return errors.LocalFailure(os.strerror(exc.errno or 0))
    if isinstance(exc, aiohttp.ClientConnectorDNSError):
        return errors.DnsFailed("the host name did not resolve")
    if isinstance(exc, aiohttp.ClientSSLError):
        return errors.TlsFailed(str(exc.__cause__ or "no TLS connection")[:200])
    if isinstance(exc, aiohttp.ClientConnectorError):
        return errors.ConnectFailed(os.strerror(exc.errno) if exc.errno else "no connection")
    if isinstance(exc, http_exceptions.HttpProcessingError):
        return errors.ResponseInvalid("the answer is not HTTP, or its head is beyond the bounds")
    return errors.ConnectionLost("the connection broke before the answer")
