"""Send requests to endpoints over connections that are used again. Bound the size of a response, and the wait for it.

Runs in the event loop of a worker, of the API or of a command. Failures are raised as classes of `delivery.errors`.
"""

from __future__ import annotations

import errno
import math
import os
import ssl
from collections.abc import Callable, Sequence
from typing import NamedTuple

import aiohttp

from delivery import errors
from delivery.webhooks.http import connection_pool, exchange_deadlines, guard
from delivery.webhooks.http.origin import Target
from delivery.webhooks.scheduling import endpoint_clock

_LOCAL_ERRNO = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""Errors by which the system says that this machine lacks file descriptors, memory or ports. These errors prove nothing about
the endpoint."""

_REQUEST_TIMEOUT = 408
"""Status with which some servers end an idle connection."""
_NO_IPV6 = "the platform could not connect to an IPv6 address: it may have no IPv6 here"
_NO_ADDRESS = "the host name leads to no address that is allowed"


class Response(NamedTuple):
    """The response to a request. A named tuple, the fastest type to create, because each request creates a Response."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes
    """The beginning of the body, at most MAX_RESPONSE_BYTES (http_connection.py), still in its content encoding."""
    is_last: bool = False
    """True if the connection can take no request after this response, because the server closes it or for another reason."""


class Transport:
    """Send requests to endpoints over one pool of connections. Created inside the event loop that uses it."""

    def __init__(
        self,
        address_guard: guard.Guard,
        *,
        max_connections: int = 0,
        endpoint_time: Callable[[], float] = endpoint_clock.loop_time,
        max_extension_s: float = exchange_deadlines.MAX_EXTENSION_S,
        soft_connection_limit: Callable[[str], float] = lambda _: math.inf,
        bounds: connection_pool.PoolBounds = connection_pool.BOUNDS,
    ) -> None:
        """`endpoint_time` returns the time, in seconds, by the clock that measures timeouts.

        A worker passes its endpoint clock, which slows down while the process waits for CPU or memory. The default, the event
        loop's clock, does not. Waits for CPU or memory add at most `max_extension_s` seconds to a timeout. `max_connections` 0:
        half of the files that the process may open, at most 16,384. `soft_connection_limit` and `bounds` are passed to
        ConnectionPool.
        """
        self._deadlines = exchange_deadlines.Deadlines(endpoint_time, max_extension_s)
        self._pool = connection_pool.ConnectionPool(
            address_guard,
            max_connections or connection_pool.default_max_connections(),
            self._deadlines,
            soft_connection_limit,
            bounds=bounds,
        )

    async def post(self, target: Target, headers: bytes, body: bytes, timeout_s: float) -> Response:
        """Send one request and return its response; raise a subclass of AttemptFailed if no response comes.

        If a response breaks off after its head, the part that came is returned.

        `target.head` has the method: POST for deliveries and tokens, OPTIONS for handshakes. `headers` are the header lines of
        this request alone, each ended by CRLF. `timeout_s` bounds the time from the wait for a connection to the response, by
        `endpoint_time`. A timeout per read would never expire on an endpoint that sends byte by byte. Redirects are not
        followed. The request is sent again on a new connection in two cases. (1) A reused connection breaks before any byte of
        the response. (2) A reused connection returns a 408, and can take no further request.
        """
        deadline = self._deadlines.within(timeout_s)
        request = b"%s%scontent-length: %d\r\n\r\n%s" % (target.head, headers, len(body), body)
        connection = self._pool.acquire(target.origin)
        try:
            if connection is not None:
                # Servers close idle connections at any time, also while a request is on its way. This proves nothing about the
                # endpoint, unless its response had begun. Some servers write a 408 before they close (RFC 9110, section
                # 15.5.9). That 408 is no response to this request.
                try:
                    response = await self._exchange(connection, request, deadline)
                    if response.status != _REQUEST_TIMEOUT or not response.is_last:
                        return response
                except (errors.ConnectionLost, OSError):
                    if connection.has_received:
                        raise
            connection = await self._pool.open(target.origin, deadline)
            return await self._exchange(connection, request, deadline)
        except (errors.AttemptFailed, aiohttp.ClientError, OSError) as exc:
            raise translated(exc) from exc

    async def close(self) -> None:
        """Close all connections, including those in use."""
        self._deadlines.stop()
        await self._pool.close_all()

    async def _exchange(
        self, connection: connection_pool.Connection, request: bytes, deadline: exchange_deadlines.Deadline
    ) -> Response:
        """Write a request on a connection, and return the final response. Release the connection; after a failure, close it."""
        self._deadlines.begin(connection, deadline)
        try:
            await connection.send(request)
        except BaseException:
            self._pool.close(connection)
            raise
        finally:
            self._deadlines.end(connection)
        response = Response(connection.status, connection.headers, connection.kept_body(), connection.should_close)
        self._pool.release(connection)
        return response


def translated(exc: Exception) -> errors.AttemptFailed:
    """Return the AttemptFailed for an error of aiohttp, TLS or the system. An AttemptFailed is returned unchanged."""
    if isinstance(exc, errors.AttemptFailed):
        return exc
    if isinstance(exc, aiohttp.ClientConnectorError) and isinstance(exc.os_error, guard.BlockedSocket):
        return errors.AddressBlocked(_NO_ADDRESS)
    if isinstance(exc, aiohttp.ClientConnectorError) and exc.errno == errno.EADDRNOTAVAIL and ":" in exc.host:
        # Linux returns this error for every IPv6 address if the machine has no IPv6 address. A LocalFailure would use up no
        # wait of the schedule, and never count against the endpoint. Only a URL with a literal address leads here, because
        # AI_ADDRCONFIG finds no IPv6 address of a name on such a machine.
        return errors.ConnectFailed(_NO_IPV6)
    if isinstance(exc, OSError) and exc.errno in _LOCAL_ERRNO:
        return errors.LocalFailure(os.strerror(exc.errno or 0))
    if isinstance(exc, aiohttp.ClientConnectorDNSError):
        return errors.DnsFailed(_NO_ADDRESS)
    if isinstance(exc, aiohttp.ClientSSLError | ssl.SSLError):
        return errors.TlsFailed(str(exc.__cause__ or exc or "no TLS connection")[:200])
    if isinstance(exc, aiohttp.ClientConnectorError):
        return errors.ConnectFailed(os.strerror(exc.errno) if exc.errno else "no connection")
    return errors.ConnectionLost("the connection broke before the answer")
