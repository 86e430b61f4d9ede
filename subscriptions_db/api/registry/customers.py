"""List, change and delete customers, their quotas and their grants: tenants to whose events a customer may subscribe by itself.

Runs in the API. Operators change customers; a customer's key reads its own customer.
"""

from __future__ import annotations

import functools
from typing import Annotated, Any

from pydantic import Field

from subscriptions_db import described
from subscriptions_db.api.contract import crud, request_audit, routes, schemas
from subscriptions_db.api.contract.routes import Call, Route
from subscriptions_db.manifest import manifest, parts
from subscriptions_db.postgres.sql import query

MAX_QUOTA = 2**31 - 1
"""Maximum of a quota: the largest integer of its column."""


class TenantGrants(parts.ManifestPart):
    """The tenants to whose events a customer may subscribe by itself. Subscriptions made by the operator need no grant."""

    everything: bool = False
    """All tenants, present and future."""
    tenants: tuple[manifest.Id, ...] = ()
    """The ids of the granted tenants."""


class Quotas(parts.ManifestPart):
    """The quotas of a customer, which bound requests with the customer's keys. The operator may exceed a quota."""

    endpoints: Annotated[int, Field(ge=0, le=MAX_QUOTA)] | None = None
    """Maximum endpoints. Null: `api.max_endpoints_per_customer`."""
    subscriptions: Annotated[int, Field(ge=0, le=MAX_QUOTA)] | None = None
    """Maximum subscriptions. Null: `api.max_subscriptions_per_customer`."""
    dead_letters: Annotated[int, Field(ge=1, le=MAX_QUOTA)] | None = None
    """Number of waiting dead letters from which on the customer can request no replays. Null:
    `api.max_dead_letters_per_customer`."""


class CustomerFields(parts.ManifestPart):
    """The fields of a customer. An omitted `may_subscribe_to` or `quotas` stays unchanged. An omitted `name` becomes empty."""

    name: manifest.Name = ""
    """The name, for people."""
    may_subscribe_to: TenantGrants | None = None
    """The tenants to whose events the customer may subscribe itself. Omitted or null: unchanged."""
    quotas: Quotas | None = None
    """The quotas of the customer. Omitted or null: unchanged."""


class Customer(described.DescribedModel):
    """The owner of endpoints."""

    id: str
    """The id."""
    name: str
    """The name, for people."""
    may_subscribe_to: TenantGrants
    """The tenants to whose events the customer may subscribe itself."""
    quotas: Quotas
    """The quotas of the customer."""


class Customers(routes.ListPage):
    """A page of customers."""

    items: list[Customer]
    """The customers of the page."""


def tenant_grants(call: Call, customer_ids: list[str]) -> dict[str, TenantGrants]:
    """Return customer id → the tenants to whose events the customer may subscribe by itself."""
    found: dict[str, list[str | None]] = {customer_id: [] for customer_id in customer_ids}
    for row in call.connection.execute(query("granted_tenants"), {"ids": customer_ids}):
        found[row["customer_id"]].append(row["tenant_id"])
    return {
        customer_id: TenantGrants(everything=None in tenants, tenants=tuple(tenant for tenant in tenants if tenant is not None))
        for customer_id, tenants in found.items()
    }


def _quotas(call: Call, customer_ids: list[str]) -> dict[str, Quotas]:
    """Return customer id → its own quotas; a customer without own quotas has null in all fields."""
    rows = call.connection.execute(query("customer_quotas"), {"ids": customer_ids}).fetchall()
    found = {row.pop("customer_id"): Quotas(**row) for row in rows}
    return {customer_id: found.get(customer_id, Quotas()) for customer_id in customer_ids}


def list_(call: Call) -> Customers:
    """Return a page of customers."""
    found = crud.page(call, "customer", functools.partial(_shown, call), q=call.query_as(schemas.TextQuery).q)
    return Customers(**found._asdict())


def _shown(call: Call, found: dict[str, dict[str, Any]]) -> list[Customer]:
    grants, quotas = tenant_grants(call, list(found)), _quotas(call, list(found))
    return [Customer(id=row_id, may_subscribe_to=grants[row_id], quotas=quotas[row_id], **row) for row_id, row in found.items()]


def get(call: Call) -> Customer:
    """Return a customer. Raise Refused with 404 if it does not exist, or if the principal may not see it."""
    customer_id = call.path["customer_id"]
    [shown] = _shown(call, {customer_id: crud.existing_row(call, "customer", customer_id)})
    return shown


def put(call: Call) -> Customer | routes.Created:
    """Create a customer, or replace its fields. Omitted `may_subscribe_to` and `quotas` stay unchanged.

    Raise RegistrationError for the id of a customer whose deletion is in the audit log. Raise Refused with 412 if `If-Match` or
    `If-None-Match` does not hold, and with 422 if one of these headers is malformed.
    """
    customer_id, wanted = call.path["customer_id"], call.body_as(CustomerFields)
    is_known = crud.lock(call, "customer", customer_id)
    crud.require_conditions(call, get if is_known else None)
    crud.put(call, {"customers": [{"id": customer_id, "name": wanted.name}]}, customer_id=customer_id)
    if wanted.may_subscribe_to is not None:
        _grant(call, customer_id, wanted.may_subscribe_to)
    if wanted.quotas is not None:
        _set_quotas(call, customer_id, wanted.quotas)
    return get(call) if is_known else routes.Created(get(call))


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
    request_audit.write(call, "grant", "customer", customer_id, customer_id=customer_id, **change)


def _set_quotas(call: Call, customer_id: str, wanted: Quotas) -> None:
    before = _quotas(call, [customer_id])[customer_id]
    if before == wanted:
        return
    call.connection.execute(query("put_customer_quotas"), {"customer_id": customer_id} | wanted.model_dump())
    change = {"before": before.model_dump(), "after": wanted.model_dump()}
    request_audit.write(call, "set_quotas", "customer", customer_id, customer_id=customer_id, **change)


def delete(call: Call) -> None:
    """Delete a customer with its endpoints, secrets, subscriptions and keys.

    The archive keeps the customer's data until its retention ends. The audit log keeps the entries about the customer until
    the operator deletes them. So `put` refuses the id of a customer whose deletion is in the audit log. Raise Refused as
    `crud.delete` does.
    """
    customer_id = call.path["customer_id"]
    crud.delete(call, "customer", customer_id, get, lambda _: customer_id)


ROUTES = (
    Route(
        method="GET", path="/v1/customers", name="listCustomers", summary="List customers. `q` is searched in id and name.",
        scopes=routes.OPERATOR, handler=list_, query=schemas.TextQuery, answer=Customers,
    ),
    Route(
        method="GET", path="/v1/customers/{customer_id}", name="getCustomer",
        summary="Get a customer. A customer's key reads its own.",
        scopes=routes.REGISTRY_READERS, handler=get, answer=Customer, resource=Customer,
    ),
    Route(
        method="PUT", path="/v1/customers/{customer_id}", name="putCustomer", summary="Create or replace a customer.",
        scopes=routes.OPERATOR, handler=put, body=CustomerFields, answer=Customer, is_change=True, resource=Customer,
        location="/v1/customers/{id}",
    ),
    Route(
        method="DELETE", path="/v1/customers/{customer_id}", name="deleteCustomer",
        summary="Delete a customer with its endpoints, subscriptions and keys. Its id cannot be used again.",
        scopes=routes.OPERATOR, handler=delete, status=204, is_change=True, resource=Customer,
    ),
)  # fmt: skip
