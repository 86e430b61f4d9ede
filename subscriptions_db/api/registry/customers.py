"""Customers, and whose events each may subscribe to by itself. The operator's; a customer sees itself.

Runs in the API.
"""

from __future__ import annotations

from typing import Any

import pydantic

from subscriptions_db.api.contract import audit, crud, routes
from subscriptions_db.api.contract.routes import Call, Page, Route
from subscriptions_db.manifest import manifest
from subscriptions_db.postgres.sql import query


class Granted(manifest.Part):
    """Whose events a customer may subscribe to by itself. What the operator registers for it needs none of this."""

    everything: bool = False
    """Everybody's, of tenants known and to come."""
    tenants: tuple[manifest.Id, ...] = ()


class CustomerFields(manifest.Part):
    """What can be said of a customer. `may_subscribe_to` left out: it stays as it is."""

    name: manifest.Name = ""
    may_subscribe_to: Granted | None = None


class Customer(pydantic.BaseModel):
    """The owner of endpoints."""

    id: str
    name: str
    may_subscribe_to: Granted


class Customers(pydantic.BaseModel):
    """A page of customers."""

    items: list[Customer]
    next_cursor: str | None


def granted(call: Call, customer_ids: list[str]) -> dict[str, Granted]:
    """Return whose events each of these customers may subscribe to."""
    found: dict[str, list[str | None]] = {customer_id: [] for customer_id in customer_ids}
    for row in call.connection.execute(query("granted_tenants"), {"ids": customer_ids}):
        found[row["customer_id"]].append(row["tenant_id"])
    return {
        customer_id: Granted(everything=None in tenants, tenants=tuple(tenant for tenant in tenants if tenant is not None))
        for customer_id, tenants in found.items()
    }


def list_(call: Call) -> Customers:
    """Return a page of customers."""

    def show(found: dict[str, dict[str, Any]]) -> list[Customer]:
        grants = granted(call, list(found))
        return [Customer(id=row_id, may_subscribe_to=grants[row_id], **row) for row_id, row in found.items()]

    items, cursor = crud.page(call, "customer", show)
    return Customers(items=items, next_cursor=cursor)


def get(call: Call) -> Customer:
    """Return a customer."""
    customer_id = call.path["customer_id"]
    row = crud.found(call, "customer", customer_id)
    return Customer(id=customer_id, may_subscribe_to=granted(call, [customer_id])[customer_id], **row)


def put(call: Call) -> Customer:
    """Bring a customer to what is said of it, new or not."""
    customer_id, wanted = call.path["customer_id"], call.body_as(CustomerFields)
    crud.hold(call, "customer", customer_id)
    crud.put(call, {"customers": [{"id": customer_id, "name": wanted.name}]}, customer_id=customer_id)
    if wanted.may_subscribe_to is not None:
        _grant(call, customer_id, wanted.may_subscribe_to)
    return get(call)


def _grant(call: Call, customer_id: str, wanted: Granted) -> None:
    before = granted(call, [customer_id])[customer_id]
    tenants = tuple(sorted(set(wanted.tenants)))
    if (before.everything, before.tenants) == (wanted.everything, tenants):
        return
    call.connection.execute(query("delete_granted_tenants"), {"customer_id": customer_id})
    each: list[Any] = [*tenants, *([None] if wanted.everything else [])]
    with call.connection.cursor() as cursor:
        cursor.executemany(query("put_granted_tenant"), [{"customer_id": customer_id, "tenant_id": one} for one in each])
    told = {"before": before.model_dump(), "after": {"everything": wanted.everything, "tenants": tenants}}
    audit.write(call, "grant", "customer", customer_id, customer_id=customer_id, **told)


def delete(call: Call) -> None:
    """Delete a customer with its endpoints, secrets, subscriptions and keys.

    Archive and audit log keep what they have of it, each for its time. So nobody is given its id again, as `put` sees to.
    """
    customer_id = call.path["customer_id"]
    crud.delete(call, "customer", customer_id, lambda _: customer_id)


ROUTES = (
    Route(
        method="GET", path="/v1/customers", name="listCustomers", summary="All customers.",
        scopes=routes.OPERATOR, handler=list_, query=Page, answer=Customers,
    ),
    Route(
        method="GET", path="/v1/customers/{customer_id}", name="getCustomer", summary="A customer; each sees itself.",
        scopes=routes.READERS, handler=get, answer=Customer,
    ),
    Route(
        method="PUT", path="/v1/customers/{customer_id}", name="putCustomer", summary="Register a customer, or change it.",
        scopes=routes.OPERATOR, handler=put, body=CustomerFields, answer=Customer, is_change=True,
    ),
    Route(
        method="DELETE", path="/v1/customers/{customer_id}", name="deleteCustomer",
        summary="Delete a customer with its endpoints, subscriptions and keys. Its id is nobody's from then on.",
        scopes=routes.OPERATOR, handler=delete, status=204, is_change=True,
    ),
)  # fmt: skip
