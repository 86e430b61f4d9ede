"""Have what an endpoint did not take delivered again, once it is repaired.

Runs in the API. A redrive is asked for here, and carried out by `fanout archive`, as for letters named otherwise.
"""

from __future__ import annotations

import datetime as dt

from pydantic import AwareDatetime

from delivery.model import EndpointStatus
from subscriptions_db.api.contract import audit, crud, routes
from subscriptions_db.api.contract.routes import Call, Nothing, Route
from subscriptions_db.api.deliveries import dead_letter_actions
from subscriptions_db.api.deliveries.dead_letter_actions import Limit, Marked
from subscriptions_db.api.deliveries.dead_letters import Cursor
from subscriptions_db.archive.search import archived_dead_letters
from subscriptions_db.archive.search.archived_dead_letters import State
from subscriptions_db.archive.search.selection import Selection


class Recover(Nothing):
    """From when on."""

    since: AwareDatetime
    """What was given up at this time or later, and waits."""
    cursor: Cursor | None = None
    """`next_cursor` of the request before."""
    limit: Limit = dead_letter_actions.MAX_MARKED


class Recovered(Marked):
    """How many letters are delivered again, how to go on, and whether they can be."""

    status: EndpointStatus
    """The endpoint's, which stays as it is."""
    detail: str
    """For a person: what is still to be done, if anything."""


_DETAILS = {
    EndpointStatus.ACTIVE: "",
    EndpointStatus.PAUSED: "the endpoint is paused: what is redriven waits until it is resumed",
    EndpointStatus.DISABLED: "the endpoint is disabled: what is redriven waits until it is enabled",
}


def recover(call: Call) -> Recovered:
    """Ask for the letters of an endpoint that wait to be delivered again, a bounded number at a time."""
    wanted, endpoint_id = call.body_as(Recover), call.path["endpoint_id"]
    endpoint = crud.found(call, "endpoint", endpoint_id)
    customer_id = endpoint["customer"]
    marked = archived_dead_letters.mark_all(
        call.connection,
        customer_id,
        Selection(endpoint_id=endpoint_id, since=wanted.since),
        State.REDRIVING,
        after=dead_letter_actions.position_behind(wanted.cursor),
        limit=wanted.limit,
        now=dt.datetime.now(dt.UTC),
    )
    told = {"since": wanted.since.isoformat(), "count": marked.count, "until": str(marked.until)}
    audit.write(call, "recover", "endpoint", endpoint_id, customer_id=customer_id, after=told)
    status = EndpointStatus(endpoint["status"])
    return Recovered(**dict(dead_letter_actions.shown(marked)), status=status, detail=_DETAILS[status])


ROUTES = (
    Route(
        method="POST", path="/v1/endpoints/{endpoint_id}/recover", name="recoverEndpoint",
        summary="Have all dead letters of an endpoint that wait, given up since a time, delivered again. Enables nothing.",
        scopes=routes.ADMINS, handler=recover, body=Recover, answer=Recovered, is_change=True,
    ),
)  # fmt: skip
