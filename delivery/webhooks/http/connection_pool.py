"""Keep connections open between requests: bounded as a whole, and never shared between TLS identities.

Runs in the executors, inside the worker's event loop. Must not import pyspark or psycopg. Alone knows aiohttp's inner
interfaces, for which it is pinned (docs/adr/0003). aiohttp's connector looks up names, connects and makes TLS. It could also
keep connections, but does not count idle ones in its limit, and 10,000 endpoints would take more file descriptors than there
are.
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

KEEPALIVE_S = 30.0
MAX_NAMES = 20_000
"""Names whose addresses are kept; the mission names 10,000 endpoints and more."""
_MAX_CONNECTIONS = 16_384

_NO_TIMEOUT = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None)
_NO_TRACES: list[Any] = []
_NONE_FREE = "no connection came free within the attempt's time"


def default_max_connections() -> int:
    """Return half of the file descriptors that this process may open.

    The other half is for everything else: Spark, look-ups, sockets tried beside each other, and those that are just closing.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else max(1, min(soft // 2, _MAX_CONNECTIONS))


@dataclass(slots=True, eq=False)
class _Opening:
    """A new connection that is being made, for its deadline."""

    timeout: asyncio.Timeout
    step: str = ""
    """How far it has come, for the text of a failure."""
    failure: errors.AttemptFailed | None = None

    def phase(self) -> str:
        return self.step or "before a connection came free"

    def expire(self, failure: errors.AttemptFailed) -> None:
        if self.failure is None:
            # That none of our own connections is free says nothing of the endpoint.
            self.failure = failure if self.step else errors.LocalFailure(_NONE_FREE)
            self.timeout.reschedule(asyncio.get_running_loop().time())


_opening: contextvars.ContextVar[_Opening] = contextvars.ContextVar("opening")


class Connection(http_connection.Connection):
    """An open connection, and where it leads."""

    origin: Origin
    lease: connector.Connection
    idle_since: float
    is_reused = False
    on_closed: Callable[[Connection], None] | None = None
    """Told once, when the file descriptor is given back."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        # Made when TCP is connected and before the TLS handshake.
        _opening.get().step = "in the TLS handshake"

    def phase(self) -> str:
        """Tell what an exchange is doing, for the text of a failure."""
        if self.has_spoken:
            return "inside the head of the answer"
        if self.transport is not None and self.transport.get_write_buffer_size():
            return "while sending the request"
        return "while waiting for the answer"

    def expire(self, failure: errors.AttemptFailed) -> None:
        """Wait no longer for the answer."""
        self.end(failure)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.on_closed is not None:
            self.on_closed(self)


class _Connector(aiohttp.TCPConnector):
    def __init__(self, address_guard: guard.Guard, names: dns.Resolver) -> None:
        def make_socket(addr_info: Sequence[Any]) -> socket.socket:
            _opening.get().step = "while connecting"
            return address_guard.socket_factory(addr_info)

        # The guard stands where the socket is made: a resolver would not be asked for literal addresses. No limits of its own:
        # the dispatcher decides who may send, the pool how many connections there are.
        super().__init__(
            limit=0,
            resolver=names,
            ttl_dns_cache=dns.DNS_TTL_S,
            dns_cache_max_size=MAX_NAMES,
            socket_factory=make_socket,
        )
        self._factory = functools.partial(Connection, self._loop)  # type: ignore[arg-type, assignment]  # names its own class


class Pool:
    """All connections of one worker process. Made inside the event loop that uses it.

    Guarantee: never more than `max_connections`, idle ones included. Idle ones are closed after KEEPALIVE_S, or sooner, the
    longest unused first, when another endpoint needs their place.
    """

    def __init__(
        self,
        address_guard: guard.Guard,
        max_connections: int,
        running: exchange_deadlines.Deadlines,
        most_to: Callable[[str], float] = lambda _: math.inf,
    ) -> None:
        """`most_to` says how many connections there may be to the host of a URL."""
        self._most_to = most_to
        self._open_to: collections.Counter[str] = collections.Counter()
        """By host, connections with the idle ones."""
        self._idle_to: dict[str, collections.OrderedDict[Connection, None]] = {}
        """By host, the idle ones."""
        self._deadlines = running
        self._loop = asyncio.get_running_loop()
        self._names = dns.Resolver()
        self._connector = _Connector(address_guard, self._names)
        self._places = asyncio.Semaphore(max_connections)
        self._waiting = 0
        self._idle: dict[Origin, list[Connection]] = {}
        self._by_age: collections.OrderedDict[Connection, None] = collections.OrderedDict()
        """The idle ones again, in the order in which they became idle."""
        self._expiry: asyncio.TimerHandle | None = None

    def take(self, origin: Origin) -> Connection | None:
        """Return an idle connection to `origin`, or None: then `open` one."""
        while idle := self._idle.get(origin):
            connection = self._withdraw(idle, -1)
            if connection.is_connected():
                connection.is_reused = True
                return connection
            self.close(connection)
        return None

    async def open(self, origin: Origin, deadline: exchange_deadlines.Deadline) -> Connection:
        """Return a new connection to `origin`; raise AttemptFailed, OSError or a ClientError of aiohttp."""
        opening = _Opening(asyncio.timeout(None))
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
        connection.origin, connection.lease = origin, lease
        if connection.transport is None:  # the other side was faster
            self._places.release()
        else:
            connection.on_closed = self._closed
            self._open_to[host_limits.name_of(origin.url)] += 1
        return connection

    async def _connected(self, origin: Origin, opening: _Opening) -> connector.Connection:
        await self._take_place()
        self._keep_bound_of(origin)
        opening.step = "while looking up the name"
        try:
            return await self._connector.connect(self._request(origin), _NO_TRACES, _NO_TIMEOUT)
        except BaseException:
            self._places.release()
            raise

    def release(self, connection: Connection) -> None:
        """Keep `connection` for the next request, unless it is spent or somebody waits for its place."""
        if connection.should_close or self._waiting:
            self.close(connection)
            return
        connection.idle_since = self._loop.time()
        self._idle.setdefault(connection.origin, []).append(connection)
        self._by_age[connection] = None
        self._idle_to.setdefault(host_limits.name_of(connection.origin.url), collections.OrderedDict())[connection] = None
        if self._expiry is None:
            self._expiry = self._loop.call_later(KEEPALIVE_S, self._expire)

    def close(self, connection: Connection) -> None:
        """Close a connection that was taken."""
        connection.close()
        connection.lease.close()

    def _closed(self, connection: Connection) -> None:
        # Not before: an aborted connection keeps its descriptor until the event loop's next turn, and a burst of new ones in
        # place of old ones would need both.
        self._places.release()
        host = host_limits.name_of(connection.origin.url)
        self._open_to[host] -= 1
        if not self._open_to[host]:
            del self._open_to[host]
        if connection in self._by_age:  # closed by the other side while it was idle
            idle = self._idle[connection.origin]
            self._withdraw(idle, idle.index(connection))
            connection.lease.close()  # or aiohttp would remember the connection for ever

    async def close_all(self) -> None:
        """Close all connections, those in use too."""
        if self._expiry is not None:
            self._expiry.cancel()
        while self._by_age:
            self._close_oldest()
        await self._connector.close()
        await self._names.close()

    async def _take_place(self) -> None:
        if self._places.locked() and self._by_age:
            self._close_oldest()
        self._waiting += 1
        try:
            await self._places.acquire()
        finally:
            self._waiting -= 1

    def _keep_bound_of(self, origin: Origin) -> None:
        """Make room for one more connection to a host: its idle ones may be another customer's, or of another port."""
        host = host_limits.name_of(origin.url)
        if self._open_to[host] >= self._most_to(origin.url) and (idle := self._idle_to.get(host)):
            oldest = next(iter(idle))
            self.close(self._withdraw(self._idle[oldest.origin], 0))

    def _close_oldest(self) -> None:
        origin = next(iter(self._by_age)).origin
        self.close(self._withdraw(self._idle[origin], 0))  # of one origin too, the first became idle first

    def _withdraw(self, idle: list[Connection], position: int) -> Connection:
        connection = idle.pop(position)
        del self._by_age[connection]
        if not idle:
            del self._idle[connection.origin]
        host = host_limits.name_of(connection.origin.url)
        del self._idle_to[host][connection]
        if not self._idle_to[host]:
            del self._idle_to[host]
        return connection

    def _expire(self) -> None:
        now = self._loop.time()
        while self._by_age and next(iter(self._by_age)).idle_since <= now - KEEPALIVE_S:
            self._close_oldest()
        self._expiry = None
        if self._by_age:
            self._expiry = self._loop.call_at(next(iter(self._by_age)).idle_since + KEEPALIVE_S, self._expire)

    def _request(self, origin: Origin) -> client_reqrep.ClientRequest:
        return client_reqrep.ClientRequest(
            "POST", yarl.URL(origin.url), loop=self._loop, timer=TimerNoop(), ssl=origin.tls or True
        )
