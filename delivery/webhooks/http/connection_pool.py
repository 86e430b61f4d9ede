"""Keep a bounded number of connections open between requests. Only requests with equal origins share a connection.

An origin is a scheme, host and port with a customer and a TLS context. Runs in the event loop of a worker, of the API or of a
command. Only this module uses aiohttp's internal interfaces, because of which aiohttp is pinned (docs/adr/0003). aiohttp's
connector looks up names, connects and sets up TLS. The limit of aiohttp's own pool leaves out idle connections. With 10,000
endpoints that pool would need too many file descriptors.
"""

from __future__ import annotations

import asyncio
import collections
import contextvars
import functools
import math
import resource
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import yarl
from aiohttp import client_reqrep, connector
from aiohttp.helpers import TimerNoop

from delivery import errors
from delivery.webhooks.http import dns, exchange_deadlines, guard, http_connection
from delivery.webhooks.http.origin import Origin
from delivery.webhooks.scheduling import host_limits

MAX_AGE_S = 300.0
"""Seconds. A connection that was opened longer ago is not kept for a further request. A connection in steady use would
otherwise never follow a changed address of its name, and never verify a renewed or expired certificate. The age has no jitter:
connections are opened at different times, as requests need them."""
MAX_CACHED_NAMES = 20_000
"""Most host names whose addresses are cached. The platform is built for 10,000 endpoints and more."""
_MAX_CONNECTIONS = 16_384
"""Largest default of the number of open connections."""

_NO_TIMEOUT = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None)
_NO_TRACES: list[Any] = []
_NO_FREE_CONNECTION = "the platform had no free connection within the attempt's time. The endpoint is not at fault"
_NO_FREE_LOOKUP = (
    "the platform had no free thread to look up the host name within the attempt's time. The endpoint is not at fault"
)
_LOOKING_UP = "while looking up the name"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolBounds:
    """The bounds of a pool, besides its number of connections."""

    keepalive_s: float = 30.0
    """Seconds after which an idle connection is closed."""
    dns_ttl_s: int = dns.DNS_TTL_S
    """Seconds for which the addresses of a name are cached."""
    max_lookups: int = dns.MAX_LOOKUPS
    """Maximum look-ups of names at the same time."""


BOUNDS = PoolBounds()
"""The bounds of every pool."""


def default_max_connections() -> int:
    """Return half of the number of files that this process may open, at most _MAX_CONNECTIONS.

    The other half is for Spark, DNS look-ups, parallel connection attempts and closing connections.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else max(1, min(soft // 2, _MAX_CONNECTIONS))


@dataclass(slots=True, eq=False)
class _Opening:
    """The opening of a connection. `expire` ends it at a deadline (exchange_deadlines.Expiring)."""

    timeout: asyncio.Timeout
    is_lookup_waiting: Callable[[], bool]
    """Function that returns True while the look-up of the name waits for a thread of ours (`dns.Resolver.is_waiting`)."""
    step: str = ""
    """The current step, for the text of a failure. Empty: the opening waits until a connection comes free."""
    failure: errors.AttemptFailed | None = None
    """The reason for which the opening expired. None: it has not expired."""

    def phase(self) -> str:
        return self.step or "before a connection came free"

    def expire(self, failure: errors.AttemptFailed) -> None:
        if self.failure is None:
            self.failure = self._own_failure() or failure
            self.timeout.reschedule(asyncio.get_running_loop().time())

    def _own_failure(self) -> errors.LocalFailure | None:
        """Return a LocalFailure if the opening waits for room in the pool or for a thread of the resolver; None otherwise.

        These waits prove nothing about the endpoint. A look-up waits for a thread if DNS servers of other endpoints hang, also
        of other customers' endpoints.
        """
        if not self.step:
            return errors.LocalFailure(_NO_FREE_CONNECTION)
        if self.step == _LOOKING_UP and self.is_lookup_waiting():
            return errors.LocalFailure(_NO_FREE_LOOKUP)
        return None


_opening: contextvars.ContextVar[_Opening] = contextvars.ContextVar("opening")


class Connection(http_connection.HttpConnection):
    """An open connection of the pool, with its origin."""

    origin: Origin
    lease: connector.Connection
    """aiohttp's handle of the connection, which is closed with the connection."""
    opened_at: float
    """When the connection was opened, by the event loop's clock."""
    idle_since: float
    """When the connection was last released, by the event loop's clock."""
    on_closed: Callable[[Connection], None] | None = None
    """Function that is called once, when the file descriptor is released. None until the pool counts the connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        # Called when TCP is connected and before the TLS handshake.
        _opening.get().step = "in the TLS handshake"

    def phase(self) -> str:
        """Return what the exchange waits for now, for the text of a failure, such as "while sending the request"."""
        if self.has_received:
            return "inside the head of the answer"
        if self.is_sending():
            return "while sending the request"
        return "while waiting for the answer"

    def expire(self, failure: errors.AttemptFailed) -> None:
        """End the current exchange with `failure`, or with the response so far if the response's head has arrived."""
        self.end(failure)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.on_closed is not None:
            self.on_closed(self)


class _Connector(aiohttp.TCPConnector):
    def __init__(self, address_guard: guard.Guard, names: dns.Resolver, dns_ttl_s: int) -> None:
        def make_socket(addr_info: Sequence[Any]) -> socket.socket:
            _opening.get().step = "while connecting"
            return address_guard.socket_factory(addr_info)

        # The guard checks when the socket is created, because no resolver is asked for literal addresses. The connector has no
        # limits of its own: the dispatcher limits requests, and the pool limits connections.
        super().__init__(
            limit=0,
            resolver=names,
            ttl_dns_cache=dns_ttl_s,
            dns_cache_max_size=MAX_CACHED_NAMES,
            socket_factory=make_socket,
        )
        self._factory = functools.partial(Connection, self._loop)  # type: ignore[arg-type, assignment]  # names its own class


class ConnectionPool:
    """All connections of one Transport. Created inside the event loop that uses it.

    Guarantee: never more than `max_connections` are open, idle ones included. An idle connection is closed after `keepalive_s`.
    If the pool is full when a request needs a new connection, the connection that has been idle longest is closed earlier. A
    connection that is older than MAX_AGE_S is closed after its request.
    """

    def __init__(
        self,
        address_guard: guard.Guard,
        max_connections: int,
        deadlines: exchange_deadlines.Deadlines,
        soft_connection_limit: Callable[[str], float] = lambda _: math.inf,
        *,
        bounds: PoolBounds = BOUNDS,
    ) -> None:
        """`soft_connection_limit` gets a URL, and returns a number of open connections to the URL's host.

        If a host has at least this many open connections, the pool closes an idle connection to the host before it opens
        another. If no connection to the host is idle, the pool closes none, and opens the new connection all the same.
        """
        self._soft_limit = soft_connection_limit
        self._open_by_host: collections.Counter[str] = collections.Counter()
        """By host, the number of open connections, idle ones included."""
        self._idle_by_host: dict[str, collections.OrderedDict[Connection, None]] = {}
        """By host, the idle connections, longest idle first."""
        self._deadlines = deadlines
        self._loop = asyncio.get_running_loop()
        self._keepalive_s = bounds.keepalive_s
        self._names = dns.Resolver(address_guard, max_lookups=bounds.max_lookups)
        self._connector = _Connector(address_guard, self._names, bounds.dns_ttl_s)
        self._slots = asyncio.Semaphore(max_connections)
        self._waiting = 0
        self._idle: dict[Origin, list[Connection]] = {}
        self._by_age: collections.OrderedDict[Connection, None] = collections.OrderedDict()
        """All idle connections, longest idle first."""
        self._expiry: asyncio.TimerHandle | None = None

    def acquire(self, origin: Origin) -> Connection | None:
        """Take an idle connection to `origin` from the pool and return it. None: none is idle, so the caller calls `open`."""
        while idle := self._idle.get(origin):
            connection = self._remove_idle(idle, -1)
            if connection.is_connected():
                return connection
            self.close(connection)
        return None

    async def open(self, origin: Origin, deadline: exchange_deadlines.Deadline) -> Connection:
        """Wait until the pool may open one more connection, open a connection to `origin`, and return it.

        After use, the caller must call `release` or `close`. Raise AttemptFailed at `deadline`, or OSError or a ClientError of
        aiohttp if the connection fails.
        """
        opening = _Opening(asyncio.timeout(None), functools.partial(self._is_lookup_waiting, origin))
        _opening.set(opening)
        try:
            async with opening.timeout:
                self._deadlines.begin(opening, deadline)
                try:
                    lease = await self._connected(origin, opening)
                finally:
                    self._deadlines.end(opening)
        except TimeoutError:
            assert opening.failure is not None, "only `expire` sets a time"  # noqa: S101
            raise opening.failure from None
        connection = lease.protocol
        assert isinstance(connection, Connection)  # noqa: S101  # by the connector's factory
        connection.origin, connection.lease, connection.opened_at = origin, lease, self._loop.time()
        if connection.transport is None:  # the other side has closed it already
            self._slots.release()
        else:
            connection.on_closed = self._closed
            self._open_by_host[host_limits.host_name(origin.url)] += 1
        return connection

    async def _connected(self, origin: Origin, opening: _Opening) -> connector.Connection:
        await self._acquire_slot()
        self._make_room_at_host(origin)
        opening.step = _LOOKING_UP
        try:
            return await self._connector.connect(self._request(origin), _NO_TRACES, _NO_TIMEOUT)
        except BaseException:
            self._slots.release()
            raise

    def release(self, connection: Connection) -> None:
        """Keep `connection` idle for the next request to its origin.

        Close it instead if it cannot be reused, or if it is older than MAX_AGE_S. Close it also if any request waits to open a
        connection, because the pool's bound counts idle connections too.
        """
        now = self._loop.time()
        if connection.should_close or self._waiting or now - connection.opened_at > MAX_AGE_S:
            self.close(connection)
            return
        connection.idle_since = now
        self._idle.setdefault(connection.origin, []).append(connection)
        self._by_age[connection] = None
        self._idle_by_host.setdefault(host_limits.host_name(connection.origin.url), collections.OrderedDict())[connection] = (
            None
        )
        if self._expiry is None:
            self._expiry = self._loop.call_later(self._keepalive_s, self._expire)

    def close(self, connection: Connection) -> None:
        """Close a connection that is not idle in the pool."""
        connection.close()
        connection.lease.close()

    def _closed(self, connection: Connection) -> None:
        # The slot is not released earlier: an aborted connection keeps its file descriptor until the loop's next iteration. A
        # burst of new connections in place of old ones would need the file descriptors of both.
        self._slots.release()
        host = host_limits.host_name(connection.origin.url)
        self._open_by_host[host] -= 1
        if not self._open_by_host[host]:
            del self._open_by_host[host]
        if connection in self._by_age:  # closed by the other side while it was idle
            idle = self._idle[connection.origin]
            self._remove_idle(idle, idle.index(connection))
            connection.lease.close()  # otherwise aiohttp would keep the connection for ever

    async def close_all(self) -> None:
        """Close all connections, including those in use."""
        if self._expiry is not None:
            self._expiry.cancel()
        while self._by_age:
            self._close_oldest()
        await self._connector.close()
        await self._names.close()

    async def _acquire_slot(self) -> None:
        if self._slots.locked() and self._by_age:
            self._close_oldest()
        self._waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self._waiting -= 1

    def _make_room_at_host(self, origin: Origin) -> None:
        """Close an idle connection to the host of `origin` if the host has `soft_connection_limit` open connections or more.

        The idle connection may be another customer's, or to another port of the host.
        """
        host = host_limits.host_name(origin.url)
        if self._open_by_host[host] >= self._soft_limit(origin.url) and (idle := self._idle_by_host.get(host)):
            oldest = next(iter(idle))
            self.close(self._remove_idle(self._idle[oldest.origin], 0))

    def _close_oldest(self) -> None:
        origin = next(iter(self._by_age)).origin
        self.close(self._remove_idle(self._idle[origin], 0))  # of an origin's idle connections, the first is the oldest

    def _remove_idle(self, idle: list[Connection], position: int) -> Connection:
        connection = idle.pop(position)
        del self._by_age[connection]
        if not idle:
            del self._idle[connection.origin]
        host = host_limits.host_name(connection.origin.url)
        del self._idle_by_host[host][connection]
        if not self._idle_by_host[host]:
            del self._idle_by_host[host]
        return connection

    def _expire(self) -> None:
        now = self._loop.time()
        while self._by_age and next(iter(self._by_age)).idle_since <= now - self._keepalive_s:
            self._close_oldest()
        self._expiry = None
        if self._by_age:
            self._expiry = self._loop.call_at(next(iter(self._by_age)).idle_since + self._keepalive_s, self._expire)

    def _is_lookup_waiting(self, origin: Origin) -> bool:
        url = yarl.URL(origin.url)
        return self._names.is_waiting(url.raw_host or "", url.port or 0)

    def _request(self, origin: Origin) -> client_reqrep.ClientRequest:
        return client_reqrep.ClientRequest(
            "POST", yarl.URL(origin.url), loop=self._loop, timer=TimerNoop(), ssl=origin.tls or True
        )
