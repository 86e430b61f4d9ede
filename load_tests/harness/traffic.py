"""Define the customers of a load test, and publish events that are due to them, by event type and tenant.

Events have numbers, from 0 in the order of publishing. Endpoints have numbers too: endpoint 7 has the id `ep7`. Poison
records are not events, and the job must reject them.
"""

from __future__ import annotations

import array
import collections
import random
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import orjson
import typer

from delivery.config import settings
from delivery.stages.kafka import topics
from fanout.kafka import publishing
from load_tests.harness import event_types, receiver

EVENT_TYPES = event_types.named(10)
ALL_TYPES = range(len(EVENT_TYPES))
POISON_TYPE = f"{event_types.PREFIX}poison"
"""Name of the topic for poison, without the prefix of topics."""
POISON = ("not_json", "missing_attribute")
"""Reject reasons of the poison records, in rotation."""
EVENT_BYTES = 450
"""Size of an event's record value, by default."""
FLUSH_TIMEOUT_S = 300
"""Seconds in which Kafka must confirm all events. A slow machine took more than 30 s for 20,000 events in 2,000 topics."""
TICKS_PER_S = 10
"""Portions a second in which events of a steady pace are published."""
HOT_ENDPOINT = 0
"""Number of the endpoint that gets an additional share of the events."""
NOBODYS = 99_999_999
"""Event number in poison. A delivery with this number is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """Properties of the topics that events are published to."""

    partitions: int = 2
    """Partitions of the topic of an event type."""
    by_tenant: bool = False
    """True: the key of an event is its tenant, so that a tenant's events are in one partition. False: events have no key."""
    with_poison: bool = False
    """True if there is also a topic for poison."""


TOPICS = Topics()
"""Topics with the defaults."""


class Drawn(NamedTuple):
    """A randomly drawn event: its event type, its tenant, and the endpoint to which it is due."""

    type_number: int
    """Index in the population's `event_types`."""
    tenant: int
    endpoint: int
    """Number of the endpoint. With a fan-out above 1, it is the first of the event's endpoints."""
    sub_tenant: int | None = None
    event_bytes: int = EVENT_BYTES
    """Size of the record value, which is padded to this size. Without padding the value has some 110 bytes."""


class TrafficPopulation(Protocol):
    """The customers of a load test: their manifest, and random events of their tenants."""

    @property
    def event_types(self) -> Sequence[str]:
        """Return the names of all event types."""

    def registry(self, url: str) -> dict[str, Any]:
        """Return the manifest, with the URL of every endpoint below `url`."""

    def draw(self, rng: random.Random, types: Sequence[int], hot: float) -> Drawn:
        """Draw a random event of one of these types. With the probability `hot`, draw an event for the hot endpoint instead.

        An event for the hot endpoint may have another type. A population may ignore `types` and `hot`.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Customers:
    """A population with equally many endpoints for each event type. The endpoints of a type share the tenants evenly."""

    endpoints: int
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Additional fields of each endpoint in the manifest."""
    fields_by_type: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """Additional fields of the endpoints of one event type, by the number of the event type."""

    def __post_init__(self) -> None:
        if self.endpoints % len(EVENT_TYPES):
            raise typer.BadParameter(
                f"--endpoints must be a multiple of {len(EVENT_TYPES)}, the number of event types. Nothing was started"
            )

    @property
    def event_types(self) -> Sequence[str]:
        """Return the names of all event types."""
        return EVENT_TYPES

    def draw(self, rng: random.Random, types: Sequence[int], hot: float) -> Drawn:
        """Draw an event of one of these types; with probability `hot`, an event of type 0 for the hot endpoint."""
        type_number, tenant = rng.choice(types), rng.randrange(self.tenants)
        if hot and rng.random() < hot:
            type_number, tenant = 0, 0  # due to HOT_ENDPOINT
        return Drawn(type_number, tenant, self.endpoint_of(type_number, tenant))

    @property
    def of_a_type(self) -> int:
        """Return the number of endpoints of an event type."""
        return self.endpoints // len(EVENT_TYPES)

    @property
    def tenants(self) -> int:
        """Return the number of tenants: at least 100, and at least one for each endpoint of an event type."""
        return max(100, self.of_a_type)

    def endpoint_of(self, type_number: int, tenant: int) -> int:
        """Return the endpoint to which events of this event type and tenant are due."""
        return type_number * self.of_a_type + tenant % self.of_a_type

    def endpoints_of(self, types: Iterable[int]) -> set[int]:
        """Return the endpoints of these event types."""
        return {endpoint for number in types for endpoint in range(number * self.of_a_type, (number + 1) * self.of_a_type)}

    def registry(self, url: str) -> dict[str, Any]:
        """Return the manifest, with the URL of every endpoint below `url`."""
        return {
            "tenants": [{"id": f"t{number}"} for number in range(self.tenants)],
            "customers": [{"id": "load"}],
            "endpoints": [
                {
                    "id": f"ep{number}",
                    "customer": "load",
                    "url": f"{url}/ep{number}",
                    "signing_secrets": [receiver.SECRET],
                    **self.fields,
                    **self.fields_by_type.get(number // self.of_a_type, {}),
                }
                for number in range(self.endpoints)
            ],
            "subscriptions": [
                {
                    "id": f"s{number}",
                    "endpoint": f"ep{number}",
                    "event_type": EVENT_TYPES[number // self.of_a_type],
                    "tenants": [f"t{n}" for n in range(self.tenants) if n % self.of_a_type == number % self.of_a_type],
                }
                for number in range(self.endpoints)
            ],
        }


def is_hot(endpoint: int) -> bool:
    """Return True for the hot endpoint."""
    return endpoint == HOT_ENDPOINT


def is_other(endpoint: int) -> bool:
    """Return True for all endpoints except the hot one."""
    return endpoint != HOT_ENDPOINT


def spoiled(document: Mapping[str, Any], reason: str) -> bytes:
    """Return an event's document as a poison record: truncated for `not_json`, else without its tenant."""
    if reason == "not_json":
        return orjson.dumps(document)[: EVENT_BYTES // 2]
    return orjson.dumps({name: value for name, value in document.items() if name != "tenant_id"})


class Traffic:
    """Publish events, number them in order, and record the endpoint to which each event is due."""

    def __init__(self, customers: TrafficPopulation, config: settings.Settings, seed: int, wanted: Topics) -> None:
        self.due: array.array[int] = array.array("l")
        """The endpoint to which each event is due, by the event's number."""
        self.poison: collections.Counter[str] = collections.Counter()
        """Numbers of published poison records, by reject reason."""
        self._by_tenant = wanted.by_tenant
        self._customers = customers
        self._prefix = config.source.topic_prefix
        self._seed = seed
        self._rng = random.Random(seed)
        self._types = customers.event_types
        self._all_types = range(len(self._types))
        names = [*self._types, POISON_TYPE] if wanted.with_poison else self._types
        topics.ensure(config.kafka, [self._prefix + name for name in names], wanted.partitions)
        self._publisher = publishing.Publisher(config.kafka)

    def publish(self, count: int, *, types: Sequence[int] | None = None, hot: float = 0.0, is_flushed: bool = True) -> range:
        """Publish `count` events of the given types, by default of all types; return the numbers of the events.

        The share `hot` of the events goes to the hot endpoint, whatever `types` says, if the population has one.

        With `is_flushed`, return when Kafka has all events. Without it, the caller calls `flush` after its last events.
        """
        first = len(self.due)
        for _ in range(count):
            self._publisher.publish(self._event(types or self._all_types, hot))
        if is_flushed:
            self.flush()
        return range(first, len(self.due))

    def publish_steadily(
        self, per_s: int, for_s: int, *, types: Sequence[int] | None = None, hot: float = 0.0, poison_per_s: int = 0
    ) -> range:
        """Publish `per_s` events a second for `for_s` seconds; return the numbers of the events.

        The share `hot` of the events is due to the hot endpoint. Also publish `poison_per_s` poison records a second. Both
        rates are rounded down to a multiple of TICKS_PER_S.
        """
        first, began = len(self.due), time.monotonic()
        for tick in range(1, for_s * TICKS_PER_S + 1):
            for _ in range(per_s // TICKS_PER_S):
                self._publisher.publish(self._event(types or self._all_types, hot))
            for _ in range(poison_per_s // TICKS_PER_S):
                self._publisher.publish(self._no_event())
            time.sleep(max(0.0, began + tick / TICKS_PER_S - time.monotonic()))
        self.flush()
        return range(first, len(self.due))

    def publish_evenly(self, per_s: int, for_s: float, *, types: Sequence[int] = ALL_TYPES) -> tuple[range, list[float]]:
        """Publish events one by one at equal intervals; return their numbers and their times, in seconds since the epoch."""
        first, began, at = len(self.due), time.time(), []
        for count in range(int(per_s * for_s)):
            time.sleep(max(0.0, began + count / per_s - time.time()))
            at.append(time.time())
            self._publisher.publish(self._event(types))
        self.flush()
        return range(first, len(self.due)), at

    def flush(self) -> None:
        """Wait until Kafka has all events."""
        self._publisher.flush(FLUSH_TIMEOUT_S)

    def publish_until(self, enough: threading.Event, per_s: int) -> None:
        """Publish `per_s` events a second until `enough` is set. Runs in a thread; no other thread may publish meanwhile."""
        while not enough.is_set():
            self.publish_steadily(per_s, 1)

    def _event(self, types: Sequence[int], hot: float = 0.0) -> publishing.Message:
        number, drawn = len(self.due), self._customers.draw(self._rng, types, hot)
        self.due.append(drawn.endpoint)
        return publishing.Message(
            topic=self._prefix + self._types[drawn.type_number],
            key=b"t%d" % drawn.tenant if self._by_tenant else None,
            value=orjson.dumps(self._document(number, drawn.tenant, drawn.sub_tenant, drawn.event_bytes)),
        )

    def _no_event(self) -> publishing.Message:
        reason = POISON[self.poison.total() % len(POISON)]
        self.poison[reason] += 1
        return publishing.Message(topic=self._prefix + POISON_TYPE, value=spoiled(self._document(NOBODYS, 0), reason))

    def _document(
        self, number: int, tenant: int, sub_tenant: int | None = None, event_bytes: int = EVENT_BYTES
    ) -> dict[str, Any]:
        rng = self._rng
        document = {
            "id": f"{self._seed:04d}-{rng.getrandbits(64):016x}-{number:08d}",
            "tenant_id": f"t{tenant}",
            "sent_at_ms": int(time.time() * 1000),
            "amount": rng.randint(1, 100_000),
            "note": "",
            **({} if sub_tenant is None else {"sub_tenant_id": str(sub_tenant)}),
        }
        # Hexadecimal digits compress to about a half, as human text does. Equal letters would compress to nothing.
        document["note"] = rng.randbytes(event_bytes // 2).hex()[: max(0, event_bytes - len(orjson.dumps(document)))]
        return document
