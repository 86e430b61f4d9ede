"""Build retry entries, leases of them, and registries for them."""

from __future__ import annotations

from typing import Any

from delivery.model import Event, LeaveReason
from delivery.registry_model import Batching, CustomerId, DeliveryMode, EndpointId, Retrying, Subscription, SubscriptionId
from delivery.webhooks.batching import segment
from delivery.webhooks.retries import retry_messages
from delivery.webhooks.routing.registry_snapshot import Snapshot
from tests.support import builders

NOW_MS = 1_700_000_000_000
LATER_MS = 2**60


def registry(*subscriptions: Subscription, **fields: Any) -> Snapshot:
    """Return a registry of one endpoint with a retry schedule, and its subscriptions."""
    endpoint = builders.endpoint(**{"retrying": Retrying()} | fields)
    return builders.snapshot(endpoint, *(subscriptions or [builders.subscription()]))


def batch_registry(*subscriptions: Subscription, **fields: Any) -> Snapshot:
    """Return a registry as `registry` does, with an endpoint in batch mode."""
    return registry(*subscriptions, **{"mode": DeliveryMode.BATCH, "batching": Batching()} | fields)


def waiting(*events: Event, through: tuple[str, ...] = ("s1",), **fields: Any) -> retry_messages.RetryEntry:
    """Return a retry entry of one event, or of several events as a batch."""
    packed = events or (builders.event(),)
    names = list(dict.fromkeys(through))
    defaults: dict[str, Any] = {
        "packed": [segment.item(event, LATER_MS).packed for event in packed],
        "subscriptions": [SubscriptionId(name) for name in names],
        "subscription_places": [names.index(name) for name in through] if len(names) > 1 else [],
        "left_by": LeaveReason.COUNT if len(packed) > 1 else None,
        "again_at_ms": 0,
        "since_ms": 0,
        "expires_ms": LATER_MS,
        "reason": "server_error",
    }
    return retry_messages.RetryEntry(**defaults | fields)


def lease(*parcels: retry_messages.RetryEntry, endpoint: str = "ep1", **fields: Any) -> retry_messages.Lease:
    defaults: dict[str, Any] = {
        "endpoint_id": EndpointId(endpoint),
        "customer_id": CustomerId("c1"),
        "order_key": None,
        "number": 1,
        "given_up": None,
        "entries": list(parcels) or [waiting()],
    }
    return retry_messages.Lease(**defaults | fields)
