"""Subscriptions and their filters: made, changed, paused, deleted.

Runs in the API. A customer subscribes by itself to what it was granted only (see subscriptions_db/api/customers.py). What the
operator has registered for it beyond that, it may pause, resume and delete, but not change: another event type would widen it.
"""

from __future__ import annotations

from typing import Any

from delivery.model import PLATFORM
from subscriptions_db.api import change_log, customers, problems, routes, rows, shapes
from subscriptions_db.api.routes import Call, Nothing, Page, Route
from subscriptions_db.sql import query

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


def list_(call: Call) -> shapes.Subscriptions:
    """Return a page of subscriptions."""
    wanted = call.query_as(Which)
    only = {"endpoint": wanted.endpoint, "customer": wanted.customer}
    items, cursor = rows.page(call, "subscription", rows.each(shapes.subscription), **only)
    return shapes.Subscriptions(items=items, next_cursor=cursor)


def get(call: Call) -> shapes.Subscription:
    """Return a subscription."""
    return shapes.subscription(_id(call), rows.found(call, "subscription", _id(call)))


def create(call: Call) -> shapes.Registered:
    """Make a subscription to an endpoint."""
    rows.require_room(call, "subscription", call.bounds.max_subscriptions_per_customer)
    document = dict(call.document)
    subscription_id = rows.id_for(call, "subscription", document.pop("id", None), prefix="sub")
    _require_bounded(document)
    _require_granted(call, document)
    return _put(call, {"id": subscription_id} | document, _owner(call, document["endpoint"]))


def update(call: Call) -> shapes.Registered:
    """Change what is given, and keep the rest."""
    before = rows.held(call, "subscription", _id(call))
    document = {"id": _id(call)} | shapes.subscription_document(before) | call.document
    _require_bounded(document)
    _require_granted(call, document)
    return _put(call, document, _owner(call, before["endpoint"]))


def _put(call: Call, document: dict[str, Any], customer_id: str | None) -> shapes.Registered:
    strict = call.query_as(Strictly).strict
    result = rows.put(call, {"subscriptions": [document]}, customer_id=customer_id, strict=strict)
    shown = shapes.subscription(document["id"], rows.found(call, "subscription", document["id"]))
    doubts = [shapes.Doubt(path=one.path.partition(".")[2], problem=one.problem) for one in result.warnings]
    return shapes.Registered(**shown.model_dump(), warnings=doubts)


def delete(call: Call) -> None:
    """Delete a subscription."""
    rows.delete(call, "subscription", _id(call), lambda row: _owner(call, row["endpoint"]))


def pause(call: Call) -> shapes.Subscription:
    """Skip what is due to it from now on."""
    return _set_status(call, "paused")


def resume(call: Call) -> shapes.Subscription:
    """Send again what is due to it."""
    return _set_status(call, "active")


def _set_status(call: Call, status: str) -> shapes.Subscription:
    before = rows.held(call, "subscription", _id(call))
    call.connection.execute(query("set_subscription_status"), {"id": _id(call), "status": status})
    if before["status"] != status:
        was, after = {"status": before["status"]}, {"status": status}
        owner = _owner(call, before["endpoint"])
        change_log.write(call, "update", "subscription", _id(call), customer_id=owner, before=was, after=after)
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
        scopes=routes.READERS, handler=list_, query=Which, answer=shapes.Subscriptions,
    ),
    Route(
        method="POST", path="/v1/subscriptions", name="createSubscription", summary="Subscribe an endpoint to events.",
        scopes=routes.ADMINS, handler=create, query=Strictly, body=shapes.NewSubscription, answer=shapes.Registered,
        status=201, is_change=True,
    ),
    Route(
        method="GET", path=_ONE, name="getSubscription", summary="A subscription.",
        scopes=routes.READERS, handler=get, answer=shapes.Subscription,
    ),
    Route(
        method="PATCH", path=_ONE, name="updateSubscription", summary="Change what is given, and keep the rest.",
        scopes=routes.ADMINS, handler=update, query=Strictly, body=shapes.SubscriptionChanges, answer=shapes.Registered,
        is_change=True,
    ),
    Route(
        method="DELETE", path=_ONE, name="deleteSubscription", summary="Delete a subscription.",
        scopes=routes.ADMINS, handler=delete, status=204, is_change=True,
    ),
    Route(
        method="POST", path=f"{_ONE}/pause", name="pauseSubscription", summary="Skip what is due to it from now on.",
        scopes=routes.ADMINS, handler=pause, answer=shapes.Subscription, is_change=True,
    ),
    Route(
        method="POST", path=f"{_ONE}/resume", name="resumeSubscription", summary="Send again what is due to it.",
        scopes=routes.ADMINS, handler=resume, answer=shapes.Subscription, is_change=True,
    ),
)  # fmt: skip
