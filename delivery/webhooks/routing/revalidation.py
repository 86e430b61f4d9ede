"""Decide, by the current registry, which stored events of one endpoint are sent and which are skipped.

Runs in the executors, before a batch is sent, and before a retry entry is attempted or ended. Pure. The registry may have
changed since the events were stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from delivery.model import SkipReason
from delivery.registry_model import CustomerId, DeliveryMode, Endpoint, EndpointId, SubscriptionId, TenantId
from delivery.webhooks.routing import matching, registries


class StoredEvents(Protocol):
    """Stored events of one endpoint: a segment.Batch or a retry_messages.RetryEntry, which have these fields."""

    @property
    def subscriptions(self) -> Sequence[SubscriptionId]: ...
    @property
    def subscription_places(self) -> Sequence[int]:
        """Return the index in `subscriptions` for each event. Empty: all events belong to the only subscription there."""

    @property
    def packed(self) -> Sequence[bytes]: ...


class _Head(msgspec.Struct, array_like=True, gc=False):
    """The first fields of segment.Packed: enough to read the tenant of an event without decoding the rest."""

    event_id: str
    event_type: str
    source: str
    tenant_id: TenantId


_head = msgspec.msgpack.Decoder(_Head).decode


def tenant_ids(packed: Iterable[bytes]) -> set[TenantId]:
    """Return the ids of the tenants of packed events. Unreadable events are ignored."""
    return {tenant_id for event in packed if (tenant_id := _tenant_of(event)) is not None}


def _tenant_of(packed: bytes) -> TenantId | None:
    try:
        return _head(packed).tenant_id
    except (msgspec.MsgspecError, UnicodeDecodeError):  # the code that unpacks the whole event handles the error
        return None


def split_by_eligibility(
    stored: StoredEvents,
    endpoint_id: EndpointId,
    customer_id: CustomerId,
    mode: DeliveryMode,
    destination: registries.Destination,
) -> dict[SkipReason | None, Sequence[int]]:
    """Return the places (from 0) of the stored events, by the reason to skip the events. Under None: the events to send.

    A reason without events is left out. `customer_id` and `mode` are the endpoint's customer and mode when the events were
    stored. The first reason that applies counts:
    1. The endpoint was deleted, or its id was registered again by another customer or in another mode.
    2. The subscription was deleted, or belongs to another endpoint now.
    3. The subscription is quarantined or paused.
    4. The event's tenant was deleted.
    """
    is_deleted = not _is_same(destination.endpoint, customer_id, mode)
    reasons: list[SkipReason | None] = []
    for name in stored.subscriptions:
        subscription = destination.subscriptions.get(name)
        if is_deleted:
            reasons.append(SkipReason.ENDPOINT_DELETED)
        elif subscription is None or subscription.endpoint_id != endpoint_id:
            reasons.append(SkipReason.SUBSCRIPTION_DELETED)
        else:
            reasons.append(matching.skip_reason(subscription))
    everything = range(len(stored.packed))
    gone = destination.deleted_tenants
    if len(set(reasons)) == 1 and not gone:
        return {reasons[0]: everything}
    by_reason: dict[SkipReason | None, list[int]] = {}
    for place in everything:
        reason = reasons[stored.subscription_places[place] if stored.subscription_places else 0]
        if reason is None and gone and _tenant_of(stored.packed[place]) in gone:
            reason = SkipReason.TENANT_DELETED
        by_reason.setdefault(reason, []).append(place)
    return dict(by_reason)


def own_endpoint(endpoint: Endpoint | None, endpoint_id: EndpointId, customer_id: CustomerId, mode: DeliveryMode) -> Endpoint:
    """Return the endpoint for which events were stored. If this endpoint was deleted, return a stand-in with only ids and mode.

    `endpoint` is the endpoint that has the id now. With another customer or mode, it is another endpoint.
    """
    if endpoint is not None and _is_same(endpoint, customer_id, mode):
        return endpoint
    return Endpoint(endpoint_id=endpoint_id, customer_id=customer_id, url="", mode=mode)


def _is_same(endpoint: Endpoint | None, customer_id: CustomerId, mode: DeliveryMode) -> bool:
    return endpoint is not None and endpoint.customer_id == customer_id and endpoint.mode is mode


def subscription_ids(stored: StoredEvents, places: Sequence[int]) -> list[SubscriptionId]:
    """Return the id of the subscription of each event at `places`."""
    if not stored.subscription_places:
        return [stored.subscriptions[0]] * len(places)
    return [stored.subscriptions[stored.subscription_places[place]] for place in places]
