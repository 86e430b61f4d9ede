"""Detect an outage of our own network: hardly any destination is reachable.

Pure: `now` is passed in. During an outage the lanes pause. Events stay in Kafka and use up no retry schedule, and no
endpoint is disabled for its failures. The reasons are in docs/adr/0032.
"""

from __future__ import annotations

import functools
import hashlib
import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib import parse

from delivery import errors
from delivery.registry_model import Endpoint

MIN_DESTINATIONS = 10
"""Minimum of destinations for a judgement. Fewer destinations may all be down by their own fault."""
MIN_CUSTOMERS = 2
"""Minimum of customers for a judgement. All destinations of one customer may be in one data centre that is down."""
UNREACHABLE_SHARE = 0.8
"""If at least this share of the destinations, and of the customers, is unreachable, the fault is ours. One half is not enough,
because half of the destinations may be in one data centre that is down."""
MAX_SAMPLE = 256
"""Maximum of destinations, and of customers, in a sample: 5 kB of a task's report to the driver."""
FIRST_PAUSE_S, MAX_PAUSE_S = 5.0, 60.0
"""Seconds between two tests of a broken network: the first pause, which doubles, and the longest."""
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
"""Error classes of attempts without a response of the endpoint. If hardly any destination responds, the fault is ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reachability:
    """The destinations and customers that responded, and those that could not be reached. `a + b` merges two observations.

    A destination is the scheme, host and port of a URL: a hundred endpoints behind one gateway count as one. A customer
    responded if any of the customer's destinations did. Destinations and customers are stored as digests. If there are more
    than MAX_SAMPLE digests, the smallest are kept, so the sample does not depend on the order of merging.
    """

    destinations: Mapping[int, bool] = field(default_factory=dict)
    """For each destination, by digest: whether it responded."""
    customers: Mapping[int, bool] = field(default_factory=dict)
    """For each customer, by digest: whether any of the customer's destinations responded."""

    def __add__(self, other: Reachability) -> Reachability:
        return Reachability(
            destinations=_merged(self.destinations, other.destinations), customers=_merged(self.customers, other.customers)
        )

    @property
    def asked(self) -> int:
        """Return the number of destinations in the sample, at most MAX_SAMPLE."""
        return len(self.destinations)

    @property
    def unreachable(self) -> int:
        """Return the number of destinations in the sample, at most MAX_SAMPLE, that did not respond."""
        return _unreachable(self.destinations)

    def is_broken(self, *, least: int = MIN_DESTINATIONS) -> bool:
        """Return True if our own network seems broken, by two conditions that both hold.

        1. Requests went to at least `least` destinations, of at least MIN_CUSTOMERS customers.
        2. At least UNREACHABLE_SHARE of the destinations did not respond. At least the same share of the customers has no
           destination that responded.
        """
        return (
            self.asked >= least
            and len(self.customers) >= MIN_CUSTOMERS
            and self.unreachable >= UNREACHABLE_SHARE * self.asked
            and _unreachable(self.customers) >= UNREACHABLE_SHARE * len(self.customers)
        )

    @property
    def is_healthy(self) -> bool:
        """Return True if more than half of the destinations in the sample responded, however few they are."""
        return self.unreachable * 2 < self.asked


NOTHING_ASKED = Reachability()


def reachability(seen: Iterable[tuple[Endpoint, bool]]) -> Reachability:
    """Return the Reachability of these observations: pairs of an endpoint and True if the endpoint responded, else False."""
    destinations: dict[int, bool] = {}
    customers: dict[int, bool] = {}
    for endpoint, responded in seen:
        for known, digest in ((destinations, _destination_digest(endpoint.url)), (customers, _digest(endpoint.customer_id))):
            known[digest] = responded or known.get(digest, False)
    return Reachability(destinations=_sample(destinations), customers=_sample(customers))


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkHealth:
    """The driver's judgement of our own network, after each report of the workers."""

    is_broken: bool = False
    pause_s: float = 0.0
    """Seconds of the last pause."""
    paused_until: float = float("-inf")
    """Until this time no micro-batch begins, and the real-time lane takes no records. The first micro-batch or records
    afterwards test the network again. In seconds of the clock that gives `after` its argument `now`."""

    def after(self, seen: Reachability, now: float) -> NetworkHealth:
        """Return the judgement after the workers of a micro-batch, or of the real-time lane, have reported `seen`.

        1. Hardly any destination responded (`Reachability.is_broken`), and no pause lasts: the network is broken. The pause is
           FIRST_PAUSE_S. The pause doubles each time the network is found broken again, up to MAX_PAUSE_S.
        2. Hardly any destination responded, and a pause lasts: no change. In a pause no micro-batch begins, and the real-time
           lane takes no records. So this report is about earlier events, and did not test the network again.
        3. Most destinations responded: the network works, however few they are.
        4. Otherwise: no change.
        """
        if seen.is_broken():
            if now < self.paused_until:
                return self
            pause_s = min(self.pause_s * 2, MAX_PAUSE_S) if self.is_broken else FIRST_PAUSE_S
            return NetworkHealth(is_broken=True, pause_s=pause_s, paused_until=now + pause_s)
        return NetworkHealth() if seen.is_healthy else self


def _unreachable(known: Mapping[int, bool]) -> int:
    return sum(not responded for responded in known.values())


def _merged(first: Mapping[int, bool], second: Mapping[int, bool]) -> Mapping[int, bool]:
    if not first or not second:
        return first or second
    return _sample({digest: first.get(digest, False) or second.get(digest, False) for digest in first.keys() | second.keys()})


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
