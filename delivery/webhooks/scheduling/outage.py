"""Tell a network of ours that is broken from endpoints that are: when hardly any destination can be reached, the fault is ours.

Runs on the driver and in the executors. Must not import pyspark or psycopg. Pure: `now` comes in. While the fault is ours the
lanes pause: events stay in Kafka instead of using up their schedules, and nobody is disabled. docs/adr/0032 has the reasons.
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
"""Destinations. Fewer than these may all be dead by themselves."""
MIN_CUSTOMERS = 2
"""Customers. All destinations of one may be in one data centre that is down."""
SHARE = 0.8
"""Of the destinations that were asked, and of the customers. Half of them may be in one data centre that is down."""
MAX_SAMPLE = 256
"""Destinations, and customers, that a sample has at most: 5 kB of what a task tells the driver."""
FIRST_HOLD_S, MAX_HOLD_S = 5.0, 60.0
NO_WAY_THERE = frozenset(
    {
        errors.LocalFailure.error_class,
        errors.DnsFailed.error_class,
        errors.ConnectFailed.error_class,
        errors.TlsFailed.error_class,
        errors.AttemptTimedOut.error_class,
        errors.ConnectionLost.error_class,
    }
)
"""Nothing came from the endpoint. When that is so for most of them, the fault is ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Which destinations were asked, and to which of them there was a way. `a + b` is what both have seen.

    A destination is a host and port: a hundred endpoints behind one gateway say no more of our network than one. Each is known
    by a digest, and so is each customer. Beyond MAX_SAMPLE those with the smallest digests are kept: a sample that is the same
    in whatever order it is merged.
    """

    destinations: Mapping[int, bool] = field(default_factory=dict)
    """By digest: whether it was reached."""
    customers: Mapping[int, bool] = field(default_factory=dict)
    """By digest: whether any destination of this customer was reached."""

    def __add__(self, other: Reach) -> Reach:
        return Reach(
            destinations=_merged(self.destinations, other.destinations), customers=_merged(self.customers, other.customers)
        )

    @property
    def asked(self) -> int:
        """Return how many destinations were asked."""
        return len(self.destinations)

    @property
    def unreachable(self) -> int:
        """Return to how many of them there was no way at all."""
        return _unreachable(self.destinations)

    def is_broken(self, *, least: int = MIN_DESTINATIONS) -> bool:
        """Judge our own network: whether hardly any of at least `least` destinations, and of several customers, was reached."""
        return (
            self.asked >= least
            and len(self.customers) >= MIN_CUSTOMERS
            and self.unreachable >= SHARE * self.asked
            and _unreachable(self.customers) >= SHARE * len(self.customers)
        )

    @property
    def is_well(self) -> bool:
        """Tell whether most of those asked were reached, however few they were."""
        return self.unreachable * 2 < self.asked


NOTHING = Reach()


def reach(seen: Iterable[tuple[Endpoint, bool]]) -> Reach:
    """Return what is known by endpoints that were asked, each with whether it was reached."""
    destinations: dict[int, bool] = {}
    customers: dict[int, bool] = {}
    for endpoint, was_reached in seen:
        for known, digest in ((destinations, _of_url(endpoint.url)), (customers, _of(endpoint.customer_id))):
            known[digest] = was_reached or known.get(digest, False)
    return Reach(destinations=_sample(destinations), customers=_sample(customers))


@dataclass(frozen=True, slots=True, kw_only=True)
class Egress:
    """What is thought of our own network."""

    is_broken: bool = False
    held_s: float = 0.0
    """How long the last pause was."""
    until: float = float("-inf")
    """When the next micro-batch may begin, to see whether it is mended."""

    def told(self, seen: Reach, now: float) -> Egress:
        """Return what is thought after a micro-batch.

        1. Hardly any could be reached: it is broken, and the pause doubles.
        2. Most of those asked were reached: it works, however few they were.
        3. Otherwise that says nothing new.
        """
        if seen.is_broken():
            held_s = min(self.held_s * 2, MAX_HOLD_S) if self.is_broken else FIRST_HOLD_S
            return Egress(is_broken=True, held_s=held_s, until=now + held_s)
        return Egress() if seen.is_well else self


def _unreachable(known: Mapping[int, bool]) -> int:
    return sum(not was_reached for was_reached in known.values())


def _merged(one: Mapping[int, bool], other: Mapping[int, bool]) -> Mapping[int, bool]:
    if not one or not other:
        return one or other
    return _sample({digest: one.get(digest, False) or other.get(digest, False) for digest in one.keys() | other.keys()})


def _sample(known: Mapping[int, bool]) -> Mapping[int, bool]:
    if len(known) <= MAX_SAMPLE:
        return known
    return {digest: known[digest] for digest in heapq.nsmallest(MAX_SAMPLE, known)}


@functools.lru_cache(maxsize=50_000)
def _of_url(url: str) -> int:
    parts = parse.urlsplit(url)
    return _of(f"{parts.scheme}://{parts.netloc.rpartition('@')[2].lower()}")


@functools.lru_cache(maxsize=50_000)
def _of(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())
