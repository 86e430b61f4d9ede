"""Define the registry and the events of a job that measures some shapes: sizes of the registry and forms of the events.

Each shape has event types of its own, and all shapes share the endpoints and tenants. The endpoints of a group get the same
events, and have consecutive numbers. The fan-out of a shape is the number of endpoints in a group.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from load_tests.curves.axes import CurveShape
from load_tests.harness import event_types, receiver, traffic

CUSTOMER = "load"
"""The customer of all endpoints."""


@dataclass(frozen=True, kw_only=True)
class CurvePopulation:
    """The endpoints, tenants and subscriptions of some shapes, and the events of the tenants."""

    shapes: Sequence[CurveShape]

    @property
    def endpoints(self) -> int:
        """Return the number of endpoints."""
        return max(shape.endpoints for shape in self.shapes)

    @cached_property
    def event_types(self) -> Sequence[str]:
        """Return the names of all event types, in the order of the shapes."""
        return [
            f"{_prefix(number)}{name.removeprefix(event_types.PREFIX)}"
            for number, shape in enumerate(self.shapes)
            for name in event_types.named(shape.topics)
        ]

    @cached_property
    def _shape_of_type(self) -> Sequence[CurveShape]:
        return [shape for shape in self.shapes for _ in range(shape.topics)]

    def types_of(self, number: int) -> range:
        """Return the numbers of the event types of the shape `shapes[number]`."""
        first = sum(shape.topics for shape in self.shapes[:number])
        return range(first, first + self.shapes[number].topics)

    def fan_out_of(self, type_number: int) -> int:
        """Return the number of endpoints to which an event of this type is due."""
        return self._shape_of_type[type_number].fan_out

    def draw(self, rng: random.Random, types: Sequence[int], hot: float) -> traffic.Drawn:
        """Draw an event of one of these types, with equal chances for all tenants. `hot` is ignored."""
        del hot
        type_number = rng.choice(types)
        shape = self._shape_of_type[type_number]
        tenant = rng.randrange(shape.tenants)
        first = tenant % shape.groups * shape.fan_out
        return traffic.Drawn(type_number, tenant, first, event_bytes=shape.event_bytes)

    def registry(self, url: str) -> dict[str, Any]:
        """Return the manifest, with the URL of every endpoint below `url`.

        The manifest leaves out the tenants and subscriptions of shapes whose `subscriptions` is not None: `bulk_load` adds
        them.
        """
        small = [(number, shape) for number, shape in enumerate(self.shapes) if shape.subscriptions is None]
        tenants = max((shape.tenants for _, shape in small), default=0)
        return {
            "tenants": [{"id": tenant_id(number)} for number in range(tenants)],
            "customers": [{"id": CUSTOMER}],
            "endpoints": [
                {
                    "id": endpoint_id(number),
                    "customer": CUSTOMER,
                    "url": f"{url}/ep{number}",
                    "signing_secrets": [receiver.SECRET],
                }
                for number in range(self.endpoints)
            ],
            "subscriptions": [row for number, shape in small for row in (*_plain(number, shape), *_filtered(number, shape))],
        }


def tenant_id(number: int) -> str:
    """Return the id of a tenant, as `traffic.Traffic` writes it into events."""
    return f"t{number}"


def endpoint_id(number: int) -> str:
    """Return the id of an endpoint."""
    return f"ep{number}"


def _prefix(number: int) -> str:
    """Return the first characters of the event types of a shape."""
    return f"{event_types.PREFIX}k{number}."


def _plain(number: int, shape: CurveShape) -> Iterator[dict[str, Any]]:
    for endpoint in range(shape.groups * shape.fan_out):
        yield {
            "id": f"k{number}-s{endpoint}",
            "endpoint": endpoint_id(endpoint),
            "event_type": f"{_prefix(number)}*",
            "tenants": [tenant_id(endpoint // shape.fan_out)],
        }


def _filtered(number: int, shape: CurveShape) -> Iterator[dict[str, Any]]:
    """Yield the subscriptions that no event matches. Half of the filters compare a text, half of them a number."""
    for rank in range(shape.filters):
        pattern = {"currency": [f"currency-{rank}"]} if rank % 2 else {"amount": [{"numeric": ["<", -rank]}]}
        yield {
            "id": f"k{number}-f{rank}",
            "endpoint": endpoint_id(rank % shape.endpoints),
            "event_type": f"{_prefix(number)}*",
            "everything": True,
            "filter": {"data": pattern},
        }
