"""Consumers of dead letters: made, listed, moved, deleted.

Runs in the API.
"""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Literal

import pydantic
from pydantic import AwareDatetime, Field

from subscriptions_db.api.contract import audit, problems, routes
from subscriptions_db.api.contract.routes import Call, Nothing, Route, Whose
from subscriptions_db.api.deliveries.dead_letters import Asked, Cursor, selection, whose
from subscriptions_db.archive.search import consumers, cursor

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]


class Place(Nothing):
    """Where to go on: one of these."""

    to: Literal["beginning", "end"] | None = None
    cursor: Cursor | None = None
    """Behind the page of `GET /v1/dead-letters` that gave it."""
    since: AwareDatetime | None = None
    """At the letters that were archived since then."""


class NewConsumer(Place, Asked):
    """A consumer to be made. What it asks for is its own for good. It begins at the beginning, or where it is told to."""

    name: Name


class Consumer(pydantic.BaseModel):
    """Pollers who share the work, and what they ask for."""

    name: str
    endpoint: str | None
    event_type: str | None
    tenant: str | None
    reason: str | None
    cursor: str
    """Up to here all was given to a poller, or is none of the consumer's."""
    unacknowledged: int
    created_at: dt.datetime


class Consumers(pydantic.BaseModel):
    """A customer's consumers."""

    items: list[Consumer]


def found(call: Call) -> Consumer:
    """Return the consumer that the path names; raise that there is none."""
    for one in consumers.consumers(call.connection, whose(call), call.path["consumer_id"]):
        return _shown(one)
    raise problems.not_found("consumer")


def list_(call: Call) -> Consumers:
    """Return a customer's consumers."""
    return Consumers(items=[_shown(one) for one in consumers.consumers(call.connection, whose(call))])


def create(call: Call) -> Consumer:
    """Make a consumer."""
    wanted, customer_id = call.body_as(NewConsumer), whose(call)
    bound = call.bounds.max_consumers_per_customer
    if len(consumers.consumers(call.connection, customer_id)) >= bound:
        raise problems.Refused(409, f"there are {bound} consumers, the most there may be: delete some")
    after = _position(call, customer_id, wanted) or 0
    if not consumers.create(call.connection, customer_id, wanted.name, selection(wanted), after=after):
        raise problems.Refused(409, "there is a consumer with this name, which stays as it is", ("name", "is taken"))
    audit.write(call, "create", "consumer", wanted.name, customer_id=customer_id, after=wanted.model_dump(exclude_none=True))
    [made] = consumers.consumers(call.connection, customer_id, wanted.name)
    return _shown(made)


def delete(call: Call) -> None:
    """Forget a consumer and what its pollers have. No letter changes."""
    before, customer_id = found(call), whose(call)
    consumers.delete(call.connection, customer_id, before.name)
    audit.write(call, "delete", "consumer", before.name, customer_id=customer_id, before=before.model_dump())


def seek(call: Call) -> Consumer:
    """Go on elsewhere. What pollers have now is forgotten, and acknowledges nothing."""
    before, customer_id = found(call), whose(call)
    after = _position(call, customer_id, call.body_as(Place))
    if after is None:
        raise problems.invalid(("", "say where: to, cursor or since"))
    consumers.seek(call.connection, customer_id, before.name, after=after)
    moved = found(call)
    told = {"before": {"cursor": before.cursor}, "after": {"cursor": moved.cursor}}
    audit.write(call, "seek", "consumer", before.name, customer_id=customer_id, **told)
    return moved


def _position(call: Call, customer_id: str, place: Place) -> int | None:
    """Return behind which position a place is; None where none is named."""
    named = place.model_dump(include=set(Place.model_fields), exclude_none=True)
    if len(named) > 1:
        raise problems.invalid(*((name, "stands beside another place: name one") for name in named))
    if place.cursor is not None:
        return cursor.position_of(place.cursor)
    if place.since is not None:
        return consumers.position_before(call.connection, customer_id, place.since)
    if place.to is not None:
        return consumers.end(call.connection, customer_id) if place.to == "end" else 0
    return None


def _shown(one: consumers.Consumer) -> Consumer:
    return Consumer(
        name=one.name,
        endpoint=one.selection.endpoint_id,
        event_type=one.selection.event_type,
        tenant=one.selection.tenant_id,
        reason=one.selection.reason,
        cursor=cursor.of_position(one.read_until),
        unacknowledged=one.unacknowledged,
        created_at=one.created_at,
    )


ROUTES = (
    Route(
        method="GET", path="/v1/dead-letter-consumers", name="listConsumers", summary="All consumers of dead letters.",
        scopes=routes.BROWSERS, handler=list_, query=Whose, answer=Consumers,
    ),
    Route(
        method="POST", path="/v1/dead-letter-consumers", name="createConsumer", summary="Make a consumer of dead letters.",
        scopes=routes.ADMINS, handler=create, query=Whose, body=NewConsumer, answer=Consumer, status=201, is_change=True,
    ),
    Route(
        method="GET", path="/v1/dead-letter-consumers/{consumer_id}", name="getConsumer", summary="A consumer, by its name.",
        scopes=routes.BROWSERS, handler=found, query=Whose, answer=Consumer,
    ),
    Route(
        method="DELETE", path="/v1/dead-letter-consumers/{consumer_id}", name="deleteConsumer",
        summary="Forget a consumer and what its pollers have. No letter changes.",
        scopes=routes.ADMINS, handler=delete, query=Whose, status=204, is_change=True,
    ),
    Route(
        method="POST", path="/v1/dead-letter-consumers/{consumer_id}/seek", name="seekConsumer",
        summary="Go on elsewhere. Receipts from before acknowledge nothing.",
        scopes=routes.ADMINS, handler=seek, query=Whose, body=Place, answer=Consumer, is_change=True,
    ),
)  # fmt: skip
