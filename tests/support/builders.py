"""Build values of the domain with full defaults. A test gives only the fields that it is about."""

from __future__ import annotations

import itertools
from typing import Any

import orjson

from delivery.model import Delivery, Event, EventId, Record
from delivery.registry_model import (
    Auth,
    CustomerId,
    Endpoint,
    EndpointId,
    Retrying,
    Revision,
    Scope,
    SigningKey,
    Subscription,
    SubscriptionId,
    SubTenantId,
    TenantId,
    TenantStatus,
)
from delivery.secret import Secret
from delivery.webhooks.routing.registry_snapshot import Snapshot
from delivery.webhooks.sending import payload

KEY = SigningKey(secret=Secret(b"0123456789abcdef0123456789abcdef"))
_numbers = itertools.count()


def record(**fields: Any) -> Record:
    defaults: dict[str, Any] = {
        "topic": "events.order.created",
        "partition": 0,
        "offset": 7,
        "appended_at_ms": 1_700_000_000_000,
        "value": orjson.dumps({"id": "e1", "tenant_id": "t1", "amount": 5}),
    }
    return Record(**defaults | fields)


def event(**fields: Any) -> Event:
    content = fields.pop("content", {"amount": 5})
    defaults: dict[str, Any] = {
        "event_id": EventId(f"e{next(_numbers)}"),
        "event_type": "order.created",
        "source": "events.order.created",
        "tenant_id": TenantId("t1"),
        "sub_tenant_id": None,
        "time": "2026-01-01T00:00:00Z",
        "data": orjson.dumps(content),
        "content": content,
        "record": record(),
    }
    return Event(**defaults | fields)


def endpoint(endpoint_id: str = "ep1", **fields: Any) -> Endpoint:
    defaults: dict[str, Any] = {
        "endpoint_id": EndpointId(endpoint_id),
        "customer_id": CustomerId("c1"),
        "url": f"https://hooks.example.com/{endpoint_id}",
        "signing_keys": (KEY,),
        "auth": Auth(),
        "retrying": Retrying(schedule_s=()),  # what fails is given up at once
    }
    return Endpoint(**defaults | fields)


def scope(*tenants: str, **fields: Any) -> Scope:
    """Return a scope of these tenants; without a tenant, a scope of everything."""
    return Scope(
        everything=not tenants and "sub_tenants" not in fields, tenants=tuple(map(TenantId, sorted(tenants))), **fields
    )


def sub_tenants(*pairs: tuple[str, str]) -> tuple[tuple[TenantId, SubTenantId], ...]:
    return tuple((TenantId(tenant), SubTenantId(sub_tenant)) for tenant, sub_tenant in sorted(pairs))


def subscription(subscription_id: str = "s1", **fields: Any) -> Subscription:
    defaults: dict[str, Any] = {
        "subscription_id": SubscriptionId(subscription_id),
        "endpoint_id": EndpointId("ep1"),
        "event_type": "order.created",
        "scope": scope(),
    }
    return Subscription(**defaults | fields)


def snapshot(*rows: Endpoint | Subscription, tenants: tuple[str, ...] = ("t1", "t2"), revision: int = 1) -> Snapshot:
    return Snapshot(
        revision=Revision(revision),
        tenants={TenantId(tenant): TenantStatus.ACTIVE for tenant in tenants},
        endpoints={row.endpoint_id: row for row in rows if isinstance(row, Endpoint)},
        subscriptions={row.subscription_id: row for row in rows if isinstance(row, Subscription)},
    )


def delivery(**fields: Any) -> Delivery:
    due = fields.get("event") or event()
    through = fields.get("subscription") or subscription()
    to = fields.get("endpoint") or endpoint()
    content = payload.content(due, to.content_mode)
    defaults: dict[str, Any] = {
        "event": due,
        "subscription": through,
        "endpoint": to,
        "webhook_id": payload.webhook_id(due, through.subscription_id),
        "body": content.body,
        "content_headers": content.headers,
    }
    return Delivery(**defaults | fields)
