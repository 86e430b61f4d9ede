"""Create, change, pause and delete subscriptions with their filters.

Runs in the API. A customer may subscribe only to granted tenants (see subscriptions_db/api/registry/customers.py), and to its
own operational events. A key that is limited to endpoints may not subscribe to operational events. The operator may make a
subscription beyond the customer's grants. The customer may pause, resume and delete such a subscription. A change by the
customer is refused if the changed subscription has a tenant that is not granted. Otherwise the customer could change the event
type, for example, and get other events of this tenant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from delivery.registry_model import PLATFORM
from subscriptions_db.api.contract import crud, expansion, problems, request_audit, routes, schemas
from subscriptions_db.api.contract.routes import Call, NoParameters, Route
from subscriptions_db.api.registry import customers
from subscriptions_db.postgres.sql import query

MAX_SCOPES = 10_000
"""Maximum entries in each scope field of one request, so that no request locks out other writers for long."""


class SubscriptionQuery(schemas.SearchQuery, expansion.ExpandQuery):
    """Search criteria for subscriptions. `q` is searched in id, event type and description."""

    endpoint: str | None = None
    """Only subscriptions of this endpoint."""
    event_type: str | None = None
    """Only subscriptions with exactly this event type, such as `order.*`."""
    status: Literal["active", "paused"] | None = None
    """Only subscriptions with this status."""


class ListedSubscription(schemas.Subscription, expansion.Expandable):
    """A subscription, with its endpoint if the request asks for it."""


class Subscriptions(routes.ListPage):
    """A page of subscriptions."""

    items: list[ListedSubscription]
    """The subscriptions of the page."""


class StrictQuery(NoParameters):
    """The query parameters of requests that create a subscription or change its fields."""

    strict: bool = False
    """Refuse a subscription that may match no event, instead of answering with `warnings`."""


def list_(call: Call) -> Subscriptions:
    """Return a page of subscriptions; raise Refused with 422 if a customer's key names another customer."""
    wanted = call.query_as(SubscriptionQuery)
    crud.require_own(call, wanted.customer)
    endpoints = expansion.EndpointReader(call, wanted.expand)

    def show(rows: Mapping[str, dict[str, Any]]) -> list[ListedSubscription]:
        shown = [schemas.subscription(row_id, row) for row_id, row in rows.items()]
        expanded = endpoints.expanded(subscription.endpoint for subscription in shown)
        return [ListedSubscription(**dict(row), expanded=expanded.get(row.endpoint)) for row in shown]

    return Subscriptions(**crud.page(call, "subscription", show, **wanted.criteria())._asdict())


def get(call: Call) -> schemas.Subscription:
    """Return a subscription; raise Refused with 404 if there is no such subscription."""
    return schemas.subscription(_id(call), crud.existing_row(call, "subscription", _id(call)))


def create(call: Call) -> schemas.RegisteredSubscription:
    """Create a subscription of an endpoint.

    Raise RegistrationError if the fields are refused, or with `strict` for a warning. Raise Refused:

    * 409: the id is taken.
    * 422: the subscription is for tenants to which the key may not subscribe, or has more than MAX_SCOPES entries in a scope
      field.
    * 422: a customer's key chooses an id.
    * 429: the customer's quota of subscriptions is used up, or its quota of tenants and sub-tenants in all its subscriptions.
      An operator's key gets no 429.
    """
    crud.require_quota(call, "subscription", call.bounds.max_subscriptions_per_customer)
    wanted = call.body_as(schemas.NewSubscription)
    document = call.document | {"id": crud.id_for(call, "subscription", wanted.id, prefix="sub")}
    _require_bounded(document)
    _require_granted(call, document)
    # Until the transaction ends, nobody can delete the endpoint. Otherwise the subscription would be missing when its parts are
    # written.
    owner = _owner(call, wanted.endpoint, "keep_endpoint")
    _require_scope_quota(call, adding=_scopes_of(document))
    return _put(call, document, owner)


def update(call: Call) -> schemas.RegisteredSubscription:
    """Change the given fields of a subscription, and keep its other fields.

    Raise RegistrationError if the fields are refused, or with `strict` for a warning. Raise Refused:

    * 404: there is no such subscription.
    * 412: `If-Match` or `If-None-Match` does not hold.
    * 422: the subscription would be for tenants to which the key may not subscribe, or have more than MAX_SCOPES entries in
      a scope field.
    * 422: `If-Match` or `If-None-Match` is malformed.
    * 429: the change adds tenants or sub-tenants, and the customer's quota of tenants and sub-tenants in all its subscriptions
      is used up. An operator's key gets no 429.
    """
    before = crud.locked_row(call, "subscription", _id(call))
    crud.require_conditions(call, get)
    document = {"id": _id(call)} | schemas.subscription_document(before) | call.document
    _require_bounded(document)
    _require_granted(call, document)
    _require_scope_quota(call, adding=_scopes_of(document) - len(before["scopes"]))
    return _put(call, document, _owner(call, before["endpoint"]))


def _put(call: Call, document: dict[str, Any], customer_id: str | None) -> schemas.RegisteredSubscription:
    strict = call.query_as(StrictQuery).strict
    result = crud.put(call, {"subscriptions": [document]}, customer_id=customer_id, strict=strict)
    shown = schemas.subscription(document["id"], crud.existing_row(call, "subscription", document["id"]))
    warnings = [
        schemas.LintWarning(path=warning.path.partition(".")[2], problem=warning.problem) for warning in result.warnings
    ]
    return schemas.RegisteredSubscription(**shown.model_dump(), warnings=warnings)


def delete(call: Call) -> None:
    """Delete a subscription. Raise Refused as `crud.delete` does."""
    crud.delete(call, "subscription", _id(call), get, lambda row: _owner(call, row["endpoint"]))


def pause(call: Call) -> schemas.Subscription:
    """Pause a subscription: its deliveries are skipped from now on.

    Raise Refused with 404 if there is no such subscription. Raise it with 412 or 422 if `If-Match` or `If-None-Match` does not
    hold, or is malformed.
    """
    return _set_status(call, "paused")


def resume(call: Call) -> schemas.Subscription:
    """Resume a paused subscription. Raise Refused as `pause` does."""
    return _set_status(call, "active")


def _set_status(call: Call, status: str) -> schemas.Subscription:
    before = crud.locked_row(call, "subscription", _id(call))
    crud.require_conditions(call, get)
    call.connection.execute(query("set_subscription_status"), {"id": _id(call), "status": status})
    if before["status"] != status:
        was, after = {"status": before["status"]}, {"status": status}
        owner = _owner(call, before["endpoint"])
        request_audit.write(call, "update", "subscription", _id(call), customer_id=owner, before=was, after=after)
    return get(call)


def _require_bounded(document: dict[str, Any]) -> None:
    """Raise Refused with 422 if one field has more than `MAX_SCOPES` tenants and sub-tenants. `fanout apply` has no limit."""
    for field in ("tenants", "except_tenants", "sub_tenants", "except_sub_tenants"):
        given = document.get(field) or ()
        if len(given) + (sum(map(len, given.values())) if isinstance(given, dict) else 0) > MAX_SCOPES:
            raise problems.invalid((field, f"has more than {MAX_SCOPES} entries: split the subscription"))


def _scopes_of(document: dict[str, Any]) -> int:
    """Return the number of tenants and sub-tenants that a subscription names. A repeated one counts each time."""
    tenants = (len(document.get(field) or ()) for field in ("tenants", "except_tenants"))
    by_tenant = ((document.get(field) or {}).values() for field in ("sub_tenants", "except_sub_tenants"))
    return sum(tenants) + sum(len(sub_tenants) for given in by_tenant for sub_tenants in given)


def _require_scope_quota(call: Call, *, adding: int) -> None:
    """Raise Refused with 429 if `adding` more tenants and sub-tenants would bring the customer's subscriptions above the quota.

    The quota exists because every reader of the registry holds all tenants and sub-tenants of subscriptions in memory. A
    request with an operator's key has no quota, nor has a change that adds no tenants or sub-tenants. Concurrent requests of
    the customer wait for each other, as in `crud.require_quota`.
    """
    own, quota = call.principal.customer_id, call.bounds.max_scopes_per_customer
    if own is None or adding <= 0:
        return
    if crud.counted(call, "count_scopes", customer=own, most=quota + 1)["rows"] + adding > quota:
        raise problems.quota_reached(
            f"the customer's subscriptions would name more than {quota} tenants and sub-tenants, its quota. Nothing was "
            "changed: name fewer, or ask the operator"
        )


def _require_granted(call: Call, document: dict[str, Any]) -> None:
    customer_id = call.principal.customer_id
    if customer_id is None:
        return
    # A customer may always subscribe to its own operational events.
    if PLATFORM in map(str, document.get("tenants") or ()):
        problem = f"only the operator may name tenant {PLATFORM}: write your own customer id into sub_tenants.{PLATFORM}"
        raise problems.invalid(("tenants", problem))
    if any(str(named) != customer_id for named in (document.get("sub_tenants") or {}).get(PLATFORM, ())):
        raise problems.invalid(
            ("sub_tenants", f"of tenant {PLATFORM} you may name your own customer id only: leave other ids out")
        )
    if call.principal.endpoints is not None and PLATFORM in map(str, document.get("sub_tenants") or ()):
        # Operational events name every endpoint of the customer.
        raise problems.invalid(
            ("sub_tenants", f"a key limited to endpoints cannot subscribe to tenant {PLATFORM}: use a key without a limit")
        )
    granted = customers.tenant_grants(call, [customer_id])[customer_id]
    if granted.everything:
        return
    if document.get("everything"):
        raise problems.invalid(
            ("everything", "needs a grant of all tenants: name tenants in the field tenants, or ask the operator")
        )
    for field in ("tenants", "sub_tenants"):
        # `str`: an id may be written as a number.
        for tenant_id in map(str, document.get(field) or ()):
            if tenant_id not in {*granted.tenants, PLATFORM}:
                problem = f"contains tenant {tenant_id}, which is not granted to you: leave it out, or ask the operator"
                raise problems.invalid((field, problem))


def _owner(call: Call, endpoint_id: str, statement: str = "customer_of_endpoint") -> str | None:
    found = call.connection.execute(query(statement), {"endpoint_id": endpoint_id}).fetchone()
    return None if found is None else str(found["customer_id"])


def _id(call: Call) -> str:
    return call.path["subscription_id"]


_ONE = "/v1/subscriptions/{subscription_id}"
ROUTES = (
    Route(
        method="GET", path="/v1/subscriptions", name="listSubscriptions",
        summary="List subscriptions, sorted by id. `q` is searched in id, event type and description.",
        scopes=routes.REGISTRY_READERS, handler=list_, query=SubscriptionQuery, answer=Subscriptions,
    ),
    Route(
        method="POST", path="/v1/subscriptions", name="createSubscription", summary="Subscribe an endpoint to events.",
        scopes=routes.REGISTRY_WRITERS, handler=create, query=StrictQuery, body=schemas.NewSubscription,
        answer=schemas.RegisteredSubscription, status=201, is_change=True, location="/v1/subscriptions/{id}",
        resource=schemas.Subscription,
    ),
    Route(
        method="GET", path=_ONE, name="getSubscription", summary="Get a subscription.",
        scopes=routes.REGISTRY_READERS, handler=get, answer=schemas.Subscription, resource=schemas.Subscription,
    ),
    Route(
        method="PATCH", path=_ONE, name="updateSubscription", summary="Change the given fields of a subscription.",
        scopes=routes.REGISTRY_WRITERS, handler=update, query=StrictQuery, body=schemas.SubscriptionChanges,
        answer=schemas.RegisteredSubscription, is_change=True, resource=schemas.Subscription,
    ),
    Route(
        method="DELETE", path=_ONE, name="deleteSubscription", summary="Delete a subscription.",
        scopes=routes.REGISTRY_WRITERS, handler=delete, status=204, is_change=True, resource=schemas.Subscription,
    ),
    Route(
        method="POST", path=f"{_ONE}/pause", name="pauseSubscription",
        summary="Pause a subscription: its deliveries are skipped.",
        scopes=routes.REGISTRY_WRITERS, handler=pause, answer=schemas.Subscription, is_change=True,
        resource=schemas.Subscription,
    ),
    Route(
        method="POST", path=f"{_ONE}/resume", name="resumeSubscription", summary="Resume a paused subscription.",
        scopes=routes.REGISTRY_WRITERS, handler=resume, answer=schemas.Subscription, is_change=True,
        resource=schemas.Subscription,
    ),
)  # fmt: skip
