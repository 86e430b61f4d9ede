"""Compute due deliveries naively: compare each event with each subscription of a manifest document, in order.

Runs in `fanout` commands and the tests. The oracle shares only the filters with the platform's routing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from delivery.webhooks.filters import event_pattern
from fanout.demo import scenario


def due(event: scenario.PublishedEvent, document: Mapping[str, Any], lane: str) -> Iterator[Mapping[str, Any]]:
    """Yield the subscriptions of `document` to which an event is due, if their endpoint's mode is `lane` (`direct` or `batch`).

    A paused subscription is yielded as well: `skip_reason` says that its delivery is skipped.
    """
    modes = {row["id"]: row.get("mode", "direct") for row in document["endpoints"]}
    for subscription in document["subscriptions"]:
        if modes[subscription["endpoint"]] == lane and is_due(event, subscription):
            yield subscription


def skip_reason(subscription: Mapping[str, Any], document: Mapping[str, Any]) -> str | None:
    """Return the reason for which the registry in `document` skips a delivery of `subscription`; None: no skip.

    `document` is the registry that routed the event, or a later one. A delivery to a paused or disabled endpoint is not
    skipped: the delivery waits, and is sent later or given up.
    """
    present = next((row for row in document["subscriptions"] if row["id"] == subscription["id"]), None)
    if all(row["id"] != subscription["endpoint"] for row in document["endpoints"]):
        return "endpoint_deleted"
    if present is None:
        return "subscription_deleted"
    if present.get("status", "active") == "paused":
        return "subscription_paused"
    return None


def is_due(event: scenario.PublishedEvent, subscription: Mapping[str, Any]) -> bool:
    """Return True if an event is due to one subscription."""
    wanted = subscription["event_type"]
    if wanted != event.event_type and not (wanted.endswith("*") and event.event_type.startswith(wanted[:-1])):
        return False
    if _names(event, subscription.get("except_tenants", ()), subscription.get("except_sub_tenants", {})):
        return False
    included = subscription.get("everything") or _names(
        event, subscription.get("tenants", ()), subscription.get("sub_tenants", {})
    )
    if not included:
        return False
    pattern = subscription.get("filter")
    return pattern is None or event_pattern.compile_pattern(pattern).matches(_document(event))


def _names(event: scenario.PublishedEvent, tenants: Any, sub_tenants: Mapping[str, Any]) -> bool:
    departments = [str(department) for department in sub_tenants.get(event.tenant_id, ())]
    return event.tenant_id in [str(tenant) for tenant in tenants] or event.sub_tenant_id in departments


def _document(event: scenario.PublishedEvent) -> dict[str, Any]:
    return {
        "id": event.event_id,
        "type": event.event_type,
        "source": event.source,
        "tenant_id": event.tenant_id,
        "sub_tenant_id": event.sub_tenant_id,
        "time": event.time,
        "data": event.content,
    }
