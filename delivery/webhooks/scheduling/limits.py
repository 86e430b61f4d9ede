"""Limit the requests to endpoints and hosts: the number in flight, and the number per second.

The API limits the requests of its clients per second by the same token bucket (`Pace`). Pure: the clock's reading is passed in.

An endpoint's own limits hold for all workers together. Each worker keeps to its share: the limit divided by the number of
workers, which comes with each task. Four consequences follow:
1. The limit is not fully used while all events of the endpoint are in one worker's partitions.
2. The limit can be exceeded while more worker processes send at once than the number by which the limit was divided.
3. A limit of requests in flight can be exceeded if it is lower than the number of dispatchers in all workers. A worker may run
   several dispatchers, and each of them may have one request in flight.
4. A limit of requests in flight can be exceeded while the retry lane and another lane send: each counts its own requests.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass
from typing import NamedTuple

from delivery.registry_model import Endpoint, EndpointId

BURST_SHARE = 0.05
"""Share of a second's requests that may go at once. The other requests become possible evenly over the second. So no second has
more requests than the rate allows, and a sender that wakes up a little late loses nothing."""

ROUNDING_S = 1e-6
"""Seconds. A shorter wait is a rounding error of the clock, and counts as none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits from the settings of the area `delivery`, and the numbers of workers and dispatchers that share them."""

    max_in_flight: int = 256
    """Maximum of requests in flight to all endpoints together, from one dispatcher, or from the retry lane of one worker."""
    max_in_flight_per_endpoint: int = 16
    """Maximum of requests in flight to an endpoint without a limit of its own, from the dispatchers of one worker. The retry
    lane of the worker counts its own requests."""
    queue_timeout_s: float = 3.0
    """Seconds that a delivery waits for its own endpoint after all other endpoints were served. Setting `lane_deadline_s`."""
    response_deadline_s: float = 0.5
    """Maximum, in seconds, of each endpoint's response deadline. Infinite: a task waits until its attempts end. Setting
    `patience_s`."""
    workers: int = 1
    """Number of worker processes that share the limits of an endpoint and of a host."""
    slices: int = 1
    """Number of dispatchers of one worker that run at once. Each counts its own requests in flight to an endpoint. All of
    them share rates and host limits."""
    max_per_host: int = 0
    """Most connections to one host, over all workers and all customers. 0: hosts have no limits at all."""
    max_per_second_per_host: float = 2000.0
    """Most requests a second to one host, over all workers and all customers."""
    unlimited_hosts: tuple[str, ...] = ()
    """Names of hosts without limits. A name that begins with `*.` stands for all names below it."""

    def in_flight_to(self, endpoint: Endpoint) -> int:
        """Return the maximum of requests in flight to `endpoint`, from one dispatcher or from the worker's retry lane.

        The maximum is at least one.
        """
        if endpoint.max_in_flight is None:
            return max(1, self.max_in_flight_per_endpoint // self.slices)
        return max(1, endpoint.max_in_flight // (self.workers * self.slices))

    def in_flight_to_host(self) -> int:
        """Return the maximum of connections, and of requests in flight, to one host from this worker; at least one.

        Has no meaning if `max_per_host` is 0.
        """
        return max(1, self.max_per_host // self.workers)

    def rate_to_host(self) -> float:
        """Return the maximum of requests a second to one host from this worker."""
        return self.max_per_second_per_host / self.workers

    def is_unlimited(self, host: str) -> bool:
        """Return True if `unlimited_hosts` names a host, given in lower case. `max_per_host` is not considered."""
        return any(host == name or (name.startswith("*.") and host.endswith(name[1:])) for name in self.unlimited_hosts)

    def rate_to(self, endpoint: Endpoint) -> float | None:
        """Return the maximum of requests a second to `endpoint` from this worker; return None if the endpoint has no limit."""
        return None if endpoint.max_per_second is None else endpoint.max_per_second / self.workers

    def pace_to(self, endpoint: Endpoint, paces: Paces) -> Pace | None:
        """Return the pace of `endpoint`, or None if the endpoint has no limit per second.

        The pace comes from `paces`. If `paces` has none for the endpoint, or has one with another rate, a new pace is stored.
        """
        per_second = self.rate_to(endpoint)
        if per_second is None:
            return None
        known = paces.get(endpoint.endpoint_id)
        if known is None or known.per_second != per_second:
            known = paces[endpoint.endpoint_id] = Pace(per_second)
        return known


class Room(NamedTuple):
    """The state of a token bucket, or of a daily quota, at one moment: the requests or events that may go."""

    limit: int
    """Requests that may go at once after a pause."""
    remaining: int
    """Requests that may go at once now."""
    full_in_s: float
    """Seconds without a request until `limit` may go at once."""


def least_room(rooms: Iterable[Room]) -> Room:
    """Return the state of the limit that is used up first, if each further request counts once in every limit.

    If several limits are used up by the same request, return the state of the limit that takes longest to refill.
    """
    return min(rooms, key=lambda room: (room.remaining, -room.full_in_s))


class Pace:
    """A token bucket for an endpoint, host or API client, stored as one number (generic cell rate algorithm, ITU-T I.371).

    If each request waits for `wait_s`, at most `per_second` requests go in any second, rounded up to a whole number. The share
    `burst_share` of these requests may go at once, at least one request. The others go at even intervals.
    """

    __slots__ = ("_burst_s", "_interval_s", "_next_at", "per_second")

    def __init__(self, per_second: float, burst_share: float = BURST_SHARE) -> None:
        self.per_second = per_second
        burst = max(1.0, per_second * burst_share)
        # A single token is no burst, so the refill needs no slowing down.
        self._interval_s = 1 / (per_second * (1 - burst_share)) if burst > 1 else 1 / per_second
        self._burst_s = (burst - 1) * self._interval_s
        self._next_at = float("-inf")

    def wait_s(self, now: float, ahead: int = 0) -> float:
        """Return the seconds until the next request may go; 0 if it may go now. `ahead` other requests go before it."""
        wait_s = max(self._next_at, now) + ahead * self._interval_s - self._burst_s - now
        # A remainder of rounding is no wait: a clock may be too coarse to show that it has passed.
        return wait_s if wait_s > ROUNDING_S else 0.0

    def room(self, now: float) -> Room:
        """Return the state of the token bucket at `now`."""
        held_s = max(0.0, self._next_at - now)
        limit = 1 + math.floor((self._burst_s + ROUNDING_S) / self._interval_s)
        remaining = max(0, 1 + math.floor((self._burst_s - held_s + ROUNDING_S) / self._interval_s))
        spare_s = self._burst_s - (limit - 1) * self._interval_s
        return Room(limit=limit, remaining=min(limit, remaining), full_in_s=max(0.0, held_s - spare_s - ROUNDING_S))

    def consume(self, now: float, count: int = 1) -> None:
        """Count a request that goes now, or `count` of them, even if `wait_s` is not 0."""
        self._next_at = max(self._next_at, now) + self._interval_s * count


Paces = MutableMapping[EndpointId, Pace]
"""The paces of a worker's endpoints, by endpoint. All lanes of the worker share them."""
