"""What a manifest says of a row, by the registry's names: to be compared with what is there, and to be written; pure.

Runs in the command and in the API.
"""

from __future__ import annotations

from typing import Any

from subscriptions_db.manifest import manifest


def tenant(row: manifest.Tenant) -> dict[str, Any]:
    """Return what a tenant of a manifest is, without departments where the manifest does not say."""
    fields: dict[str, Any] = {"name": row.name, "status": row.status}
    if row.sub_tenants is not None:
        fields["sub_tenants"] = {department.id: department.name for department in row.sub_tenants or ()}
    return fields


def endpoint(row: manifest.Endpoint) -> dict[str, Any]:
    """Return what an endpoint of a manifest is, but for its secrets."""
    return {
        "customer": row.customer,
        "url": row.url,
        "mode": row.mode,
        "status": row.status,
        "auth_kind": row.auth.kind,
        "auth_username": row.auth.username,
        "auth_header": row.auth.header,
        "auth_client_id": row.auth.client_id,
        "auth_token_url": row.auth.token_url,
        "auth_token_scope": row.auth.token_scope,
        "content_mode": row.content_mode,
        "headers": row.headers,
        "tls_authorities": row.tls.authorities,
        "tls_certificate": row.tls.certificate,
        "max_in_flight": row.max_in_flight,
        "max_per_second": row.max_per_second,
        "batch_max_events": row.batch.max_events,
        "batch_max_wait_s": row.batch.max_wait_s,
        "batch_max_bytes": row.batch.max_bytes,
        "batch_gzip": row.batch.gzip,
        "retry_schedule_s": row.retry.schedule_s,
        "retry_max_age_s": row.retry.max_age_s,
        "retry_timeout_s": row.retry.timeout_s,
        "order_by": row.order_by,
        "validation": row.validation,
    }


def subscription(row: manifest.Subscription) -> dict[str, Any]:
    """Return what a subscription of a manifest is."""
    return {
        "endpoint": row.endpoint,
        "event_type": row.event_type,
        "scope": scope_kind(row),
        "scopes": row.scopes(),
        "filter": row.filter,
        "status": row.status,
    }


def scope_kind(row: manifest.Subscription) -> str:
    """Return whether it is to all tenants, or to those that it names."""
    return "everything" if row.everything else "selected"
