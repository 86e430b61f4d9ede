"""Bound what goes to one endpoint: requests under way, and requests a second.

Runs in the executors. Must not import pyspark or psycopg. Pure: the clock's reading comes in.

An endpoint's own limits hold over all workers. Which of them will get its events is not known beforehand, so each keeps to its
share, by the number of workers, which comes with each task. They are not fully used while all of the endpoint's events are in
one worker's partitions, and they are passed while lanes run at once in more processes than that: each process keeps to its
share by itself.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass

from delivery.model import Endpoint, EndpointId

BURST_SHARE = 0.05
"""The part of a second's requests that may go at once. The rest is refilled over the second: in no second are there more than
the rate allows, and a sender that wakes up a little late loses nothing."""


ROUNDING_S = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much may be under way in one worker process, and for how long."""

    max_in_flight: int = 256
    max_in_flight_per_endpoint: int = 16
    """For an endpoint that has no bound of its own."""
    lane_deadline_s: float = 3.0
    """How long a delivery waits for its own endpoint when all others have been served."""
    patience_s: float = 0.5
    """How long answers are waited for, at most, when nothing else is left to do; infinite: until the attempts end."""
    workers: int = 1
    """How many worker processes share an endpoint's own limits, and a host's."""
    slices: int = 1
    """How many dispatchers of a worker are at work at once. Each counts for itself what is under way to an endpoint; paces and
    the bounds of hosts are the worker's."""
    max_per_host: int = 0
    """Connections to one host, over all workers and whoever's endpoints are there. 0: hosts have no bounds at all."""
    max_per_second_per_host: float = 2000.0
    """Requests."""
    unlimited_hosts: tuple[str, ...] = ()
    """Names of hosts without these bounds. One that begins with `*.` stands for all below it."""

    def in_flight_to(self, endpoint: Endpoint) -> int:
        """Return how many requests to `endpoint` a slice of this worker may have under way; at least one, lest it starve."""
        if endpoint.max_in_flight is None:
            return max(1, self.max_in_flight_per_endpoint // self.slices)
        return max(1, endpoint.max_in_flight // (self.workers * self.slices))

    def in_flight_to_host(self) -> int:
        """Return how many connections there may be to one host from this worker; at least one, or it would starve."""
        return max(1, self.max_per_host // self.workers)

    def rate_to_host(self) -> float:
        """Return how many requests a second may go to one host from this worker."""
        return self.max_per_second_per_host / self.workers

    def is_unlimited(self, host: str) -> bool:
        """Tell whether a host, in lower case, has no bounds."""
        return any(host == name or (name.startswith("*.") and host.endswith(name[1:])) for name in self.unlimited_hosts)

    def rate_to(self, endpoint: Endpoint) -> float | None:
        """Return how many requests a second may go to `endpoint` from this worker, or None for no bound."""
        return None if endpoint.max_per_second is None else endpoint.max_per_second / self.workers

    def pace_to(self, endpoint: Endpoint, paces: Paces) -> Pace | None:
        """Return the pace of `endpoint`, the known one while its rate is the same, or None for no bound."""
        per_second = self.rate_to(endpoint)
        if per_second is None:
            return None
        known = paces.get(endpoint.endpoint_id)
        if known is None or known.per_second != per_second:
            known = paces[endpoint.endpoint_id] = Pace(per_second)
        return known


class Pace:
    """A token bucket for one endpoint, as the generic cell rate algorithm (ITU-T I.371) keeps it: one number.

    In any second at most `per_second` requests go, rounded up to one: a burst of `burst_share` of them, and the rest evenly.
    """

    __slots__ = ("_ahead_s", "_interval_s", "_next_at", "per_second")

    def __init__(self, per_second: float, burst_share: float = BURST_SHARE) -> None:
        self.per_second = per_second
        burst = max(1.0, per_second * burst_share)
        # A single token is no burst to be made up for by a slower refill.
        self._interval_s = 1 / (per_second * (1 - burst_share)) if burst > 1 else 1 / per_second
        self._ahead_s = (burst - 1) * self._interval_s
        self._next_at = float("-inf")

    def wait_s(self, now: float) -> float:
        """Return how long the next request has to wait; 0 when it may go."""
        wait_s = self._next_at - self._ahead_s - now
        # What rounding leaves of a wait is none: a clock may not even show that it has passed.
        return wait_s if wait_s > ROUNDING_S else 0.0

    def take(self, now: float) -> None:
        """Note that a request goes now."""
        self._next_at = max(self._next_at, now) + self._interval_s


Paces = MutableMapping[EndpointId, Pace]
"""The paces of a worker's endpoints, in all of its lanes."""
