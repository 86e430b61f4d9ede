"""Redrive the dead letters of an endpoint once its receiver is repaired.

Runs in the API, which only sets the state of the dead letters. `fanout archive` then enqueues them in the retry lane.
"""

from __future__ import annotations

import datetime as dt

from pydantic import AwareDatetime

from delivery.registry_model import EndpointStatus
from subscriptions_db.api.contract import crud, request_audit, routes
from subscriptions_db.api.contract.routes import Call, NoParameters, Route
from subscriptions_db.api.deliveries import dead_letter_actions
from subscriptions_db.api.deliveries.dead_letter_actions import Limit, MarkedLetters
from subscriptions_db.api.deliveries.dead_letters import Cursor
from subscriptions_db.archive.search import archived_dead_letters
from subscriptions_db.archive.search.archived_dead_letters import LetterState
from subscriptions_db.archive.search.selection import DeadLetterSearch


class RecoverEndpoint(NoParameters):
    """The body of a request to redrive dead letters of an endpoint. The body says which dead letters."""

    since: AwareDatetime
    """Redrive the waiting dead letters that were dead-lettered at this time or later."""
    cursor: Cursor | None = None
    """`next_cursor` of the previous answer. Null: begin at the oldest dead letter."""
    limit: Limit = dead_letter_actions.MAX_MARKED
    """Maximum dead letters of this request."""


class RecoveredEndpoint(MarkedLetters):
    """The number of dead letters that are redriven, where to continue, and the status of the endpoint."""

    status: EndpointStatus
    """The status of the endpoint, which this request does not change."""
    detail: str
    """For people: why the redriven deliveries wait. Empty: the endpoint is active, and its receiver permits deliveries.
    Deliveries may also wait because the receiver fails, which this text does not say."""


_DETAILS = {
    EndpointStatus.ACTIVE: "",
    EndpointStatus.PAUSED: "the endpoint is paused: redriven deliveries wait until it is resumed",
    EndpointStatus.DISABLED: "the endpoint is disabled: redriven deliveries wait until it is enabled",
}


_AWAITS_PERMISSION = (
    "the receiver has not permitted deliveries: redriven deliveries wait until it does. Ask it by "
    "POST /v1/endpoints/{id}/validate"
)


def detail_of(status: EndpointStatus, *, awaits_permission: bool) -> str:
    """Return why the endpoint's status, or a missing permission, makes redriven deliveries wait; empty if neither does.

    Deliveries also wait while the endpoint is suppressed (its receiver fails) or quarantined (its row cannot be used). The
    returned text does not name these two reasons.
    """
    return _DETAILS[status] or (_AWAITS_PERMISSION if awaits_permission else "")


def recover(call: Call) -> RecoveredEndpoint:
    """Request the redrive of an endpoint's waiting dead letters. The request's body selects the dead letters (RecoverEndpoint).

    Raise Refused with 404 if there is no such endpoint. Raise RegistrationError if the cursor is malformed.
    """
    wanted, endpoint_id = call.body_as(RecoverEndpoint), call.path["endpoint_id"]
    endpoint = crud.existing_row(call, "endpoint", endpoint_id)
    customer_id = endpoint["customer"]
    marked = archived_dead_letters.mark_all(
        call.connection,
        customer_id,
        DeadLetterSearch(endpoint_id=endpoint_id, since=wanted.since),
        LetterState.REDRIVING,
        after=dead_letter_actions.position_behind(wanted.cursor),
        limit=wanted.limit,
        now=dt.datetime.now(dt.UTC),
    )
    after = {"since": wanted.since.isoformat(), "count": marked.count, "until": str(marked.until)}
    request_audit.write(call, "recover", "endpoint", endpoint_id, customer_id=customer_id, after=after)
    status = EndpointStatus(endpoint["status"])
    detail = detail_of(status, awaits_permission=endpoint["awaits_permission"])
    return RecoveredEndpoint(**dict(dead_letter_actions.shown(marked)), status=status, detail=detail)


ROUTES = (
    Route(
        method="POST", path="/v1/endpoints/{endpoint_id}/recover", name="recoverEndpoint",
        summary="Redrive the waiting dead letters of an endpoint since a time. The endpoint's status stays unchanged.",
        scopes=routes.WRITERS, handler=recover, body=RecoverEndpoint, answer=RecoveredEndpoint, is_change=True,
        is_answer_progress=True,
    ),
)  # fmt: skip
