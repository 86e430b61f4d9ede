"""The catalogue of event types. The operator's to change; every customer reads all of it.

Runs in the API.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import pydantic

from delivery import errors
from subscriptions_db.api.contract import crud, routes
from subscriptions_db.api.contract.routes import Call, Page, Route
from subscriptions_db.manifest import event_types, manifest
from subscriptions_db.registration import registered_rows


class EventType(pydantic.BaseModel):
    """An event type in the catalogue."""

    id: str
    """The type, such as `order.created`."""
    description: str
    json_schema: Any
    """JSON Schema 2020-12 of the payload; null: none is known."""
    examples: list[Any]
    """Payloads. The first one is sent as a test event of this type."""
    deprecated: bool
    changed_at: dt.datetime


class EventTypes(pydantic.BaseModel):
    """A page of the catalogue."""

    items: list[EventType]
    next_cursor: str | None


class Wrong(pydantic.BaseModel):
    """Where a payload does not keep to its schema."""

    field: str
    problem: str


class InCatalogue(pydantic.BaseModel):
    """What the catalogue says of an event. It decides nothing: what is published is delivered byte for byte."""

    is_known: bool
    """Whether the type is in the catalogue. Topics have the types that they have: one that is not may still come."""
    is_deprecated: bool = False
    keeps_to_schema: bool | None = None
    """Null: there is no schema, or it could not be checked; `errors` says why."""
    errors: list[Wrong] = []
    """The first ten."""


def list_(call: Call) -> EventTypes:
    """Return a page of the catalogue."""
    items, cursor = crud.page(call, "event_type", crud.each(_shown))
    return EventTypes(items=items, next_cursor=cursor)


def get(call: Call) -> EventType:
    """Return an event type."""
    row_id = call.path["event_type_id"]
    return _shown(row_id, crud.found(call, "event_type", row_id))


def _shown(row_id: str, row: dict[str, Any]) -> EventType:
    return EventType(id=row_id, **row)


def put(call: Call) -> EventType:
    """Bring an event type to what is said of it, new or not."""
    row_id = call.path["event_type_id"]
    crud.hold(call, "event_type", row_id)
    crud.put(call, {"event_types": [call.document | {"id": row_id}]}, customer_id=None)
    return get(call)


def delete(call: Call) -> None:
    """Take an event type out of the catalogue."""
    crud.delete(call, "event_type", call.path["event_type_id"], lambda _: None)


def known(call: Call, event_type: str) -> dict[str, Any] | None:
    """Return what the catalogue has of an event type."""
    if "\0" in event_type:  # which Postgres does not even compare
        return None
    return registered_rows.rows_of(call.connection, {"event_type": [event_type]})["event_type"].get(event_type)


def explain(call: Call, event_type: str, payload: Any) -> InCatalogue:
    """Return what the catalogue says of an event."""
    row = known(call, event_type)
    if row is None:
        return InCatalogue(is_known=False)
    told = InCatalogue(is_known=True, is_deprecated=row["deprecated"])
    if row["json_schema"] is None:
        return told
    try:
        event_types.check(row["json_schema"], [])  # plain SQL registers too
        wrong = [Wrong(field=path, problem=problem) for path, problem in event_types.problems(row["json_schema"], payload)]
    except errors.RegistrationError as exc:
        return told.model_copy(update={"errors": [Wrong(field=exc.path, problem=exc.problem)]})
    return told.model_copy(update={"keeps_to_schema": not wrong, "errors": wrong})


ROUTES = (
    Route(
        method="GET", path="/v1/event-types", name="listEventTypes", summary="The catalogue of event types.",
        scopes=routes.READERS, handler=list_, query=Page, answer=EventTypes,
    ),
    Route(
        method="GET", path="/v1/event-types/{event_type_id}", name="getEventType",
        summary="An event type: what it is about, the schema of its payload, examples.",
        scopes=routes.READERS, handler=get, answer=EventType,
    ),
    Route(
        method="PUT", path="/v1/event-types/{event_type_id}", name="putEventType",
        summary="Put an event type into the catalogue, or change it. Each example must keep to the schema.",
        scopes=routes.OPERATOR, handler=put, body=manifest.EventTypeFields, answer=EventType, is_change=True,
    ),
    Route(
        method="DELETE", path="/v1/event-types/{event_type_id}", name="deleteEventType",
        summary="Take an event type out of the catalogue. Its events go on as before.",
        scopes=routes.OPERATOR, handler=delete, status=204, is_change=True,
    ),
)  # fmt: skip
