"""Bound what goes to one host, whoever's endpoints are there.

Runs in the executors, inside the worker's event loop. Must not import pyspark or psycopg. docs/adr/0034 has the reasons.

Endpoints of many customers may name one host, and it may belong to none of them. An endpoint's own bounds do not protect that
host: one event would go to all of these endpoints at once.
"""

from __future__ import annotations

import asyncio
import collections
import functools
import logging
import math
from collections.abc import Callable
from urllib import parse

import cachetools

from delivery.webhooks.scheduling import limits

log = logging.getLogger(__name__)

MAX_HOSTS = 20_000
"""Hosts whose pace is remembered, those that were asked last."""
ASK_AGAIN_S = 0.2
"""Seconds after which the retry lane asks again for room at a host. The fast lanes are called."""
WARNED_EVERY_S = 600.0
"""Seconds between two warnings of one host."""


class Host:
    """What is under way to one host from this worker, and who waits for it. Not safe between threads.

    `clock` is monotonic, in seconds. One timer serves all that wait: of a thousand endpoints one is called for each place.
    """

    def __init__(self, name: str, max_in_flight: int, per_second: float, clock: Callable[[], float]) -> None:
        self._name = name
        self._max_in_flight = max_in_flight
        self._pace = limits.Pace(per_second)
        self._clock = clock
        self._in_flight = self._called = 0
        self._waiting: collections.deque[Callable[[], bool]] = collections.deque()
        self._timer: asyncio.TimerHandle | None = None
        self._warn_at = float("-inf")
        self.waited = 0
        """How often a request has waited for this host's bounds."""

    def bound(self, max_in_flight: int, per_second: float) -> None:
        """Keep to other bounds from now on. What is under way beyond them ends as it would."""
        self._max_in_flight = max_in_flight
        self._pace = limits.Pace(per_second)
        self.wake()

    @property
    def has_room(self) -> bool:
        """Whether a request may begin now: there is a place, and nobody who waits comes first."""
        return not self._waiting and self._has_place(besides=self._called)

    def admits_called(self) -> bool:
        """Tell whether there is still the place for which somebody was called. To be asked once by each who was."""
        self._called -= 1
        return self._has_place()

    def _has_place(self, besides: int = 0) -> bool:
        return self._in_flight + besides < self._max_in_flight and not self._pace.wait_s(self._clock())

    def enter(self) -> None:
        """Count a request that begins now."""
        self._in_flight += 1
        self._pace.take(self._clock())
        self.wake()

    def leave(self) -> None:
        """Count out a request that has ended."""
        self._in_flight -= 1
        self.wake()

    def wait(self, resume: Callable[[], bool]) -> None:
        """Have `resume` called once when there is a place. It returns whether it will ask `admits_called`."""
        self.delayed()
        self._waiting.append(resume)
        self.wake()

    def wake(self) -> None:
        """See to it that the first who waits is called once there is a place. Also called when a place was not used."""
        if self._waiting and self._timer is None and self._in_flight + self._called < self._max_in_flight:
            wait_s = self._pace.wait_s(self._clock())
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._call_first)

    def _call_first(self) -> None:
        self._timer = None
        while self._waiting and self._has_place(besides=self._called):
            if self._waiting.popleft()():
                self._called += 1
        self.wake()

    def delayed(self) -> None:
        """Count a request that has to wait, and tell the operator of the host now and then."""
        self.waited += 1
        if self._clock() >= self._warn_at:
            self._warn_at = self._clock() + WARNED_EVERY_S
            log.warning(
                "requests to host %s wait: %d at once and %g a second from this worker are its bounds. If it is meant to get "
                "more, name it in delivery.unlimited_hosts",
                self._name, self._max_in_flight, self._pace.per_second,
            )  # fmt: skip


class Hosts:
    """The hosts that this worker process asks. Shared by its lanes."""

    def __init__(self, bounds: limits.Limits, clock: Callable[[], float]) -> None:
        self._bounds = bounds
        self._clock = clock
        self._hosts: cachetools.LRUCache[str, Host] = cachetools.LRUCache(maxsize=MAX_HOSTS)

    def of(self, url: str) -> Host | None:
        """Return the host of an endpoint's URL; None for one without bounds."""
        if not self._bounds.max_per_host:
            return None
        name = name_of(url)
        if self._bounds.is_unlimited(name):
            return None
        known = self._hosts.get(name)
        if known is None:
            known = self._hosts[name] = Host(name, self._bounds.in_flight_to_host(), self._bounds.rate_to_host(), self._clock)
        return known

    def share(self, bounds: limits.Limits) -> None:
        """Keep to the share of this worker by other bounds."""
        self._bounds = bounds
        for host in self._hosts.values():
            host.bound(bounds.in_flight_to_host(), bounds.rate_to_host())

    def most_connections(self, url: str) -> float:
        """Return how many connections there may be from this worker to the host of a URL; infinite where it has no bounds."""
        return math.inf if self.of(url) is None else self._bounds.in_flight_to_host()

    def waited(self) -> int:
        """Return how often requests have waited for their host's bounds since the last call."""
        waited = 0
        for host in self._hosts.values():
            waited += host.waited
            host.waited = 0
        return waited


@functools.lru_cache(maxsize=50_000)
def name_of(url: str) -> str:
    """Return the host of a URL, in lower case and without port."""
    return (parse.urlsplit(url).hostname or "").rstrip(".")
