"""Endpoints: made, changed, paused, disabled, deleted, their signing secret rotated.

Runs in the API.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from delivery.model import EndpointStatus
from subscriptions_db.api.contract import audit, crud, problems, routes, schemas
from subscriptions_db.api.contract.routes import Call, Page, Route
from subscriptions_db.postgres.sql import query
from subscriptions_db.registration import endpoint_status, rotation
from subscriptions_db.secrets import endpoint_secrets


class Which(Page):
    """Which endpoints."""

    customer: str | None = None
    """Only of this customer."""


def list_(call: Call) -> schemas.Endpoints:
    """Return a page of endpoints."""
    items, cursor = crud.page(call, "endpoint", crud.each(schemas.endpoint), customer=call.query_as(Which).customer)
    return schemas.Endpoints(items=items, next_cursor=cursor)


def get(call: Call) -> schemas.Endpoint:
    """Return an endpoint."""
    return schemas.endpoint(_id(call), crud.found(call, "endpoint", _id(call)))


def create(call: Call) -> schemas.MadeEndpoint:
    """Make an endpoint with a signing secret of its own."""
    crud.require_room(call, "endpoint", call.bounds.max_endpoints_per_customer)
    document = dict(call.document)
    customer_id = crud.owner_for(call, document.pop("customer", None))
    endpoint_id = crud.id_for(call, "endpoint", document.pop("id", None), prefix="ep")
    whole = {"id": endpoint_id, "customer": customer_id} | document
    made = crud.put(call, {"endpoints": [whole]}, customer_id=customer_id).new_secrets
    shown = schemas.endpoint(endpoint_id, crud.found(call, "endpoint", endpoint_id))
    return schemas.MadeEndpoint(signing_secret=made[endpoint_id], **dict(shown))


def update(call: Call) -> schemas.Endpoint:
    """Change what is given, and keep the rest, secrets included."""
    before = crud.held(call, "endpoint", _id(call))
    document = {"id": _id(call)} | schemas.endpoint_document(before)
    kept = {(part, name): opened for part, name, opened in _secrets(call) if part not in call.document}
    for (part, name), secret in kept.items():
        document[part] = document[part] | {name: secret}
    crud.put(call, {"endpoints": [document | call.document]}, customer_id=before["customer"])
    return get(call)


def _secrets(call: Call) -> list[tuple[str, str, str]]:
    """Return what an endpoint's document says of its secrets: (part, name, secret). Opened only where they are to be kept."""
    places = {endpoint_secrets.AUTH: ("auth", "secret"), endpoint_secrets.TLS_KEY: ("tls", "key")}
    opened = []
    for row in call.connection.execute(query("secrets"), {"ids": [_id(call)]}):
        part, name = places.get(row["purpose"], ("", ""))
        if part and part not in call.document:
            secret = endpoint_secrets.Opened.from_row(row, call.ring).secret
            opened.append((part, name, secret.reveal().decode()))
    return opened


def delete(call: Call) -> None:
    """Delete an endpoint with its subscriptions. What waits for it ends as skipped."""
    crud.delete(call, "endpoint", _id(call), lambda row: row["customer"])


def pause(call: Call) -> schemas.Endpoint:
    """Let what is due to it wait. One that is disabled has to be enabled first."""
    return _set_status(call, EndpointStatus.PAUSED, unless=EndpointStatus.DISABLED)


def resume(call: Call) -> schemas.Endpoint:
    """Send again to an endpoint that is paused."""
    return _set_status(call, EndpointStatus.ACTIVE, unless=EndpointStatus.DISABLED)


def enable(call: Call) -> schemas.Endpoint:
    """Send again to an endpoint, whatever its status is."""
    return _set_status(call, EndpointStatus.ACTIVE)


def disable(call: Call) -> schemas.Endpoint:
    """Send nothing to it until it is enabled."""
    return _set_status(call, EndpointStatus.DISABLED, reason=call.body_as(schemas.Disable).reason)


def _set_status(
    call: Call, status: EndpointStatus, *, unless: EndpointStatus | None = None, reason: str | None = None
) -> schemas.Endpoint:
    before = crud.held(call, "endpoint", _id(call))
    if before["status"] == unless:
        raise problems.Refused(409, "the endpoint is disabled: enable it")
    if status is EndpointStatus.ACTIVE:
        crud.require_permitted(before)
    endpoint_status.set_status(call.connection, _id(call), status, reason)
    after: dict[str, Any] = {"status": status.value, "disabled_reason": reason}
    was = {name: before[name] for name in after}
    if was != after:
        audit.write(call, "update", "endpoint", _id(call), customer_id=before["customer"], before=was, after=after)
    return get(call)


def rotate(call: Call) -> schemas.Rotated:
    """Make a new signing secret; those before it go on to sign for the overlap."""
    wanted, before = call.body_as(schemas.Rotate), crud.held(call, "endpoint", _id(call))
    overlap = dt.timedelta(seconds=wanted.overlap_s)
    rotated = rotation.rotate_alone(call.connection, call.ring, _id(call), scheme=wanted.scheme, overlap=overlap)
    audit.write(call, "rotate_secret", "endpoint", _id(call), customer_id=before["customer"], after=rotated.noted(overlap))
    return schemas.Rotated(**rotation.told(_id(call), rotated))


def _id(call: Call) -> str:
    return call.path["endpoint_id"]


_ONE = "/v1/endpoints/{endpoint_id}"
ROUTES = (
    Route(
        method="GET", path="/v1/endpoints", name="listEndpoints", summary="Endpoints, by their ids.",
        scopes=routes.READERS, handler=list_, query=Which, answer=schemas.Endpoints,
    ),
    Route(
        method="POST", path="/v1/endpoints", name="createEndpoint", summary="Make an endpoint. Shows its signing secret, once.",
        scopes=routes.ADMINS, handler=create, body=schemas.NewEndpoint, answer=schemas.MadeEndpoint, status=201, is_change=True,
        shown_once="signing_secret",
    ),
    Route(
        method="GET", path=_ONE, name="getEndpoint", summary="An endpoint.",
        scopes=routes.READERS, handler=get, answer=schemas.Endpoint,
    ),
    Route(
        method="PATCH", path=_ONE, name="updateEndpoint", summary="Change what is given, and keep the rest.",
        scopes=routes.ADMINS, handler=update, body=schemas.EndpointChanges, answer=schemas.Endpoint, is_change=True,
    ),
    Route(
        method="DELETE", path=_ONE, name="deleteEndpoint", summary="Delete an endpoint with its subscriptions.",
        scopes=routes.ADMINS, handler=delete, status=204, is_change=True,
    ),
    Route(
        method="POST", path=f"{_ONE}/pause", name="pauseEndpoint", summary="Let what is due to it wait.",
        scopes=routes.ADMINS, handler=pause, answer=schemas.Endpoint, is_change=True,
    ),
    Route(
        method="POST", path=f"{_ONE}/resume", name="resumeEndpoint", summary="Send again to an endpoint that is paused.",
        scopes=routes.ADMINS, handler=resume, answer=schemas.Endpoint, is_change=True,
    ),
    Route(
        method="POST", path=f"{_ONE}/disable", name="disableEndpoint", summary="Send nothing to it until it is enabled.",
        scopes=routes.ADMINS, handler=disable, body=schemas.Disable, answer=schemas.Endpoint, is_change=True,
    ),
    Route(
        method="POST", path=f"{_ONE}/enable", name="enableEndpoint", summary="Send again to it, whatever its status is.",
        scopes=routes.ADMINS, handler=enable, answer=schemas.Endpoint, is_change=True,
    ),
    Route(
        method="POST", path=f"{_ONE}/rotate-secret", name="rotateSecret",
        summary="Make a new signing secret, shown once; those before it sign on for an overlap.",
        scopes=routes.ADMINS, handler=rotate, body=schemas.Rotate, answer=schemas.Rotated, is_change=True, shown_once="secret",
    ),
)  # fmt: skip
