"""Limit the requests to one host, summed over the endpoints of all customers. The reasons are in docs/adr/0034.

Endpoints of many customers may name one host, and the host may belong to none of them. An endpoint's own limits do not protect
that host: one event would go to all of these endpoints at once. Each worker has an equal share of the limits.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
import itertools
import logging
import math
from collections.abc import Callable
from urllib import parse

import cachetools

from delivery.registry_model import EndpointId
from delivery.webhooks.scheduling import limits

log = logging.getLogger(__name__)

MAX_HOSTS = 20_000
"""Most hosts whose state is kept. The least recently used are forgotten."""
MAX_PLACES = 20_000
"""Most endpoints whose place in the line of their host is kept while none of their leases waits. The least recently used places
are forgotten. The next wait of an endpoint without a kept place begins at the end of the line."""
WARN_EVERY_S = 600.0
"""Shortest time, in seconds, between two warnings of one worker about one host."""


class Places:
    """Number the places in the lines of all hosts of a worker, and keep the place of each endpoint that left a line unserved.

    A lower number is nearer to the front of the line.
    """

    def __init__(self, *, max_places: int = MAX_PLACES) -> None:
        self._numbers = itertools.count()
        self._kept: cachetools.LRUCache[EndpointId, int] = cachetools.LRUCache(maxsize=max_places)

    def last(self) -> int:
        """Return a new place at the end of every line."""
        return next(self._numbers)

    def of(self, endpoint_id: EndpointId) -> int:
        """Return the endpoint's kept place. If none is kept, keep and return a new place at the end of every line."""
        if endpoint_id not in self._kept:
            self._kept[endpoint_id] = self.last()
        return self._kept[endpoint_id]

    def forget(self, endpoint_id: EndpointId) -> None:
        """Forget the endpoint's place, because a request to the endpoint begins."""
        self._kept.pop(endpoint_id, None)


class Host:
    """Limit the requests from this worker to one host, and wake the queues that wait for the host. Not thread-safe.

    A lease of the retry lane waits in the same line as the queues of the fast lanes (`wait_for_room`).

    A reservation is capacity for one request, which a woken queue may use. `clock` is monotonic, in seconds. `count_wait` is
    called once for each request that waits for the limits. One timer serves all waiting queues. It wakes as many queues as
    `max_in_flight` and the rate permit, in their order.
    """

    def __init__(
        self,
        name: str,
        max_in_flight: int,
        per_second: float,
        clock: Callable[[], float],
        *,
        count_wait: Callable[[], None] = lambda: None,
        places: Places | None = None,
    ) -> None:
        self._name = name
        self._max_in_flight = max_in_flight
        self._pace = limits.Pace(per_second)
        self._clock = clock
        self._count_wait = count_wait
        self._places = places or Places()
        self._in_flight = self._reserved = 0
        self._waiting: list[tuple[int, int, Callable[[], bool]]] = []
        """The line, a heap: place, a number that no other entry has, and the function to call."""
        self._timer: asyncio.TimerHandle | None = None
        self._wake_at = 0.0
        """When the timer ends, in seconds of `clock`."""
        self._warn_at = float("-inf")

    def set_bounds(self, max_in_flight: int, per_second: float) -> None:
        """Replace the limits. Requests in flight beyond the new limits continue."""
        self._max_in_flight = max_in_flight
        self._pace = limits.Pace(per_second)
        self.wake()

    @property
    def has_room(self) -> bool:
        """Return True if a request may begin now: the host has capacity, and no queue waits for capacity."""
        return not self._waiting and self._has_capacity(reserved=self._reserved)

    def use_reservation(self) -> bool:
        """End one reservation; return True if the host still has capacity. A queue calls this once for each reservation."""
        self._reserved -= 1
        return self._has_capacity()

    def _has_capacity(self, reserved: int = 0) -> bool:
        return self._in_flight + reserved < self._max_in_flight and not self._pace.wait_s(self._clock(), ahead=reserved)

    def enter(self) -> None:
        """Count a request that begins now."""
        self._in_flight += 1
        self._pace.consume(self._clock())
        self.wake()

    def leave(self) -> None:
        """Count a request that has ended."""
        self._in_flight -= 1
        self.wake()

    def call_when_free(self, resume: Callable[[], bool], *, is_again: bool = False) -> None:
        """Count a wait for the limits, and call `resume` once when the host has capacity for a request.

        `resume` returns True if the caller still wants to send. The host then reserves the capacity for one request, and the
        caller must call `use_reservation` once. `resume` returns False if the caller needs no capacity any more. If `is_again`
        is True, an earlier call has counted the wait of this request already.
        """
        if not is_again:
            self.count_delay()
        self._join(self._places.last(), resume)

    async def wait_for_room(self, endpoint_id: EndpointId) -> bool:
        """Wait in the line of the waiting queues until the host has capacity; return True if the caller may send a request now.

        Return False if another request took the capacity. After True, the caller must begin its request before its next
        `await`. No reservation is left behind, whether the caller sends, does not send, or is cancelled. The wait is not
        counted (`count_delay`).

        The endpoint keeps its place for later calls, until `serve`. Without kept places, each lease would begin at the end of
        the line. If the line takes longer than a lease, each lease would then serve the same endpoints.
        """
        woken = asyncio.get_running_loop().create_future()

        def resume() -> bool:
            if woken.done():  # the caller was cancelled
                return False
            woken.set_result(None)
            return True

        self._join(self._places.of(endpoint_id), resume)
        has_capacity = False
        try:
            await woken
        finally:
            if woken.done() and not woken.cancelled():
                has_capacity = self.use_reservation()
                self.wake()
        return has_capacity

    def serve(self, endpoint_id: EndpointId) -> None:
        """Count a request of a lease that begins now. The endpoint's next wait begins at the end of the line."""
        self._places.forget(endpoint_id)
        self.enter()

    def _join(self, place: int, resume: Callable[[], bool]) -> None:
        heapq.heappush(self._waiting, (place, self._places.last(), resume))
        self.wake()

    def wake(self) -> None:
        """Start the timer that wakes waiting queues as soon as the host's rate allows a request, besides the reservations.

        1. No queue waits, or requests in flight and reservations use up the host's `max_in_flight`: start no timer.
        2. A timer runs and ends no later than the new timer would: keep it.
        3. Otherwise start a timer, in place of a timer that ends later.

        A queue that was woken and did not use its reservation calls this method too, so that the next queue gets the capacity.
        """
        if not self._waiting or self._in_flight + self._reserved >= self._max_in_flight:
            return
        now = self._clock()
        wait_s = self._pace.wait_s(now, ahead=self._reserved)
        if self._timer is not None:
            if self._wake_at <= now + wait_s:
                return
            self._timer.cancel()
        self._wake_at = now + wait_s
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._call_waiting)

    def _call_waiting(self) -> None:
        self._timer = None
        while self._waiting and self._has_capacity(reserved=self._reserved):
            _, _, resume = heapq.heappop(self._waiting)
            self._reserved += resume()
        self.wake()

    def count_delay(self) -> None:
        """Count a wait for the limits, and warn the operator about this host at most once in WARN_EVERY_S."""
        self._count_wait()
        if self._clock() >= self._warn_at:
            self._warn_at = self._clock() + WARN_EVERY_S
            log.warning(
                "requests to host %s wait for its limits: this worker may send %d at once and %g a second, and sends the "
                "others later. If the host can take more, name it in delivery.unlimited_hosts, or raise "
                "delivery.max_connections_per_host and delivery.max_per_second_per_host for all hosts",
                self._name, self._max_in_flight, self._pace.per_second,
            )  # fmt: skip


class Hosts:
    """The hosts with limits to which a worker process sends, with their requests in flight. All lanes of the worker share them.

    Beyond `max_hosts`, the least recently used host is forgotten.
    """

    def __init__(self, bounds: limits.Limits, clock: Callable[[], float], *, max_hosts: int = MAX_HOSTS) -> None:
        self._bounds = bounds
        self._clock = clock
        self._hosts: cachetools.LRUCache[str, Host] = cachetools.LRUCache(maxsize=max_hosts)
        self._places = Places()
        self._delayed = 0
        """Number of waits for the limits of all hosts since the last `drain_delayed`. Waits for forgotten hosts count too."""

    def host_of(self, url: str) -> Host | None:
        """Return the host of an endpoint's URL, created on first use. Return None if the host has no limits."""
        if not self._bounds.max_per_host:
            return None
        name = host_name(url)
        if self._bounds.is_unlimited(name):
            return None
        known = self._hosts.get(name)
        if known is None:
            known = self._hosts[name] = Host(
                name,
                self._bounds.in_flight_to_host(),
                self._bounds.rate_to_host(),
                self._clock,
                count_wait=self._count_wait,
                places=self._places,
            )
        return known

    def set_bounds(self, bounds: limits.Limits) -> None:
        """Replace the limits of all hosts by this worker's share of `bounds`."""
        self._bounds = bounds
        for host in self._hosts.values():
            host.set_bounds(bounds.in_flight_to_host(), bounds.rate_to_host())

    def soft_connection_limit(self, url: str) -> float:
        """Return the soft limit of this worker's connections to the host of a URL; return infinity if the host has no limits.

        At the limit, the transport closes an idle connection to the host before it opens another.
        """
        return math.inf if self.host_of(url) is None else self._bounds.in_flight_to_host()

    def drain_delayed(self) -> int:
        """Return the number of waits for the limits of all hosts (`Host.count_delay`) since the last call."""
        delayed, self._delayed = self._delayed, 0
        return delayed

    def _count_wait(self) -> None:
        self._delayed += 1


@functools.lru_cache(maxsize=50_000)
def host_name(url: str) -> str:
    """Return the host of a URL, in lower case, without port and without dots at its end."""
    return (parse.urlsplit(url).hostname or "").rstrip(".")
