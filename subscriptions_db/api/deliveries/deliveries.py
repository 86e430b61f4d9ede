"""Search the deliveries of the last days, and return one delivery with its attempts.

Runs in the API.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Sequence
from typing import Any, Literal

from subscriptions_db import disclosure
from subscriptions_db.api.contract import expansion, problems, routes
from subscriptions_db.api.contract.routes import Call, CustomerQuery, Route
from subscriptions_db.api.deliveries import attempts, dead_letters, record_pages
from subscriptions_db.api.deliveries.attempts import Attempt
from subscriptions_db.api.deliveries.dead_letters import Reason, Text
from subscriptions_db.archive.search import attempts as archived_attempts
from subscriptions_db.archive.search import deliveries
from subscriptions_db.archive.search.archived_dead_letters import LetterState
from subscriptions_db.archive.search.deliveries import DeliveryStatus


class DeliveryQuery(record_pages.RecordQuery, expansion.ExpandQuery):
    """The customer, the page and the criteria of a search for deliveries. An omitted criterion matches everything."""

    q: Text | None = None
    """Only deliveries with this text in the event type or an id of event, delivery or subscription, in upper or lower case."""
    # A Literal instead of the enum: OpenAPI describes query parameters inline, and an enum would become a reference.
    status: (
        Literal[DeliveryStatus.DELIVERED, DeliveryStatus.WAITING, DeliveryStatus.DEAD_LETTERED, DeliveryStatus.SKIPPED] | None
    ) = None
    """Only deliveries with this status."""
    reason: Reason | None = None
    """Only deliveries with this reason."""


class OneDeliveryQuery(CustomerQuery, expansion.ExpandQuery):
    """The customer that owns the delivery, and whether the answer also has the whole endpoint of the delivery."""


class Delivery(expansion.Expandable):
    """One event due to one subscription, or one batch of events for an endpoint, with its present status."""

    webhook_id: str
    """The `webhook-id` of the delivery, which is equal for all its attempts."""
    endpoint: str
    """The id of the endpoint."""
    event_id: str | None
    """The id of the event. Null: a batch."""
    event_type: str | None
    """The type of the event. Null: a batch."""
    tenant: str | None
    """The tenant of the event. Null: a batch."""
    subscription: str | None
    """The id of the subscription that matched. Null: a batch."""
    events: int
    """Number of events. For a batch, `event_id`, `event_type`, `tenant` and `subscription` are null."""
    status: DeliveryStatus
    """The present status."""
    reason: str | None
    """The reason why the delivery has not arrived. With a dead letter: the reason of the newest one. Without a dead letter: the
    error class of the newest attempt, or the reason for no attempt. Null: the delivery has arrived."""
    began_at: dt.datetime
    """Time of the first record: the first attempt, or an earlier outcome without an attempt."""
    newest_at: dt.datetime
    """Time of the record that decides the status."""
    attempts: int
    """Attempts in the archive, among the newest 200 records of the delivery."""
    dead_letters: int
    """Dead letters of the newest attempt or outcome. A delivered batch has one for each event that the receiver rejected."""
    dead_letter: str | None
    """The id of the newest dead letter that `dead_letters` counts. Null: there is none."""
    dead_letter_state: LetterState | None
    """The state of the dead letter `dead_letter`. Null: there is none."""


class Deliveries(routes.BoundedListPage):
    """A page of deliveries, the newest first."""

    items: list[Delivery]
    """The deliveries of the page."""


class DeliveryHistory(Delivery):
    """A delivery with its attempts."""

    history: list[Attempt]
    """The attempts of the delivery, the newest first; at most 200 attempts and 1 MiB."""


def list_(call: Call) -> Deliveries:
    """Return a page of deliveries.

    Raise RegistrationError for an invalid cursor, and Refused with 422 as `dead_letters.customer_of` does.
    """
    wanted = call.query_as(DeliveryQuery)
    asked = deliveries.DeliverySearch(
        endpoint_id=wanted.endpoint,
        event_type=wanted.event_type,
        tenant_id=wanted.tenant,
        status=wanted.status,
        reason=wanted.reason,
        webhook_id=wanted.webhook_id,
        since=wanted.since,
        until=wanted.until,
        url=wanted.url,
        text=wanted.q,
    )
    customer_id, start = dead_letters.customer_of(call), wanted.start()
    found = deliveries.search(call.connection, customer_id, asked, start=start, limit=wanted.limit)
    endpoints = expansion.EndpointReader(call, wanted.expand)
    items = expansion.fitting_part(found.deliveries, lambda part: _expanded(part, endpoints), wanted.expand)
    further = found.further if len(items) == len(found.deliveries) else found.places[len(items) - 1]
    count = functools.partial(deliveries.count, call.connection, customer_id, asked)
    page = record_pages.fields(wanted, found.places[: len(items)], further, count)
    return Deliveries(items=items[::-1] if start.is_backwards else items, **page)


def get(call: Call) -> DeliveryHistory:
    """Return a delivery with its newest attempts.

    Raise Refused with 404 if the archive has no records of the delivery, and with 422 as `dead_letters.customer_of` does.
    """
    customer_id, webhook_id = dead_letters.customer_of(call), call.path["webhook_id"]
    found = deliveries.get(call.connection, customer_id, webhook_id)
    if found is None:
        raise problems.not_found("delivery")
    asked = archived_attempts.AttemptSearch(webhook_id=webhook_id)
    history = archived_attempts.search(call.connection, customer_id, asked, limit=routes.MAX_PAGE)
    endpoints = expansion.EndpointReader(call, call.query_as(OneDeliveryQuery).expand)
    [shown] = _expanded([found], endpoints)
    return DeliveryHistory(**dict(shown), history=routes.fitting_part(attempts.shown(history)))


def _expanded(found: Sequence[deliveries.DeliverySummary], endpoints: expansion.EndpointReader) -> list[Delivery]:
    expanded = endpoints.expanded(summary.endpoint_id for summary in found)
    return [Delivery(**_shown(summary), expanded=expanded.get(summary.endpoint_id)) for summary in found]


def _shown(summary: deliveries.DeliverySummary) -> dict[str, Any]:
    return {
        "webhook_id": summary.webhook_id,
        "endpoint": summary.endpoint_id,
        "event_id": summary.event_id,
        "event_type": summary.event_type,
        "tenant": summary.tenant_id,
        "subscription": summary.subscription_id,
        "events": summary.events,
        "status": summary.status,
        "reason": disclosure.word(summary.reason),
        "began_at": summary.began_at,
        "newest_at": summary.newest_at,
        "attempts": summary.attempts,
        "dead_letters": summary.dead_letters,
        "dead_letter": None if summary.dead_letter is None else str(summary.dead_letter),
        "dead_letter_state": summary.dead_letter_state,
    }


ROUTES = (
    Route(
        method="GET", path="/v1/deliveries", name="listDeliveries",
        summary="Search the deliveries of the last days, the newest first, each with its status.",
        scopes=routes.READERS, handler=list_, query=DeliveryQuery, answer=Deliveries,
    ),
    Route(
        method="GET", path="/v1/deliveries/{webhook_id}", name="getDelivery",
        summary="Get a delivery of the last days with its attempts.",
        scopes=routes.READERS, handler=get, query=OneDeliveryQuery, answer=DeliveryHistory,
    ),
)  # fmt: skip
