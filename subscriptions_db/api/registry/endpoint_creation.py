"""Create many endpoints in one transaction, all or none, or check what would be refused.

Runs in the API.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import psycopg
import pydantic
from pydantic import Field

from delivery import errors
from subscriptions_db import described
from subscriptions_db.api.contract import crud, problems, routes, schemas
from subscriptions_db.api.contract.principals import Scope
from subscriptions_db.api.contract.routes import Call, Route
from subscriptions_db.api.registry import endpoints
from subscriptions_db.manifest import manifest, mistakes
from subscriptions_db.registration import registered_rows

MAX_ENDPOINTS = 100
"""Maximum endpoints of one request. A request with 100 endpoints took 60 ms, which is about as long as 25 requests that change
one endpoint each. So it counts as 25 requests in the rate of its key."""


class EndpointsToCreate(described.DescribedModel):
    """Endpoints to create, all or none."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    # The handler validates the entries, so that one answer names each wrong entry: by its type, and by the rules.
    endpoints: Annotated[list[pydantic.SkipValidation[schemas.EndpointToCreate]], Field(min_length=1, max_length=MAX_ENDPOINTS)]
    """The endpoints, each with the fields of `POST /v1/endpoints` except `customer`."""
    customer: manifest.Id | None = None
    """Required with an operator's key: the owner of the endpoints."""
    dry_run: bool = False
    """Create nothing. Refuse the request for the same reasons as without `dry_run`."""


class NamedEndpoint(described.DescribedModel):
    """The id of a created endpoint, and its signing secret."""

    id: str
    """The id of the endpoint."""
    signing_secret: str | None
    """Shown once. Null for a key of scope `write_only`, and in the repeated answer for an `Idempotency-Key`."""


class CreatedEndpoints(described.DescribedModel):
    """The created endpoints."""

    dry_run: bool
    """True: nothing was created."""
    created: int
    """Number of endpoints that were created, or would be."""
    items: list[NamedEndpoint]
    """The endpoints in the order of the request. Empty in a dry run, because the platform chooses new ids each time."""


def create(call: Call) -> CreatedEndpoints:
    """Create the endpoints of a request, or none.

    Raise Refused:

    * 403: the key reaches only some endpoints of its customer.
    * 422: an entry or the customer is wrong. The answer names each wrong entry by its index.
    * 429: the endpoints exceed the customer's quota. An operator's key gets no 429.

    A dry run writes the endpoints too and rolls them back, so the database checks them as well.
    """
    wanted = call.body_as(EndpointsToCreate)
    endpoints.require_may_create(call, len(wanted.endpoints))
    customer_id = crud.owner_for(call, wanted.customer)
    if customer_id not in registered_rows.rows_of(call.connection, {"customer": [customer_id]})["customer"]:
        raise crud.no_customer(customer_id)
    documents = _documents(call, call.document["endpoints"], customer_id)
    with call.connection.transaction() as changes:
        made = crud.put(call, {"endpoints": documents}, customer_id=customer_id).new_secrets
        if wanted.dry_run:
            raise psycopg.Rollback(changes)
    is_shown = call.principal.scope is not Scope.WRITE_ONLY
    shown = [NamedEndpoint(id=row["id"], signing_secret=made[row["id"]] if is_shown else None) for row in documents]
    return CreatedEndpoints(dry_run=wanted.dry_run, created=len(documents), items=[] if wanted.dry_run else shown)


def _documents(call: Call, entries: list[Any], customer_id: str) -> list[dict[str, Any]]:
    """Return the manifest documents of the entries, with ids.

    Raise Refused with one 422 that has mistakes of every wrong entry. An entry that does not fit its type is not checked
    further.
    """
    documents, found, chosen = [], [], {}
    for number, entry in enumerate(entries):
        given = dict(entry) if isinstance(entry, dict) else {}
        given_id = given.pop("id", None)
        documents.append(given | {"id": crud.new_id("ep") if given_id is None else str(given_id), "customer": customer_id})
        mistaken = [mistake.within(f"endpoints[{number}]") for mistake in _mistakes(call, entry, documents[-1])]
        found += mistaken
        if given_id is not None and not mistaken:
            chosen[number] = str(given_id)
    found += _wrong_ids(call, chosen)
    if found:
        raise problems.invalid(*((mistake.path, mistake.problem) for mistake in found))
    return documents


def _mistakes(call: Call, entry: Any, document: dict[str, Any]) -> Iterator[errors.RegistrationError]:
    """Yield the mistakes of an entry against its type; if there are none, its mistakes against the rules of the manifest."""
    try:
        schemas.EndpointToCreate.model_validate(entry, context=call.deprecations)
    except pydantic.ValidationError as exc:
        yield from mistakes.found(exc, schemas.EndpointToCreate)
        return
    try:
        manifest.check({"endpoints": [document]}, call.guard)
    except errors.ManifestRefused as exc:
        for mistake in exc.found:
            path = mistake.path.removeprefix("endpoints[0]").removeprefix(".")
            yield errors.RegistrationError(path, mistake.problem)


def _wrong_ids(call: Call, chosen: Mapping[int, str]) -> Iterator[errors.RegistrationError]:
    """Yield an error for each id that may not be chosen, is repeated or is taken. `chosen` has entry index → id.

    The ids are locked until the transaction ends, in sorted order, so that requests with the same ids do not deadlock.
    """
    seen: set[str] = set()
    for number, endpoint_id in sorted(chosen.items(), key=lambda item: (item[1], item[0])):
        path = f"endpoints[{number}].id"
        if call.principal.customer_id is not None:
            yield errors.RegistrationError(path, "is chosen by the platform: leave it out")
        elif endpoint_id in seen:
            yield errors.RegistrationError(path, "is in the request twice: choose another id")
        elif crud.lock(call, "endpoint", endpoint_id):
            yield errors.RegistrationError(path, "is already used: choose another id")
        seen.add(endpoint_id)


ROUTES = (
    Route(
        method="POST", path="/v1/endpoints/bulk/create", name="createEndpoints",
        summary="Create up to 100 endpoints, all or none; or check what would be refused. Shows their signing secrets once.",
        scopes=routes.REGISTRY_WRITERS, handler=create, body=EndpointsToCreate, answer=CreatedEndpoints, is_change=True,
        cost=25, shown_once="items.signing_secret", is_answer_progress=True,
    ),
)  # fmt: skip
