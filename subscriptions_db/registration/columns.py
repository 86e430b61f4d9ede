"""Convert rows of a manifest to the registry's columns, to compare and to write them. Pure.

Runs in `fanout` commands and in the API.
"""

from __future__ import annotations

from typing import Any

from subscriptions_db.manifest import manifest


def tenant(row: manifest.ManifestTenant) -> dict[str, Any]:
    """Return the columns of a tenant. If `row.sub_tenants` is None, the result has no `sub_tenants`: they stay unchanged."""
    fields: dict[str, Any] = {"name": row.name, "status": row.status}
    if row.sub_tenants is not None:
        fields["sub_tenants"] = {department.id: department.name for department in row.sub_tenants or ()}
    return fields


def endpoint(row: manifest.ManifestEndpoint) -> dict[str, Any]:
    """Return the columns of an endpoint, without secrets."""
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
        "payload": row.payload,
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
        "description": row.description,
        "metadata": row.metadata,
    }


def subscription(row: manifest.ManifestSubscription) -> dict[str, Any]:
    """Return the columns of a subscription."""
    return {
        "endpoint": row.endpoint,
        "event_type": row.event_type,
        "scope": scope_kind(row),
        "scopes": row.scopes(),
        "filter": row.filter,
        "status": row.status,
        "description": row.description,
        "metadata": row.metadata,
    }


def scope_kind(row: manifest.ManifestSubscription) -> str:
    """Return `everything` for a subscription to all tenants, else `selected`."""
    return "everything" if row.everything else "selected"
