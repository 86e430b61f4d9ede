"""List, change and delete tenants with their sub-tenants. For operators only.

Runs in the API.
"""

from __future__ import annotations

from typing import Any

from subscriptions_db import described
from subscriptions_db.api.contract import crud, routes
from subscriptions_db.api.contract.routes import Call, ListQuery, Route
from subscriptions_db.manifest import manifest


class Tenant(described.DescribedModel):
    """An organisation whose events flow through Kafka."""

    id: str
    """The id, as events have it."""
    name: str
    """The name, for people."""
    status: str
    """`active` or `suspended`. Events of a suspended tenant are not delivered."""
    sub_tenants: list[manifest.ManifestSubTenant]
    """The departments of the tenant."""


class Tenants(routes.ListPage):
    """A page of tenants."""

    items: list[Tenant]
    """The tenants of the page."""


def _tenant(row_id: str, row: dict[str, Any]) -> Tenant:
    departments = [manifest.ManifestSubTenant(id=key, name=name) for key, name in sorted(row["sub_tenants"].items())]
    return Tenant(id=row_id, name=row["name"], status=row["status"], sub_tenants=departments)


def list_(call: Call) -> Tenants:
    """Return a page of tenants."""
    return Tenants(**crud.page(call, "tenant", crud.show_each(_tenant))._asdict())


def get(call: Call) -> Tenant:
    """Return a tenant."""
    return _tenant(call.path["tenant_id"], crud.existing_row(call, "tenant", call.path["tenant_id"]))


def put(call: Call) -> Tenant | routes.Created:
    """Create a tenant, or replace its fields."""
    tenant_id = call.path["tenant_id"]
    is_known = crud.lock(call, "tenant", tenant_id)
    crud.require_conditions(call, get if is_known else None)
    crud.put(call, {"tenants": [{"id": tenant_id} | call.document]}, customer_id=None)
    return get(call) if is_known else routes.Created(get(call))


def delete(call: Call) -> None:
    """Delete a tenant: its events are rejected from now on. Scopes that name it stay unchanged."""
    crud.delete(call, "tenant", call.path["tenant_id"], get, lambda _: None)


ROUTES = (
    Route(
        method="GET", path="/v1/tenants", name="listTenants", summary="List tenants.",
        scopes=routes.OPERATOR, handler=list_, query=ListQuery, answer=Tenants,
    ),
    Route(
        method="GET", path="/v1/tenants/{tenant_id}", name="getTenant", summary="Get a tenant.",
        scopes=routes.OPERATOR, handler=get, answer=Tenant, resource=Tenant,
    ),
    Route(
        method="PUT", path="/v1/tenants/{tenant_id}", name="putTenant", summary="Create or replace a tenant.",
        scopes=routes.OPERATOR, handler=put, body=manifest.TenantFields, answer=Tenant, is_change=True, resource=Tenant,
        location="/v1/tenants/{id}",
    ),
    Route(
        method="DELETE", path="/v1/tenants/{tenant_id}", name="deleteTenant",
        summary="Delete a tenant: its events are rejected from now on.",
        scopes=routes.OPERATOR, handler=delete, status=204, is_change=True, resource=Tenant,
    ),
)  # fmt: skip
