"""List and change the catalogue of event types, and compare events with it. Customers may only read it.

Runs in the API.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from pydantic import Field

from delivery import errors
from subscriptions_db import described
from subscriptions_db.api.contract import crud, routes, schemas
from subscriptions_db.api.contract.routes import Call, Route
from subscriptions_db.manifest import event_types, manifest
from subscriptions_db.registration import registered_rows


class EventType(described.DescribedModel):
    """An event type in the catalogue."""

    id: str
    """The type, such as `order.created`."""
    description: str
    """The meaning of the type, for people."""
    json_schema: Any
    """JSON Schema 2020-12 of the payload. Null: no schema."""
    examples: list[Any]
    """Example payloads. A test event of this type without `data` sends the first."""
    deprecated: bool
    """True: new subscriptions should not use the type."""
    changed_at: dt.datetime
    """When the entry was last changed."""


class EventTypeQuery(schemas.TextQuery):
    """Search criteria for the catalogue. `q` is searched in id and description."""

    deprecated: bool | None = None
    """True: only deprecated event types. False: only event types that are not deprecated."""


class EventTypes(routes.ListPage):
    """A page of the catalogue."""

    items: list[EventType]
    """The event types of the page."""


class SchemaViolation(described.DescribedModel):
    """A field of a payload that violates the schema."""

    field: str
    """The path of the field in the payload."""
    problem: str
    """The violation of the schema by the field, or the reason why the payload could not be checked."""


class CatalogueEntry(described.DescribedModel):
    """The comparison of an event with the catalogue. The catalogue does not affect delivery."""

    is_known: bool
    """True: the type is in the catalogue. Topics may carry other types."""
    is_deprecated: bool = False
    """True: the catalogue has the type as deprecated."""
    keeps_to_schema: bool | None = None
    """Null: not compared. The type is unknown or has no schema, or the payload is not JSON or cannot be checked. If it cannot
    be checked, `errors` has the reason."""
    errors: list[SchemaViolation] = Field(default=[])
    """The first ten violations, or the reason why the payload cannot be checked."""


def list_(call: Call) -> EventTypes:
    """Return a page of the catalogue."""
    wanted = call.query_as(EventTypeQuery)
    only = {"q": wanted.q, "deprecated": wanted.deprecated}
    return EventTypes(**crud.page(call, "event_type", crud.show_each(_shown), **only)._asdict())


def get(call: Call) -> EventType:
    """Return an event type of the catalogue. Raise Refused with 404 if the catalogue does not have it."""
    row_id = call.path["event_type_id"]
    return _shown(row_id, crud.existing_row(call, "event_type", row_id))


def _shown(row_id: str, row: dict[str, Any]) -> EventType:
    return EventType(id=row_id, **row)


def put(call: Call) -> EventType | routes.Created:
    """Create an event type, or replace its fields.

    Raise RegistrationError if a field, such as the schema, is refused. Raise Refused with 412 if `If-Match` or
    `If-None-Match` does not hold, and with 422 if one of these headers is malformed.
    """
    row_id = call.path["event_type_id"]
    is_known = crud.lock(call, "event_type", row_id)
    crud.require_conditions(call, get if is_known else None)
    crud.put(call, {"event_types": [call.document | {"id": row_id}]}, customer_id=None)
    return get(call) if is_known else routes.Created(get(call))


def delete(call: Call) -> None:
    """Delete an event type from the catalogue. Raise Refused as `crud.delete` does."""
    crud.delete(call, "event_type", call.path["event_type_id"], get, lambda _: None)


def known(call: Call, event_type: str) -> dict[str, Any] | None:
    """Return the catalogue's row of an event type; None if the catalogue does not have the type."""
    if "\0" in event_type:  # Postgres does not accept NUL, not even in comparisons
        return None
    return registered_rows.rows_of(call.connection, {"event_type": [event_type]})["event_type"].get(event_type)


def explain(call: Call, event_type: str, payload: Any, *, is_json: bool) -> CatalogueEntry:
    """Compare an event with the catalogue. Only a JSON payload is compared with the schema."""
    row = known(call, event_type)
    if row is None:
        return CatalogueEntry(is_known=False)
    found = CatalogueEntry(is_known=True, is_deprecated=row["deprecated"])
    if row["json_schema"] is None or not is_json:
        return found
    try:
        event_types.check(row["json_schema"], [])  # plain SQL can register an invalid schema
        wrong = [
            SchemaViolation(field=path, problem=problem) for path, problem in event_types.problems(row["json_schema"], payload)
        ]
    except errors.RegistrationError as exc:
        return found.model_copy(update={"errors": [SchemaViolation(field=exc.path, problem=exc.problem)]})
    return found.model_copy(update={"keeps_to_schema": not wrong, "errors": wrong})


ROUTES = (
    Route(
        method="GET", path="/v1/event-types", name="listEventTypes",
        summary="List the catalogue of event types. `q` is searched in id and description.",
        scopes=routes.REGISTRY_READERS, handler=list_, query=EventTypeQuery, answer=EventTypes,
    ),
    Route(
        method="GET", path="/v1/event-types/{event_type_id}", name="getEventType",
        summary="Get an event type: description, schema of its payload, examples.",
        scopes=routes.REGISTRY_READERS, handler=get, answer=EventType, resource=EventType,
    ),
    Route(
        method="PUT", path="/v1/event-types/{event_type_id}", name="putEventType",
        summary="Create or replace an event type. Each example must match the schema.",
        scopes=routes.OPERATOR, handler=put, body=manifest.EventTypeFields, answer=EventType, is_change=True,
        resource=EventType, location="/v1/event-types/{id}",
    ),
    Route(
        method="DELETE", path="/v1/event-types/{event_type_id}", name="deleteEventType",
        summary="Delete an event type from the catalogue. Its events are delivered as before.",
        scopes=routes.OPERATOR, handler=delete, status=204, is_change=True, resource=EventType,
    ),
)  # fmt: skip
