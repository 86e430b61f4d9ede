"""Make a delivery or a batch from a retry entry of a lease, by the current registry. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from delivery.model import Delivery
from delivery.registry_model import DeliveryMode, Scope, Subscription
from delivery.webhooks.batching import segment
from delivery.webhooks.retries import retry_messages
from delivery.webhooks.routing import registries, revalidation
from delivery.webhooks.sending import batch_payload, payload
from delivery.webhooks.sending.batch_payload import BatchDelivery


def mode(entry: retry_messages.RetryEntry) -> DeliveryMode:
    """Return the delivery mode in which an entry is sent: BATCH if the entry is a batch, else DIRECT."""
    return DeliveryMode.DIRECT if entry.left_by is None else DeliveryMode.BATCH


def without_body(
    lease: retry_messages.Lease,
    entry: retry_messages.RetryEntry,
    places: Sequence[int],
    destination: registries.Destination,
) -> Delivery | BatchDelivery:
    """Return the events at `places` of a retry entry as a delivery or batch, without body, content headers and order key.

    1. `destination` has no endpoint, or one of another customer or another mode: the entry's endpoint was deleted. The result
       has an endpoint with only ids and mode.
    2. `destination` lacks the subscription of a delivery: the result has a subscription with only ids.

    Raise msgspec.MsgspecError or UnicodeDecodeError if an event is unreadable.
    """
    endpoint = revalidation.own_endpoint(destination.endpoint, lease.endpoint_id, lease.customer_id, mode(entry))
    events = [segment.unpacked(entry.packed[place]) for place in places]
    subscription_ids = revalidation.subscription_ids(entry, places)
    if entry.left_by is not None:
        webhook_id = batch_payload.webhook_id(lease.endpoint_id, events, subscription_ids)
        return BatchDelivery(endpoint, webhook_id, b"", b"", b"", events, subscription_ids, entry.left_by)
    [subscription_id] = subscription_ids
    subscription = destination.subscriptions.get(subscription_id)
    if subscription is None:
        subscription = Subscription(
            subscription_id=subscription_id, endpoint_id=lease.endpoint_id, event_type="", scope=Scope()
        )
    return Delivery(events[0].event(), subscription, endpoint, payload.webhook_id(events[0], subscription_id), b"")


def with_body(delivery: Delivery | BatchDelivery) -> Delivery | BatchDelivery:
    """Return a delivery or batch with its request body, in the endpoint's content mode. Only a batch may be compressed.

    Raise ValueError for a delivery in binary mode whose event would give an invalid header (`payload.content`).
    """
    if isinstance(delivery, BatchDelivery):
        return batch_payload.with_content(delivery)
    content = payload.content(delivery.event, delivery.endpoint.content_mode)
    return delivery._replace(body=content.body, content_headers=content.headers)
