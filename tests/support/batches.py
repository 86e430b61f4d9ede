"""Pending batches, and the batches that a shard sends."""

from __future__ import annotations

from typing import Any

from delivery.model import Event, LeaveReason
from delivery.registry_model import Batching, CustomerId, DeliveryMode, Endpoint, EndpointId, SubscriptionId
from delivery.webhooks.batching import segment
from tests.support import builders

LATER_MS = 2**60


def pending_batch(
    *events: Event, endpoint: str = "ep1", customer: str = "c1", subscription: str = "s1", **fields: Any
) -> segment.PendingBatch:
    bounds = segment.Bounds(fields.pop("max_events", 1000), fields.pop("max_wait_ms", 1000), fields.pop("max_bytes", 1_000_000))
    made = segment.PendingBatch(endpoint_id=EndpointId(endpoint), customer_id=CustomerId(customer), bounds=bounds, **fields)
    for event in events:
        made.add(segment.item(event, LATER_MS), SubscriptionId(subscription))
    return made


def events(count: int, **fields: Any) -> list[Event]:
    return [builders.event(**fields) for _ in range(count)]


def endpoint(endpoint_id: str = "ep1", **fields: Any) -> Endpoint:
    return builders.endpoint(endpoint_id, **{"mode": DeliveryMode.BATCH, "batching": Batching()} | fields)


def sent(pending: segment.PendingBatch) -> bytes:
    return segment.encoded_batch(pending, LeaveReason.COUNT)


def ids(batch: segment.Batch) -> list[str]:
    return [segment.unpacked(packed).event_id for packed in batch.packed]
