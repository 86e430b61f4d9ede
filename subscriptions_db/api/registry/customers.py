"""List, change and delete customers and their grants: the tenants to whose events a customer may subscribe by itself.

Runs in the API. Operators change customers; a customer's key reads its own customer.
"""

from __future__ import annotations

from typing import Any

import pydantic

from subscriptions_db.api.contract import audit, crud, routes
from subscriptions_db.api.contract.routes import Call, ListQuery, Route
from subscriptions_db.manifest import manifest
from subscriptions_db.postgres.sql import query


class TenantGrants(manifest.ManifestPart):
    """The tenants to whose events a customer may subscribe itself. Subscriptions made by the operator need no grant."""

    everything: bool = False
    """All tenants, present and future."""
    tenants: tuple[manifest.Id, ...] = ()


class CustomerFields(manifest.ManifestPart):
    """The fields of a customer. An omitted `may_subscribe_to` stays unchanged."""

    name: manifest.Name = ""
    may_subscribe_to: TenantGrants | None = None


class Customer(pydantic.BaseModel):
    """The owner of endpoints."""

    id: str
    name: str
    may_subscribe_to: TenantGrants


class Customers(routes.ListPage):
    """A page of customers."""

    items: list[Customer]


def tenant_grants(call: Call, customer_ids: list[str]) -> dict[str, TenantGrants]:
    """Return the grants of each of these customers."""
    found: dict[str, list[str | None]] = {customer_id: [] for customer_id in customer_ids}
    for row in call.connection.execute(query("granted_tenants"), {"ids": customer_ids}):
        found[row["customer_id"]].append(row["tenant_id"])
    return {
        customer_id: TenantGrants(everything=None in tenants, tenants=tuple(tenant for tenant in tenants if tenant is not None))
        for customer_id, tenants in found.items()
    }


def list_(call: Call) -> Customers:
    """Return a page of customers."""

    def show(found: dict[str, dict[str, Any]]) -> list[Customer]:
        grants = tenant_grants(call, list(found))
        return [Customer(id=row_id, may_subscribe_to=grants[row_id], **row) for row_id, row in found.items()]

    return Customers(**crud.page(call, "customer", show)._asdict())


def get(call: Call) -> Customer:
    """Return a customer."""
    customer_id = call.path["customer_id"]
    row = crud.existing_row(call, "customer", customer_id)
    return Customer(id=customer_id, may_subscribe_to=tenant_grants(call, [customer_id])[customer_id], **row)


def put(call: Call) -> Customer:
    """Create a customer, or replace its fields."""
    customer_id, wanted = call.path["customer_id"], call.body_as(CustomerFields)
    crud.require_conditions(call, get if crud.lock(call, "customer", customer_id) else None)
    crud.put(call, {"customers": [{"id": customer_id, "name": wanted.name}]}, customer_id=customer_id)
    if wanted.may_subscribe_to is not None:
        _grant(call, customer_id, wanted.may_subscribe_to)
    return get(call)


def _grant(call: Call, customer_id: str, wanted: TenantGrants) -> None:
    before = tenant_grants(call, [customer_id])[customer_id]
    tenants = tuple(sorted(set(wanted.tenants)))
    if (before.everything, before.tenants) == (wanted.everything, tenants):
        return
    call.connection.execute(query("delete_granted_tenants"), {"customer_id": customer_id})
    granted: list[Any] = [*tenants, *([None] if wanted.everything else [])]
    with call.connection.cursor() as cursor:
        cursor.executemany(
            query("put_granted_tenant"), [{"customer_id": customer_id, "tenant_id": tenant_id} for tenant_id in granted]
        )
    change = {"before": before.model_dump(), "after": {"everything": wanted.everything, "tenants": tenants}}
    audit.write(call, "grant", "customer", customer_id, customer_id=customer_id, **change)


def delete(call: Call) -> None:
    """Delete a customer with its endpoints, secrets, subscriptions and keys.

    The archive and the audit log keep the customer's data for their retention. So `put` refuses the id of a deleted customer.
    """
    customer_id = call.path["customer_id"]
    crud.delete(call, "customer", customer_id, get, lambda _: customer_id)


ROUTES = (
    Route(
        method="GET", path="/v1/customers", name="listCustomers", summary="List customers.",
        scopes=routes.OPERATOR, handler=list_, query=ListQuery, answer=Customers,
    ),
    Route(
        method="GET", path="/v1/customers/{customer_id}", name="getCustomer",
        summary="Get a customer. A customer's key reads its own.",
        scopes=routes.REGISTRY_READERS, handler=get, answer=Customer, resource=Customer,
    ),
    Route(
        method="PUT", path="/v1/customers/{customer_id}", name="putCustomer", summary="Create or replace a customer.",
        scopes=routes.OPERATOR, handler=put, body=CustomerFields, answer=Customer, is_change=True, resource=Customer,
    ),
    Route(
        method="DELETE", path="/v1/customers/{customer_id}", name="deleteCustomer",
        summary="Delete a customer with its endpoints, subscriptions and keys. Its id cannot be used again.",
        scopes=routes.OPERATOR, handler=delete, status=204, is_change=True, resource=Customer,
    ),
)  # fmt: skip
