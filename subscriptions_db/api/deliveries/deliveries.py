"""Search the deliveries of the last days, and see one with its attempts.

Runs in the API.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, Literal

import pydantic
from pydantic import AwareDatetime

from subscriptions_db import disclosure
from subscriptions_db.api.contract import problems, routes
from subscriptions_db.api.contract.routes import Call, Page, Route, Whose
from subscriptions_db.api.deliveries import attempts, dead_letters
from subscriptions_db.api.deliveries.attempts import Attempt
from subscriptions_db.api.deliveries.dead_letters import Reason, Text
from subscriptions_db.archive.search import attempts as archived_attempts
from subscriptions_db.archive.search import cursor, deliveries
from subscriptions_db.archive.search.archived_dead_letters import State
from subscriptions_db.archive.search.deliveries import Status
from subscriptions_db.manifest import manifest


class Which(Whose, Page):
    """Which deliveries. What is left out is not asked about."""

    endpoint: manifest.Id | None = None
    event_type: Text | None = None
    """An exact type, or a prefix wildcard such as `order.*`. A batch has no type."""
    tenant: manifest.Id | None = None
    # Named one by one, since parameters are described where they stand: the document has no place for what they refer to.
    status: Literal[Status.DELIVERED, Status.WAITING, Status.DEAD_LETTERED, Status.SKIPPED] | None = None
    reason: Reason | None = None
    webhook_id: Text | None = None
    since: AwareDatetime | None = None
    """Begun at this time or later …"""
    until: AwareDatetime | None = None
    """… and before this one."""


class Delivery(pydantic.BaseModel):
    """An event for a subscription, or a batch of them, and what has become of it by now."""

    webhook_id: str
    endpoint: str
    event_id: str | None
    event_type: str | None
    tenant: str | None
    subscription: str | None
    events: int
    """More than one in a batch, for which event, type, tenant and subscription are null."""
    status: Status
    reason: str | None
    """Why it is not delivered: the error class of the newest attempt, or why there was none. Null: it is."""
    began_at: dt.datetime
    """When it was first attempted, or told that it is not."""
    newest_at: dt.datetime
    """When that began by which it has its status."""
    attempts: int
    """As many as the archive still has, among its newest 200 records."""
    dead_letters: int
    """Of its newest attempt. For a batch, as many as its events that were not taken; it may be delivered and have some."""
    dead_letter: str | None
    """The id of the newest of them."""
    dead_letter_state: State | None


class Deliveries(pydantic.BaseModel):
    """A page of deliveries, the newest first."""

    items: list[Delivery]
    next_cursor: str | None
    """A page may be empty, and have older ones behind it."""


class Story(Delivery):
    """A delivery and its attempts."""

    history: list[Attempt]
    """The newest first, at most 200, and no more than fit into 1 MiB."""


def list_(call: Call) -> Deliveries:
    """Return a page of deliveries."""
    wanted = call.query_as(Which)
    asked = deliveries.Asked(
        endpoint_id=wanted.endpoint,
        event_type=wanted.event_type,
        tenant_id=wanted.tenant,
        status=wanted.status,
        reason=wanted.reason,
        webhook_id=wanted.webhook_id,
        since=wanted.since,
        until=wanted.until,
    )
    before = cursor.Moment.read(wanted.cursor) if wanted.cursor else None
    found = deliveries.search(call.connection, dead_letters.whose(call), asked, before=before, limit=wanted.limit)
    items = routes.fitting_part([Delivery(**_shown(one)) for one in found.deliveries])
    before = found.before if len(items) == len(found.deliveries) else found.places[len(items) - 1]
    return Deliveries(items=items, next_cursor=None if before is None else before.text())


def get(call: Call) -> Story:
    """Return a delivery with its attempts."""
    customer_id, webhook_id = dead_letters.whose(call), call.path["webhook_id"]
    found = deliveries.get(call.connection, customer_id, webhook_id)
    if found is None:
        raise problems.not_found("delivery")
    asked = archived_attempts.Asked(webhook_id=webhook_id)
    history = archived_attempts.search(call.connection, customer_id, asked, limit=routes.MAX_PAGE)
    return Story(**_shown(found), history=routes.fitting_part(attempts.shown(history)))


def _shown(one: deliveries.Delivery) -> dict[str, Any]:
    return {
        "webhook_id": one.webhook_id,
        "endpoint": one.endpoint_id,
        "event_id": one.event_id,
        "event_type": one.event_type,
        "tenant": one.tenant_id,
        "subscription": one.subscription_id,
        "events": one.events,
        "status": one.status,
        "reason": disclosure.word(one.reason),
        "began_at": one.began_at,
        "newest_at": one.newest_at,
        "attempts": one.attempts,
        "dead_letters": one.dead_letters,
        "dead_letter": None if one.dead_letter is None else str(one.dead_letter),
        "dead_letter_state": one.dead_letter_state,
    }


ROUTES = (
    Route(
        method="GET", path="/v1/deliveries", name="listDeliveries",
        summary="The deliveries of the last days, the newest first, each with what has become of it.",
        scopes=routes.READERS, handler=list_, query=Which, answer=Deliveries,
    ),
    Route(
        method="GET", path="/v1/deliveries/{webhook_id}", name="getDelivery",
        summary="A delivery of the last days, and its attempts.",
        scopes=routes.READERS, handler=get, query=Whose, answer=Story,
    ),
)  # fmt: skip
