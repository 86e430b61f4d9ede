"""List, change and delete tenants with their sub-tenants and quotas. For operators only.

Runs in the API.
"""

from __future__ import annotations

import functools
from typing import Annotated, Any, Literal

from pydantic import Field

from subscriptions_db import described
from subscriptions_db.api.contract import crud, request_audit, routes, schemas
from subscriptions_db.api.contract.routes import Call, Route
from subscriptions_db.manifest import manifest, parts
from subscriptions_db.postgres.sql import query


class TenantQuotas(parts.ManifestPart):
    """The tenant's own quotas, in place of the settings. They apply only while `api.max_tenant_events_per_day` is not 0."""

    events_per_day: Annotated[int, Field(ge=1, le=2**53)] | None = None
    """Events of the tenant that all keys together publish over HTTP in a day of UTC. Null: `api.max_tenant_events_per_day`."""


class TenantQuery(schemas.TextQuery):
    """Search criteria for tenants. `q` is searched in id and name."""

    status: Literal["active", "suspended"] | None = None
    """Only tenants with this status."""


class TenantFields(manifest.ManifestTenantFields):
    """The fields of a tenant. Omitted `sub_tenants` or `quotas` stay unchanged. Other omitted fields get their defaults."""

    quotas: TenantQuotas | None = None
    """The quotas of the tenant. Omitted or null: unchanged."""


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
    quotas: TenantQuotas
    """The quotas of the tenant."""


class Tenants(routes.ListPage):
    """A page of tenants."""

    items: list[Tenant]
    """The tenants of the page."""


def _quotas(call: Call, tenant_ids: list[str]) -> dict[str, TenantQuotas]:
    """Return tenant id → its own quotas; a tenant without own quotas has null in each field."""
    rows = call.connection.execute(query("tenant_quotas"), {"ids": tenant_ids}).fetchall()
    found = {row.pop("tenant_id"): TenantQuotas(**row) for row in rows}
    return {tenant_id: found.get(tenant_id, TenantQuotas()) for tenant_id in tenant_ids}


def _shown(call: Call, found: dict[str, dict[str, Any]]) -> list[Tenant]:
    quotas = _quotas(call, list(found))
    return [
        Tenant(
            id=row_id,
            name=row["name"],
            status=row["status"],
            sub_tenants=[manifest.ManifestSubTenant(id=key, name=name) for key, name in sorted(row["sub_tenants"].items())],
            quotas=quotas[row_id],
        )
        for row_id, row in found.items()
    ]


def list_(call: Call) -> Tenants:
    """Return a page of tenants."""
    wanted = call.query_as(TenantQuery)
    found = crud.page(call, "tenant", functools.partial(_shown, call), q=wanted.q, status=wanted.status)
    return Tenants(**found._asdict())


def get(call: Call) -> Tenant:
    """Return a tenant. Raise Refused with 404 if it does not exist."""
    tenant_id = call.path["tenant_id"]
    [shown] = _shown(call, {tenant_id: crud.existing_row(call, "tenant", tenant_id)})
    return shown


def put(call: Call) -> Tenant | routes.Created:
    """Create a tenant, or replace its fields. Omitted `sub_tenants` and `quotas` stay unchanged.

    An omitted `name` becomes empty, and an omitted `status` becomes `active`.

    Raise RegistrationError for the tenant id of the platform itself. Raise Refused with 412 if `If-Match` or `If-None-Match`
    does not hold, and with 422 if one of these headers is malformed.
    """
    tenant_id, wanted = call.path["tenant_id"], call.body_as(TenantFields)
    is_known = crud.lock(call, "tenant", tenant_id)
    crud.require_conditions(call, get if is_known else None)
    fields = {name: value for name, value in call.document.items() if name != "quotas"}
    crud.put(call, {"tenants": [{"id": tenant_id} | fields]}, customer_id=None)
    if wanted.quotas is not None:
        _set_quotas(call, tenant_id, wanted.quotas)
    return get(call) if is_known else routes.Created(get(call))


def _set_quotas(call: Call, tenant_id: str, wanted: TenantQuotas) -> None:
    before = _quotas(call, [tenant_id])[tenant_id]
    if before == wanted:
        return
    call.connection.execute(query("put_tenant_quotas"), {"tenant_id": tenant_id} | wanted.model_dump())
    change = {"before": before.model_dump(), "after": wanted.model_dump()}
    request_audit.write(call, "set_quotas", "tenant", tenant_id, customer_id=None, **change)


def delete(call: Call) -> None:
    """Delete a tenant: its events are rejected from now on. Subscriptions that name the tenant stay unchanged.

    Raise Refused as `crud.delete` does.
    """
    crud.delete(call, "tenant", call.path["tenant_id"], get, lambda _: None)


ROUTES = (
    Route(
        method="GET", path="/v1/tenants", name="listTenants", summary="List tenants. `q` is searched in id and name.",
        scopes=routes.OPERATOR, handler=list_, query=TenantQuery, answer=Tenants,
    ),
    Route(
        method="GET", path="/v1/tenants/{tenant_id}", name="getTenant", summary="Get a tenant.",
        scopes=routes.OPERATOR, handler=get, answer=Tenant, resource=Tenant,
    ),
    Route(
        method="PUT", path="/v1/tenants/{tenant_id}", name="putTenant", summary="Create or replace a tenant.",
        scopes=routes.OPERATOR, handler=put, body=TenantFields, answer=Tenant, is_change=True, resource=Tenant,
        location="/v1/tenants/{id}",
    ),
    Route(
        method="DELETE", path="/v1/tenants/{tenant_id}", name="deleteTenant",
        summary="Delete a tenant: its events are rejected from now on.",
        scopes=routes.OPERATOR, handler=delete, status=204, is_change=True, resource=Tenant,
    ),
)  # fmt: skip
