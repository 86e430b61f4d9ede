"""Share the limits of each endpoint among its leases: requests in flight, rate, and the limits of its host.

The dispatcher of the fast lanes counts requests per queue and task (delivery.webhooks.dispatching.endpoint_queue). Leases
outlive their task, so the leases of one endpoint share a semaphore. Rates and limits of hosts are shared with the fast lanes.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import NamedTuple

from delivery.registry_model import Endpoint, EndpointId
from delivery.webhooks.scheduling import host_limits, limits


class SharedLimits(NamedTuple):
    """The limits that the leases of one endpoint share."""

    endpoint_id: EndpointId
    max_in_flight: int
    """Most requests in flight from all leases of the endpoint in this worker together."""
    slots: asyncio.Semaphore
    """A semaphore with `max_in_flight` slots. The caller takes a slot before `begin`."""
    turn: asyncio.Lock
    """Lock that a caller holds while it waits for the rate or the host, until it calls `begin`. So at most one caller of the
    endpoint stands in the host's line, and all others wait for the lock."""
    pace: limits.Pace | None
    """None: the endpoint has no rate limit."""
    host: host_limits.Host | None
    """None: the host has no limits."""

    def rate_wait_s(self, now: float) -> float:
        """Return the seconds until the endpoint's rate allows the next request; 0 if it allows a request now.

        `now` is in seconds of the clock of `pace`.
        """
        return 0.0 if self.pace is None else self.pace.wait_s(now)

    def full_host(self) -> host_limits.Host | None:
        """Return the host if the next request has to wait in the host's line; else None."""
        return None if self.host is None or self.host.has_room else self.host

    def begin(self, now: float) -> None:
        """Count a request that begins now: in the endpoint's rate, and in the requests in flight to the host."""
        if self.pace is not None:
            self.pace.consume(now)
        if self.host is not None:
            self.host.serve(self.endpoint_id)

    def end(self) -> None:
        """Count a request that has ended: it is no longer in flight to the host."""
        if self.host is not None:
            self.host.leave()


class EndpointSlots:
    """Keep, for each endpoint of a worker, the limits that its leases share.

    `bounds` has the worker's limits. `paces` has the token buckets of endpoints with a rate limit. `known_hosts` has the hosts
    to which the worker sends, with their limits and requests in flight. The worker's other lanes use `paces` and `known_hosts`
    too.
    """

    def __init__(self, bounds: limits.Limits, paces: limits.Paces, known_hosts: host_limits.Hosts) -> None:
        self._bounds = bounds
        self._paces = paces
        self._hosts = known_hosts
        self._slots: weakref.WeakValueDictionary[tuple[EndpointId, int], asyncio.Semaphore] = weakref.WeakValueDictionary()
        self._turns: weakref.WeakValueDictionary[tuple[EndpointId, float | None], asyncio.Lock] = weakref.WeakValueDictionary()

    def set_bounds(self, bounds: limits.Limits) -> None:
        """Replace the limits of endpoints. A lease in flight keeps the limits with which it began.

        Limits of hosts are not replaced here. The worker replaces them by `Hosts.set_bounds`, also for leases in flight.
        """
        self._bounds = bounds

    def limits_of(self, endpoint: Endpoint) -> SharedLimits:
        """Return the limits of an endpoint, for a lease that begins.

        Leases that are in flight at the same time share a semaphore if they began with the same `max_in_flight`. They share the
        lock `turn` if they began with the same rate. So a lease with a new, higher rate does not wait behind leases that still
        have the old rate.
        """
        most = self._bounds.in_flight_to(endpoint)
        key = (endpoint.endpoint_id, most)
        slots = self._slots.get(key)
        if slots is None:
            slots = self._slots[key] = asyncio.Semaphore(most)
        rate = self._bounds.rate_to(endpoint)
        turn = self._turns.get((endpoint.endpoint_id, rate))
        if turn is None:
            turn = self._turns[endpoint.endpoint_id, rate] = asyncio.Lock()
        pace = self._bounds.pace_to(endpoint, self._paces)
        return SharedLimits(endpoint.endpoint_id, most, slots, turn, pace, self._hosts.host_of(endpoint.url))
