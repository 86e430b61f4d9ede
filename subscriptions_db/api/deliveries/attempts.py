"""Search the attempts of the last days.

Runs in the API.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from subscriptions_db import disclosure
from subscriptions_db.api.contract import expansion, routes
from subscriptions_db.api.contract.routes import Call, Route
from subscriptions_db.api.deliveries import dead_letters, record_pages
from subscriptions_db.api.deliveries.dead_letters import Text
from subscriptions_db.archive.ingest.archived_rows import AttemptRow
from subscriptions_db.archive.search import archive_positions, attempts


class AttemptQuery(record_pages.RecordQuery, expansion.ExpandQuery):
    """The customer, the page and the criteria of a search for attempts. An omitted criterion matches everything."""

    q: Text | None = None
    """Only attempts with this text in the ids of event and delivery, `detail` or the response, in upper or lower case."""
    status: Annotated[int, Field(ge=100, le=999)] | None = None
    """Only attempts with this HTTP status in the response."""
    error_class: Text | None = None
    """Only attempts that failed with this error class."""
    accepted: bool | None = None
    """True: only attempts that the endpoint accepted. False: only failed attempts."""


class Attempt(expansion.Expandable):
    """One request to an endpoint and its result."""

    id: str
    """The id, also for `POST /v1/attempts/{attempt_id}/resend`."""
    started_at: dt.datetime
    """When the request began."""
    endpoint: str
    """The id of the endpoint."""
    webhook_id: str
    """The `webhook-id` of the delivery, which is equal for all its attempts."""
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
    attempt: int
    """Attempt number; the first attempt is 1."""
    duration_ms: float
    """Milliseconds from the start of the request to its result."""
    status: int | None
    """HTTP status. Null: no response arrived."""
    error_class: str | None
    """The kind of the failure. Null: the endpoint accepted the request."""
    detail: str
    """The reason why no response arrived, for people. Empty: a response arrived, and `status` and `error_class` say the
    result."""
    response_headers: dict[str, str]
    """Headers of the response, by name in lower case, at most 1 KiB. Only names of a fixed list are kept, such as
    `content-type`, and values that look like credentials are `***`. Empty: no response arrived, it had no such header, or the
    endpoint accepted the request. The operator may keep the responses to accepted attempts too."""
    response: str
    """The beginning of the response, as text, at most 1 KiB. Secrets of the endpoint and texts that look like credentials are
    `***`. Empty: no response arrived, it had no body, the operator keeps none, or the endpoint accepted the request. The
    operator may keep the responses to accepted attempts too."""


class Attempts(routes.BoundedListPage):
    """A page of attempts, the newest first."""

    items: list[Attempt]
    """The attempts of the page."""


def list_(call: Call) -> Attempts:
    """Return a page of attempts.

    Raise RegistrationError for an invalid cursor, and Refused with 422 as `dead_letters.customer_of` does.
    """
    wanted = call.query_as(AttemptQuery)
    asked = attempts.AttemptSearch(
        endpoint_id=wanted.endpoint,
        event_type=wanted.event_type,
        tenant_id=wanted.tenant,
        status=wanted.status,
        error_class=wanted.error_class,
        is_accepted=wanted.accepted,
        webhook_id=wanted.webhook_id,
        since=wanted.since,
        until=wanted.until,
        url=wanted.url,
        text=wanted.q,
    )
    customer_id, start = dead_letters.customer_of(call), wanted.start()
    found = attempts.search(call.connection, customer_id, asked, start=start, limit=wanted.limit)
    endpoints = expansion.EndpointReader(call, wanted.expand)
    rows = list(zip(found.attempts, found.places, strict=False))
    items = expansion.fitting_part(rows, lambda part: _expanded(part, endpoints), wanted.expand)
    further = found.further if len(items) == len(found.attempts) else found.places[len(items) - 1]
    count = functools.partial(attempts.count, call.connection, customer_id, asked)
    page = record_pages.fields(wanted, found.places[: len(items)], further, count)
    return Attempts(items=items[::-1] if start.is_backwards else items, **page)


def shown(found: attempts.FoundAttempts) -> list[Attempt]:
    """Convert found attempts to the API's type."""
    return list(map(_shown, found.attempts, found.places))


def _expanded(
    rows: Sequence[tuple[AttemptRow, archive_positions.RecordPosition]], endpoints: expansion.EndpointReader
) -> list[Attempt]:
    expanded = endpoints.expanded(row.endpoint_id for row, _ in rows)
    return [_shown(row, place, expanded.get(row.endpoint_id)) for row, place in rows]


def _shown(row: AttemptRow, place: archive_positions.RecordPosition, expanded: expansion.Expanded | None = None) -> Attempt:
    return Attempt(
        id=place.text(),
        started_at=row.started_at,
        endpoint=row.endpoint_id,
        webhook_id=row.webhook_id,
        event_id=row.event_id,
        event_type=row.event_type,
        tenant=row.tenant_id,
        subscription=row.subscription_id,
        events=row.events,
        attempt=row.attempt,
        duration_ms=row.duration_ms,
        status=row.status,
        error_class=disclosure.word(row.error_class),
        detail=row.detail,
        response_headers=row.response_headers or {},
        response=row.response or "",
        expanded=expanded,
    )


ROUTES = (
    Route(
        method="GET", path="/v1/attempts", name="listAttempts",
        summary="Search the attempts of the last days, the newest first.",
        scopes=routes.READERS, handler=list_, query=AttemptQuery, answer=Attempts,
    ),
)  # fmt: skip
