"""Detect an outage of our own network: hardly any destination is reachable.

Pure: `now` is passed in. During an outage the lanes pause. Events stay in Kafka and use up no schedule, and no endpoint is
disabled. The reasons are in docs/adr/0032.
"""

from __future__ import annotations

import functools
import hashlib
import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib import parse

from delivery import errors
from delivery.model import Endpoint

MIN_DESTINATIONS = 10
"""Destinations. Fewer than these may all be down by themselves."""
MIN_CUSTOMERS = 2
"""Customers. All destinations of one customer may be in one data centre that is down."""
UNREACHABLE_SHARE = 0.8
"""Share of the destinations, and of the customers, that are unreachable. Half of them may be in one data centre that is
down."""
MAX_SAMPLE = 256
"""Maximum of destinations, and of customers, in a sample: 5 kB of a task's report to the driver."""
FIRST_PAUSE_S, MAX_PAUSE_S = 5.0, 60.0
UNREACHABLE_CLASSES = frozenset(
    {
        errors.LocalFailure.error_class,
        errors.DnsFailed.error_class,
        errors.ConnectFailed.error_class,
        errors.TlsFailed.error_class,
        errors.AttemptTimedOut.error_class,
        errors.ConnectionLost.error_class,
    }
)
"""Error classes of attempts to which the endpoint sent nothing. If most destinations end so, the fault is ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reachability:
    """Which destinations were asked, and which of them responded. `a + b` merges two observations.

    A destination is a host and port: a hundred endpoints behind one gateway count as one. Destinations and customers are stored
    as digests. Beyond MAX_SAMPLE the smallest digests are kept, so the sample does not depend on the order of merging.
    """

    destinations: Mapping[int, bool] = field(default_factory=dict)
    """By digest: whether the destination responded."""
    customers: Mapping[int, bool] = field(default_factory=dict)
    """By digest: whether any destination of the customer responded."""

    def __add__(self, other: Reachability) -> Reachability:
        return Reachability(
            destinations=_merged(self.destinations, other.destinations), customers=_merged(self.customers, other.customers)
        )

    @property
    def asked(self) -> int:
        """Return the number of destinations that were asked."""
        return len(self.destinations)

    @property
    def unreachable(self) -> int:
        """Return the number of destinations that were unreachable."""
        return _unreachable(self.destinations)

    def is_broken(self, *, least: int = MIN_DESTINATIONS) -> bool:
        """Return True if our own network seems broken.

        At least `least` destinations of several customers were asked, and hardly any responded.
        """
        return (
            self.asked >= least
            and len(self.customers) >= MIN_CUSTOMERS
            and self.unreachable >= UNREACHABLE_SHARE * self.asked
            and _unreachable(self.customers) >= UNREACHABLE_SHARE * len(self.customers)
        )

    @property
    def is_healthy(self) -> bool:
        """Return True if more than half of the destinations responded, however few were asked."""
        return self.unreachable * 2 < self.asked


NOTHING_ASKED = Reachability()


def reachability(seen: Iterable[tuple[Endpoint, bool]]) -> Reachability:
    """Return the reachability from pairs of an endpoint and whether it responded."""
    destinations: dict[int, bool] = {}
    customers: dict[int, bool] = {}
    for endpoint, responded in seen:
        for known, digest in ((destinations, _destination_digest(endpoint.url)), (customers, _digest(endpoint.customer_id))):
            known[digest] = responded or known.get(digest, False)
    return Reachability(destinations=_sample(destinations), customers=_sample(customers))


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkHealth:
    """The judgement of our own network."""

    is_broken: bool = False
    pause_s: float = 0.0
    """Seconds of the last pause."""
    paused_until: float = float("-inf")
    """When the next micro-batch may begin, to test the network again."""

    def after(self, seen: Reachability, now: float) -> NetworkHealth:
        """Return the judgement after a micro-batch.

        1. Hardly any destination responded: the network is broken, and the pause doubles.
        2. Most destinations responded: the network works, however few were asked.
        3. Otherwise: no change.
        """
        if seen.is_broken():
            pause_s = min(self.pause_s * 2, MAX_PAUSE_S) if self.is_broken else FIRST_PAUSE_S
            return NetworkHealth(is_broken=True, pause_s=pause_s, paused_until=now + pause_s)
        return NetworkHealth() if seen.is_healthy else self


def _unreachable(known: Mapping[int, bool]) -> int:
    return sum(not responded for responded in known.values())


def _merged(one: Mapping[int, bool], other: Mapping[int, bool]) -> Mapping[int, bool]:
    if not one or not other:
        return one or other
    return _sample({digest: one.get(digest, False) or other.get(digest, False) for digest in one.keys() | other.keys()})


def _sample(known: Mapping[int, bool]) -> Mapping[int, bool]:
    if len(known) <= MAX_SAMPLE:
        return known
    return {digest: known[digest] for digest in heapq.nsmallest(MAX_SAMPLE, known)}


@functools.lru_cache(maxsize=50_000)
def _destination_digest(url: str) -> int:
    parts = parse.urlsplit(url)
    return _digest(f"{parts.scheme}://{parts.netloc.rpartition('@')[2].lower()}")


@functools.lru_cache(maxsize=50_000)
def _digest(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())
