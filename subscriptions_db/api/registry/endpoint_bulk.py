"""Pause, resume or delete many endpoints, or rotate their secrets, in one transaction, or show what would change.

Runs in the API.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import psycopg
import pydantic
from pydantic import Field

from delivery import errors
from delivery.registry_model import EndpointStatus
from subscriptions_db import described
from subscriptions_db.api.contract import crud, cursors, problems, request_audit, routes, schemas
from subscriptions_db.api.contract.principals import Scope
from subscriptions_db.api.contract.routes import Call, Route
from subscriptions_db.api.registry import endpoints
from subscriptions_db.manifest import manifest
from subscriptions_db.postgres.sql import query
from subscriptions_db.registration import registered_rows

MAX_ENDPOINTS = 25
"""Maximum endpoints of one request. The request keeps them locked until it ends, and makes up to twelve round
trips to Postgres for each."""


class BulkAction(enum.StrEnum):
    """The action of a request on each of its endpoints."""

    PAUSE = "pause"
    RESUME = "resume"
    ROTATE_SECRET = "rotate_secret"  # noqa: S105  # no secret
    DELETE = "delete"


class BulkResult(enum.StrEnum):
    """The result of an action for one endpoint. In a dry run: the result that the action would have."""

    CHANGED = "changed"
    UNCHANGED = "unchanged"
    """The endpoint has the status already."""
    REFUSED = "refused"
    """The state of the endpoint does not allow the action."""
    NOT_FOUND = "not_found"


class EndpointCriteria(described.DescribedModel):
    """Search criteria for endpoints: the same as for the list of endpoints, except `customer`."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    q: schemas.SearchText | None = None
    """Only endpoints with this text in id, URL or description, in upper or lower case."""
    status: Literal["active", "paused", "disabled"] | None = None
    """Only endpoints with this status."""
    metadata: schemas.MetadataEntry | None = None
    """Only endpoints with this entry in their metadata, as `name:text`."""


class EndpointsToChange(EndpointCriteria):
    """An action on many endpoints. Name them in exactly one way: by `endpoints`, by criteria, or by `everything: true`."""

    action: BulkAction
    """The action on each endpoint."""
    endpoints: Annotated[list[manifest.Id], Field(min_length=1, max_length=MAX_ENDPOINTS)] | None = None
    """The ids of the endpoints."""
    everything: bool = False
    """All endpoints of the customer."""
    customer: manifest.Id | None = None
    """Required with an operator's key: the owner of the endpoints."""
    dry_run: bool = False
    """Change nothing, and return the results that the same request would have without `dry_run`."""
    rotation: schemas.RotateSecret | None = None
    """Scheme and overlap of the new secrets. Default: the defaults of `POST /v1/endpoints/{id}/rotate-secret`. Only with the
    action `rotate_secret`."""
    cursor: routes.Cursor | None = None
    """`next_cursor` of the previous answer. Null: begin at the first endpoint."""
    limit: Annotated[int, Field(ge=1, le=MAX_ENDPOINTS)] = MAX_ENDPOINTS
    """Maximum endpoints of this request."""


class ChangedEndpoint(described.DescribedModel):
    """The result for one endpoint."""

    endpoint: str
    """The id of the endpoint."""
    result: BulkResult
    """The result of the action. In a dry run: the result without `dry_run`."""
    detail: str = ""
    """The reason why the endpoint was refused or not found, for people. Empty for other results."""
    rotated: schemas.RotatedSecret | None = None
    """The new signing secret, shown once. Null in a dry run, for other actions and other results than `changed`, and in the
    repeated answer for an `Idempotency-Key`."""


class ChangedEndpoints(described.DescribedModel):
    """The results of one request, sorted by endpoint."""

    action: BulkAction
    """The action of the request."""
    dry_run: bool
    """True: nothing was changed."""
    changed: int
    """Number of endpoints that were changed, or would be."""
    items: list[ChangedEndpoint]
    """The result for each endpoint of this request."""
    next_cursor: str | None
    """Null: no more endpoints match. Otherwise repeat the request with this cursor."""


def change(call: Call) -> ChangedEndpoints:
    """Change the endpoints that a request names.

    1. Lock the next `limit` endpoints, in the order of their ids.
    2. Leave out endpoints that no longer match the criteria.
    3. Change each endpoint whose state allows the action, and write an audit entry for each change.
    4. In a dry run, roll the changes back.

    Raise Refused:

    * 403: a key of scope `write_only` asks for more than it may read (see `_require_shown`).
    * 422: the request does not name the endpoints in exactly one way.
    * 422: a request with an operator's key names no customer, or one with a customer's key names another customer.
    * 422: the request has `rotation` with another action than `rotate_secret`, or a list's `previous_cursor` as `cursor`.
    """
    wanted = call.body_as(EndpointsToChange)
    _require_one_way(wanted)
    _require_shown(call, wanted)
    customer_id = crud.owner_for(call, wanted.customer)
    ids, has_more = _ids(call, wanted, customer_id)
    rows = _locked(call, ids, customer_id)
    with call.connection.transaction() as changes:
        items = _changed(call, wanted, _still_selected(call, wanted, ids, customer_id), rows)
        if wanted.dry_run:
            raise psycopg.Rollback(changes)
    if wanted.dry_run:
        items = [item.model_copy(update={"rotated": None}) for item in items]
    return ChangedEndpoints(
        action=wanted.action,
        dry_run=wanted.dry_run,
        changed=sum(item.result is BulkResult.CHANGED for item in items),
        items=items,
        next_cursor=cursors.encode(ids[-1]) if has_more else None,
    )


def _require_one_way(wanted: EndpointsToChange) -> None:
    has_criteria = any(getattr(wanted, name) is not None for name in EndpointCriteria.model_fields)
    criteria = ", ".join(EndpointCriteria.model_fields)
    ways = [wanted.endpoints is not None, has_criteria, wanted.everything].count(True)
    if ways == 0:
        problem = f"is missing: name endpoints here, by criteria ({criteria}), or by everything: true"
        raise problems.invalid(("endpoints", problem))
    if ways > 1:
        problem = f"endpoints, criteria ({criteria}) and everything exclude each other: keep one of these ways"
        raise problems.invalid(("endpoints", problem))
    if wanted.rotation is not None and wanted.action is not BulkAction.ROTATE_SECRET:
        raise problems.invalid(("rotation", "is only for the action rotate_secret: leave it out"))


def _require_shown(call: Call, wanted: EndpointsToChange) -> None:
    """Raise Refused with 403 if a key of scope `write_only`, which reads nothing, asks for one of these.

    1. A rotation: nobody would see the new secrets.
    2. A search: the answer has the ids that match, and so shows URLs, descriptions, metadata and statuses.
    3. `everything: true`: the answer lists all ids.
    4. A dry run: the answer shows statuses, and the request leaves no audit entry.
    """
    if call.principal.scope is not Scope.WRITE_ONLY:
        return
    if wanted.action is BulkAction.ROTATE_SECRET:
        refusal = "a key with scope write_only reads no secret, so none was rotated: use scope registrar or customer_admin"
        raise problems.Refused(403, refusal)
    if wanted.endpoints is None or wanted.dry_run:
        problem = (
            "a key with scope write_only reads nothing, and q, status, metadata, everything and dry_run read the registry: "
            "leave them out, and name the ids in endpoints"
        )
        raise problems.Refused(403, problem)


def _ids(call: Call, wanted: EndpointsToChange, customer_id: str) -> tuple[list[str], bool]:
    """Return the ids of the request's next endpoints, at most `limit`, in order; and True if more endpoints follow.

    Raise Refused with 422 if `wanted.cursor` is the `previous_cursor` of a list.
    """
    place = cursors.place(wanted.cursor)
    if place.is_end:  # a `previous_cursor` of a list: the request would begin again at the first endpoint
        raise problems.invalid(("cursor", "is not a cursor of this request: send `next_cursor` of its last answer, unchanged"))
    after = place.row_id
    if wanted.endpoints is None:
        found = crud.ids_after(call, "endpoint", after, wanted.limit + 1, _criteria(wanted, customer_id))
    else:
        found = sorted(endpoint_id for endpoint_id in set(map(str, wanted.endpoints)) if endpoint_id > after)
    return found[: wanted.limit], len(found) > wanted.limit


def _criteria(wanted: EndpointsToChange, customer_id: str) -> dict[str, Any]:
    return schemas.criteria(wanted.model_dump(include=set(EndpointCriteria.model_fields))) | {"customer": customer_id}


def _still_selected(call: Call, wanted: EndpointsToChange, ids: list[str], customer_id: str) -> list[str]:
    """Return the ids, in order, without those whose endpoints no longer match the request's criteria.

    The caller has locked the endpoints. Another request may have changed some between the search and the lock. The
    transaction is read committed, so this second search sees those changes.
    """
    if wanted.endpoints is not None:
        return ids
    matching = crud.ids_among(call, "endpoint", ids, _criteria(wanted, customer_id))
    return [endpoint_id for endpoint_id in ids if endpoint_id in matching]


def _locked(call: Call, ids: list[str], customer_id: str) -> dict[str, dict[str, Any]]:
    """Lock endpoints, and return the rows of the customer's endpoints among them."""
    found = [endpoint_id for endpoint_id in ids if crud.lock(call, "endpoint", endpoint_id)]
    rows: dict[str, dict[str, Any]] = {}
    for first in range(0, len(found), crud.ROWS_PER_READ):
        part = found[first : first + crud.ROWS_PER_READ]
        rows |= registered_rows.rows_of(call.connection, {"endpoint": part})["endpoint"]
    return {endpoint_id: row for endpoint_id, row in rows.items() if row["customer"] == customer_id}


def _changed(
    call: Call, wanted: EndpointsToChange, ids: list[str], rows: Mapping[str, dict[str, Any]]
) -> list[ChangedEndpoint]:
    act = _ACTIONS[wanted.action]
    items = []
    for endpoint_id in ids:
        if endpoint_id not in rows:
            detail = problems.not_found("endpoint").problem.detail
            items.append(ChangedEndpoint(endpoint=endpoint_id, result=BulkResult.NOT_FOUND, detail=detail))
            continue
        try:
            with call.connection.transaction():
                items.append(act(call, endpoint_id, rows[endpoint_id]))
        except problems.Refused as exc:
            items.append(ChangedEndpoint(endpoint=endpoint_id, result=BulkResult.REFUSED, detail=exc.problem.detail))
        except errors.RegistrationError as exc:
            items.append(ChangedEndpoint(endpoint=endpoint_id, result=BulkResult.REFUSED, detail=exc.problem))
    return items


def _pause(call: Call, endpoint_id: str, before: dict[str, Any]) -> ChangedEndpoint:
    return _with_status(call, endpoint_id, before, EndpointStatus.PAUSED)


def _resume(call: Call, endpoint_id: str, before: dict[str, Any]) -> ChangedEndpoint:
    return _with_status(call, endpoint_id, before, EndpointStatus.ACTIVE)


def _with_status(call: Call, endpoint_id: str, before: dict[str, Any], status: EndpointStatus) -> ChangedEndpoint:
    is_changed = endpoints.change_status(call, endpoint_id, before, status, unless=EndpointStatus.DISABLED)
    return ChangedEndpoint(endpoint=endpoint_id, result=BulkResult.CHANGED if is_changed else BulkResult.UNCHANGED)


def _rotate(call: Call, endpoint_id: str, before: dict[str, Any]) -> ChangedEndpoint:
    wanted = call.body_as(EndpointsToChange).rotation or schemas.RotateSecret.model_validate({})
    rotated = endpoints.rotate_locked(call, endpoint_id, before, wanted)
    return ChangedEndpoint(endpoint=endpoint_id, result=BulkResult.CHANGED, rotated=rotated)


def _delete(call: Call, endpoint_id: str, before: dict[str, Any]) -> ChangedEndpoint:
    call.connection.execute(query("delete_endpoints"), {"ids": [endpoint_id]})
    request_audit.write(call, "delete", "endpoint", endpoint_id, customer_id=before["customer"], before=before)
    return ChangedEndpoint(endpoint=endpoint_id, result=BulkResult.CHANGED)


_ACTIONS: Mapping[BulkAction, Callable[[Call, str, dict[str, Any]], ChangedEndpoint]] = {
    BulkAction.PAUSE: _pause,
    BulkAction.RESUME: _resume,
    BulkAction.ROTATE_SECRET: _rotate,
    BulkAction.DELETE: _delete,
}

ROUTES = (
    Route(
        method="POST", path="/v1/endpoints/bulk", name="changeEndpoints",
        summary="Pause, resume or delete up to 25 endpoints, or rotate their secrets; or show what would change.",
        scopes=routes.REGISTRY_WRITERS, handler=change, body=EndpointsToChange, answer=ChangedEndpoints, is_change=True,
        cost=MAX_ENDPOINTS, shown_once="items.rotated", is_answer_progress=True,
    ),
)  # fmt: skip
