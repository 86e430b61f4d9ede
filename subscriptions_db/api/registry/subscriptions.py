"""Subscriptions and their filters: made, changed, paused, deleted.

Runs in the API. A customer subscribes by itself to what it was granted only (see subscriptions_db/api/registry/customers.py).
What the operator has registered for it beyond that, it may pause, resume and delete, but not change: another event type would
widen it.
"""

from __future__ import annotations

from typing import Any

from delivery.model import PLATFORM
from subscriptions_db.api.contract import audit, crud, problems, routes, schemas
from subscriptions_db.api.contract.routes import Call, Nothing, Page, Route
from subscriptions_db.api.registry import customers
from subscriptions_db.postgres.sql import query

MAX_SCOPES = 10_000


class Which(Page):
    """Which subscriptions."""

    endpoint: str | None = None
    """Only those to this endpoint."""
    customer: str | None = None
    """Only of this customer."""


class Strictly(Nothing):
    """How doubtful registrations are taken."""

    strict: bool = False
    """Refuse what would be answered with `warnings`."""


def list_(call: Call) -> schemas.Subscriptions:
    """Return a page of subscriptions."""
    wanted = call.query_as(Which)
    only = {"endpoint": wanted.endpoint, "customer": wanted.customer}
    items, cursor = crud.page(call, "subscription", crud.each(schemas.subscription), **only)
    return schemas.Subscriptions(items=items, next_cursor=cursor)


def get(call: Call) -> schemas.Subscription:
    """Return a subscription."""
    return schemas.subscription(_id(call), crud.found(call, "subscription", _id(call)))


def create(call: Call) -> schemas.Registered:
    """Make a subscription to an endpoint."""
    crud.require_room(call, "subscription", call.bounds.max_subscriptions_per_customer)
    document = dict(call.document)
    subscription_id = crud.id_for(call, "subscription", document.pop("id", None), prefix="sub")
    _require_bounded(document)
    _require_granted(call, document)
    return _put(call, {"id": subscription_id} | document, _owner(call, document["endpoint"]))


def update(call: Call) -> schemas.Registered:
    """Change what is given, and keep the rest."""
    before = crud.held(call, "subscription", _id(call))
    document = {"id": _id(call)} | schemas.subscription_document(before) | call.document
    _require_bounded(document)
    _require_granted(call, document)
    return _put(call, document, _owner(call, before["endpoint"]))


def _put(call: Call, document: dict[str, Any], customer_id: str | None) -> schemas.Registered:
    strict = call.query_as(Strictly).strict
    result = crud.put(call, {"subscriptions": [document]}, customer_id=customer_id, strict=strict)
    shown = schemas.subscription(document["id"], crud.found(call, "subscription", document["id"]))
    doubts = [schemas.Doubt(path=one.path.partition(".")[2], problem=one.problem) for one in result.warnings]
    return schemas.Registered(**shown.model_dump(), warnings=doubts)


def delete(call: Call) -> None:
    """Delete a subscription."""
    crud.delete(call, "subscription", _id(call), lambda row: _owner(call, row["endpoint"]))


def pause(call: Call) -> schemas.Subscription:
    """Skip what is due to it from now on."""
    return _set_status(call, "paused")


def resume(call: Call) -> schemas.Subscription:
    """Send again what is due to it."""
    return _set_status(call, "active")


def _set_status(call: Call, status: str) -> schemas.Subscription:
    before = crud.held(call, "subscription", _id(call))
    call.connection.execute(query("set_subscription_status"), {"id": _id(call), "status": status})
    if before["status"] != status:
        was, after = {"status": before["status"]}, {"status": status}
        owner = _owner(call, before["endpoint"])
        audit.write(call, "update", "subscription", _id(call), customer_id=owner, before=was, after=after)
    return get(call)


def _require_bounded(document: dict[str, Any]) -> None:
    """Raise for more scope rows than can be written without keeping other writers waiting. `fanout apply` has no such bound."""
    for field in ("tenants", "except_tenants", "sub_tenants", "except_sub_tenants"):
        given = document.get(field) or ()
        if len(given) + (sum(map(len, given.values())) if isinstance(given, dict) else 0) > MAX_SCOPES:
            raise problems.invalid((field, f"names more than {MAX_SCOPES}"))


def _require_granted(call: Call, document: dict[str, Any]) -> None:
    customer_id = call.principal.customer_id
    if customer_id is None:
        return
    # Of operational events its own, whatever it is granted.
    if PLATFORM in map(str, document.get("tenants") or ()):
        raise problems.invalid(("tenants", f"{PLATFORM} is the operator's: name yourself, in sub_tenants"))
    if any(str(named) != customer_id for named in (document.get("sub_tenants") or {}).get(PLATFORM, ())):
        raise problems.invalid(("sub_tenants", f"of {PLATFORM} you may only name yourself"))
    granted = customers.granted(call, [customer_id])[customer_id]
    if granted.everything:
        return
    if document.get("everything"):
        raise problems.invalid(("everything", "is not granted to you: name tenants, or ask the operator"))
    for field in ("tenants", "sub_tenants"):
        # `str`: an id may be written as a number.
        if any(str(tenant_id) not in {*granted.tenants, PLATFORM} for tenant_id in document.get(field) or ()):
            raise problems.invalid((field, "holds a tenant that is not granted to you: ask the operator"))


def _owner(call: Call, endpoint_id: str) -> str | None:
    found = call.connection.execute(query("customer_of"), {"endpoint_id": endpoint_id}).fetchone()
    return None if found is None else str(found["customer_id"])


def _id(call: Call) -> str:
    return call.path["subscription_id"]


_ONE = "/v1/subscriptions/{subscription_id}"
ROUTES = (
    Route(
        method="GET", path="/v1/subscriptions", name="listSubscriptions", summary="Subscriptions, by their ids.",
        scopes=routes.READERS, handler=list_, query=Which, answer=schemas.Subscriptions,
    ),
    Route(
        method="POST", path="/v1/subscriptions", name="createSubscription", summary="Subscribe an endpoint to events.",
        scopes=routes.ADMINS, handler=create, query=Strictly, body=schemas.NewSubscription, answer=schemas.Registered,
        status=201, is_change=True,
    ),
    Route(
        method="GET", path=_ONE, name="getSubscription", summary="A subscription.",
        scopes=routes.READERS, handler=get, answer=schemas.Subscription,
    ),
    Route(
        method="PATCH", path=_ONE, name="updateSubscription", summary="Change what is given, and keep the rest.",
        scopes=routes.ADMINS, handler=update, query=Strictly, body=schemas.SubscriptionChanges, answer=schemas.Registered,
        is_change=True,
    ),
    Route(
        method="DELETE", path=_ONE, name="deleteSubscription", summary="Delete a subscription.",
        scopes=routes.ADMINS, handler=delete, status=204, is_change=True,
    ),
    Route(
        method="POST", path=f"{_ONE}/pause", name="pauseSubscription", summary="Skip what is due to it from now on.",
        scopes=routes.ADMINS, handler=pause, answer=schemas.Subscription, is_change=True,
    ),
    Route(
        method="POST", path=f"{_ONE}/resume", name="resumeSubscription", summary="Send again what is due to it.",
        scopes=routes.ADMINS, handler=resume, answer=schemas.Subscription, is_change=True,
    ),
)  # fmt: skip
