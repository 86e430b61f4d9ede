"""Who is registered, what is published, and to whom it is due: each event to one endpoint, by its type and its tenant."""

from __future__ import annotations

import array
import random
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from delivery import settings
from delivery.stages import topics
from fanout import publishing
from load_tests import receiver

EVENT_TYPES = [f"load.{number}" for number in range(10)]
ALL_TYPES = range(len(EVENT_TYPES))
PARTITIONS = 2
EVENT_BYTES = 450
TICKS_PER_S = 10
"""In which a steady pace is kept."""
HOT_ENDPOINT = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Customers:
    """The endpoints: as many for each event type, which share its tenants evenly."""

    endpoints: int
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Of each endpoint, beside what all have."""
    fields_by_type: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """Of the endpoints of one event type, by its number, besides."""

    @property
    def of_a_type(self) -> int:
        """Return how many endpoints have the events of one type."""
        return self.endpoints // len(EVENT_TYPES)

    @property
    def tenants(self) -> int:
        """Return how many tenants there are: at least one for each endpoint of a type."""
        return max(100, self.of_a_type)

    def endpoint_of(self, type_number: int, tenant: int) -> int:
        """Return to whom an event is due."""
        return type_number * self.of_a_type + tenant % self.of_a_type

    def endpoints_of(self, types: Iterable[int]) -> set[int]:
        """Return to whom events of these types may be due."""
        return {endpoint for number in types for endpoint in range(number * self.of_a_type, (number + 1) * self.of_a_type)}

    def registry(self, url: str) -> dict[str, Any]:
        """Return the manifest."""
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


class Traffic:
    """Publish events, and remember to which endpoint each is due. Events have numbers, in their order."""

    def __init__(self, customers: Customers, config: settings.Settings, seed: int, partitions: int) -> None:
        self.due: array.array[int] = array.array("l")
        """The endpoint of each event."""
        self._customers = customers
        self._prefix = config.source.topic_prefix
        self._seed = seed
        self._rng = random.Random(seed)
        topics.ensure(config.kafka, [self._prefix + name for name in EVENT_TYPES], partitions)
        self._publisher = publishing.Publisher(config.kafka)

    def publish(self, count: int, *, types: Sequence[int] = ALL_TYPES) -> range:
        """Publish so many events of some types; return their numbers."""
        first = len(self.due)
        for _ in range(count):
            self._publisher.publish(self._event(types))
        self._publisher.flush()
        return range(first, len(self.due))

    def publish_steadily(self, per_s: int, for_s: int, *, types: Sequence[int] = ALL_TYPES, hot: float = 0.0) -> range:
        """Publish at a steady pace, the hot endpoint having a share besides; return the events' numbers."""
        first, began = len(self.due), time.monotonic()
        for tick in range(1, for_s * TICKS_PER_S + 1):
            for _ in range(per_s // TICKS_PER_S):
                self._publisher.publish(self._event(types, hot))
            time.sleep(max(0.0, began + tick / TICKS_PER_S - time.monotonic()))
        self._publisher.flush()
        return range(first, len(self.due))

    def publish_until(self, enough: threading.Event, per_s: int) -> None:
        """Publish at a steady pace until `enough` is set. For a thread: nobody else may publish meanwhile."""
        while not enough.is_set():
            self.publish_steadily(per_s, 1)

    def _event(self, types: Sequence[int], hot: float = 0.0) -> publishing.Message:
        rng, number = self._rng, len(self.due)
        type_number, tenant = rng.choice(types), rng.randrange(self._customers.tenants)
        if hot and rng.random() < hot:
            type_number, tenant = 0, 0  # due to HOT_ENDPOINT
        document = {
            "id": f"{self._seed:04d}-{rng.getrandbits(64):016x}-{number:08d}",
            "tenant_id": f"t{tenant}",
            "sent_at_ms": int(time.time() * 1000),
            "amount": rng.randint(1, 100_000),
            "note": "",
        }
        # Digits: as texts of people, they take about half when they are compressed, and equal letters would take nothing.
        document["note"] = rng.randbytes(EVENT_BYTES // 2).hex()[: EVENT_BYTES - len(orjson.dumps(document))]
        self.due.append(self._customers.endpoint_of(type_number, tenant))
        return publishing.Message(topic=self._prefix + EVENT_TYPES[type_number], value=orjson.dumps(document))
