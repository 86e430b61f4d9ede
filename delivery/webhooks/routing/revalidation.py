"""Part what leaves for one endpoint: what is sent now, and what is skipped, by what the registry says at this moment.

Runs in the executors. Must not import pyspark or psycopg. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from delivery.model import CustomerId, DeliveryMode, EndpointId, SkipReason, SubscriptionId, TenantId
from delivery.webhooks.routing import matching, registries


class Leaving(Protocol):
    """Events that leave for one endpoint. See segment.Batch and parcel.Parcel."""

    @property
    def subscriptions(self) -> Sequence[SubscriptionId]: ...
    @property
    def through(self) -> Sequence[int]:
        """By which subscription each event is due, by place in the list. Empty where all are due by the one."""

    @property
    def packed(self) -> Sequence[bytes]: ...


class _Head(msgspec.Struct, array_like=True, gc=False):
    """The first fields of segment.Packed."""

    event_id: str
    event_type: str
    source: str
    tenant_id: TenantId


_head = msgspec.msgpack.Decoder(_Head).decode


def tenants(packed: Iterable[bytes]) -> set[TenantId]:
    """Return whose these events are, of those that can be read."""
    return {tenant_id for one in packed if (tenant_id := _tenant_of(one)) is not None}


def _tenant_of(packed: bytes) -> TenantId | None:
    try:
        return _head(packed).tenant_id
    except (msgspec.MsgspecError, UnicodeDecodeError):  # whoever unpacks it whole says what becomes of it
        return None


def parted(
    leaving: Leaving, endpoint_id: EndpointId, customer_id: CustomerId, mode: DeliveryMode, destination: registries.Destination
) -> dict[SkipReason | None, Sequence[int]]:
    """Return the places of the events to send under None, and of those to skip under the reason.

    1. The endpoint is gone, or it is another one with the same id: of another customer, or of the other mode.
    2. A subscription is gone, or leads elsewhere now.
    3. As in the direct lane: the subscription is quarantined or paused.
    4. The event's tenant is gone.
    """
    endpoint = destination.endpoint
    reasons: list[SkipReason | None] = []
    for name in leaving.subscriptions:
        subscription = destination.subscriptions.get(name)
        if endpoint is None or endpoint.customer_id != customer_id or endpoint.mode is not mode:
            reasons.append(SkipReason.ENDPOINT_DELETED)
        elif subscription is None or subscription.endpoint_id != endpoint_id:
            reasons.append(SkipReason.SUBSCRIPTION_DELETED)
        else:
            reasons.append(matching.skip_reason(subscription))
    everything = range(len(leaving.packed))
    gone = destination.deleted_tenants
    if len(set(reasons)) == 1 and not gone:
        return {reasons[0]: everything}
    by_reason: dict[SkipReason | None, list[int]] = {}
    for place in everything:
        reason = reasons[leaving.through[place] if leaving.through else 0]
        if reason is None and gone and _tenant_of(leaving.packed[place]) in gone:
            reason = SkipReason.TENANT_DELETED
        by_reason.setdefault(reason, []).append(place)
    return dict(by_reason)


def through(leaving: Leaving, places: Sequence[int]) -> list[SubscriptionId]:
    """Return by which subscription each event at these places is due."""
    if not leaving.through:
        return [leaving.subscriptions[0]] * len(places)
    return [leaving.subscriptions[leaving.through[place]] for place in places]
