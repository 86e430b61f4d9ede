"""List examples of the operations on customers, tenants, event types, the audit log and the snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from subscriptions_db.api.examples.endpoints import CREATED_AT, ENDPOINT, ENDPOINT_URL
from subscriptions_db.api.examples.example import ENDPOINT_ID, SUBSCRIPTION_ID, WHOLE_LIST, Example

CUSTOMER: dict[str, Any] = {
    "id": "acme",
    "name": "Acme Inc",
    "may_subscribe_to": {"everything": False, "tenants": ["t1", "t2"]},
    "quotas": {"endpoints": 50, "subscriptions": None, "dead_letters": None},
}
TENANT: dict[str, Any] = {
    "id": "t1",
    "name": "Northern Clinic",
    "status": "active",
    "sub_tenants": [{"id": "100", "name": "Radiology"}, {"id": "101", "name": "Laboratory"}],
    "quotas": {"events_per_day": 1_000_000},
}
EVENT_TYPE: dict[str, Any] = {
    "id": "order.created",
    "description": "A customer has placed an order.",
    "json_schema": {"type": "object", "required": ["amount"], "properties": {"amount": {"type": "number"}}},
    "examples": [{"amount": 20}],
    "deprecated": False,
    "changed_at": CREATED_AT,
}
EXAMPLES: Mapping[str, Example] = {
    "listCustomers": Example(query={"limit": 2, "total": True}, answer=WHOLE_LIST | {"total": 1, "items": [CUSTOMER]}),
    "getCustomer": Example(answer=CUSTOMER),
    "putCustomer": Example(
        body={"name": "Acme Inc", "may_subscribe_to": {"tenants": ["t1", "t2"]}, "quotas": {"endpoints": 50}},
        answer=CUSTOMER,
    ),
    "deleteCustomer": Example(),
    "listTenants": Example(query={"limit": 2, "status": "active"}, answer=WHOLE_LIST | {"items": [TENANT]}),
    "getTenant": Example(answer=TENANT),
    "putTenant": Example(body={name: TENANT[name] for name in ("name", "sub_tenants", "quotas")}, answer=TENANT),
    "deleteTenant": Example(),
    "listEventTypes": Example(query={"limit": 2}, answer=WHOLE_LIST | {"items": [EVENT_TYPE]}),
    "getEventType": Example(answer=EVENT_TYPE),
    "putEventType": Example(
        body={name: EVENT_TYPE[name] for name in ("description", "json_schema", "examples")}, answer=EVENT_TYPE
    ),
    "deleteEventType": Example(),
    "listAuditLog": Example(
        query={"limit": 1, "q": "endpoint"},
        answer={
            "items": [
                {
                    "entry_id": 129,
                    "at": "2026-05-10T12:00:00Z",
                    "key_id": "fk_abcdefghijkl",
                    "login": None,
                    "customer": "acme",
                    "action": "update",
                    "entity": "endpoint",
                    "entity_id": ENDPOINT_ID,
                    "before": {"status": "active", "disabled_reason": None},
                    "after": {"status": "paused", "disabled_reason": None},
                }
            ],
            "next_cursor": "MTI5",
            "previous_cursor": None,
            "total": None,
            "is_total_exact": None,
        },
    ),
    "getSnapshot": Example(
        query={"since": 0},
        answer={
            "revision": 1207,
            "since": None,
            "tenants": [{"tenant_id": "t1", "status": "active"}],
            "endpoints": [
                {
                    "endpoint_id": ENDPOINT_ID,
                    "customer_id": "acme",
                    "url": ENDPOINT_URL,
                    "mode": "direct",
                    "status": "active",
                    "auth_kind": "bearer",
                    "auth_username": None,
                    "auth_header": None,
                    "auth_client_id": None,
                    "auth_token_url": None,
                    "auth_token_scope": None,
                    "content_mode": "standard",
                    "payload": "json",
                    "headers": "{}",
                    "tls_authorities": None,
                    "tls_certificate": None,
                    "max_in_flight": None,
                    "max_per_second": ENDPOINT["max_per_second"],
                    "batch_max_events": 1000,
                    "batch_max_wait_s": 1.0,
                    "batch_max_bytes": 1048576,
                    "batch_gzip": False,
                    "retry_schedule_s": None,
                    "retry_max_age_s": None,
                    "retry_timeout_s": None,
                    "order_by": None,
                    "awaits_permission": False,
                    "permitted_origin": None,
                    "permitted_per_minute": None,
                }
            ],
            "secrets": [
                {
                    "secret_id": "54da753a-1b1a-4a29-b28a-25c395064029",
                    "endpoint_id": ENDPOINT_ID,
                    "customer_id": "acme",
                    "purpose": "signing",
                    "key_id": "k1",
                    "sealed": "AaJcXmTygzzNmbZXQw6m3gyrJtUneBBpESl8FHExT2RiaIcidZpeHJ6c",
                    "expires_at_s": None,
                }
            ],
            "subscriptions": [
                {
                    "subscription_id": SUBSCRIPTION_ID,
                    "endpoint_id": ENDPOINT_ID,
                    "event_type": "order.*",
                    "scope": "selected",
                    "status": "active",
                    "pattern": '{"data": {"amount": [{"numeric": [">=", 500]}]}}',
                }
            ],
            "scopes": [{"subscription_id": SUBSCRIPTION_ID, "effect": "include", "tenants": ["t1"], "sub_tenants": None}],
            "gone": {},
        },
    ),
}
"""The name of an operation → its example."""
