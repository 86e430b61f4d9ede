"""Create, change, pause, disable and delete endpoints, and rotate their signing secrets.

Runs in the API.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, Literal

import yarl

from delivery import errors
from delivery.registry_model import EndpointStatus
from subscriptions_db.api.contract import crud, problems, request_audit, routes, schemas
from subscriptions_db.api.contract.principals import Scope
from subscriptions_db.api.contract.routes import Call, Route
from subscriptions_db.postgres.sql import query
from subscriptions_db.registration import endpoint_status, rotation
from subscriptions_db.secrets import endpoint_secrets


class EndpointQuery(schemas.SearchQuery):
    """Search criteria for endpoints. `q` is searched in id, URL and description."""

    status: Literal["active", "paused", "disabled"] | None = None
    """Only endpoints with this status."""


def list_(call: Call) -> schemas.Endpoints:
    """Return a page of endpoints; raise Refused with 422 if a customer's key names another customer."""
    wanted = call.query_as(EndpointQuery)
    crud.require_own(call, wanted.customer)
    found = crud.page(call, "endpoint", crud.show_each(schemas.endpoint), **wanted.criteria())
    return schemas.Endpoints(**found._asdict())


def get(call: Call) -> schemas.Endpoint:
    """Return an endpoint; raise Refused with 404 if there is no such endpoint."""
    return schemas.endpoint(_id(call), crud.existing_row(call, "endpoint", _id(call)))


def create(call: Call) -> schemas.CreatedEndpoint:
    """Create an endpoint with a new signing secret.

    Raise RegistrationError if the fields are refused. Raise Refused:

    * 403: the key is limited to endpoints.
    * 409: the id is taken.
    * 422: an operator's key names no `customer`, or a customer's key names another customer or an id.
    * 429: the customer's quota of endpoints is used up. An operator's key gets no 429.
    """
    require_may_create(call)
    wanted = call.body_as(schemas.NewEndpoint)
    customer_id = crud.owner_for(call, wanted.customer)
    endpoint_id = crud.id_for(call, "endpoint", wanted.id, prefix="ep")
    whole = call.document | {"id": endpoint_id, "customer": customer_id}
    made = crud.put(call, {"endpoints": [whole]}, customer_id=customer_id).new_secrets
    shown = schemas.endpoint(endpoint_id, crud.existing_row(call, "endpoint", endpoint_id))
    return schemas.CreatedEndpoint(signing_secret=made[endpoint_id], **dict(shown))


def require_may_create(call: Call, count: int = 1) -> None:
    """Raise Refused if the request may not create `count` endpoints.

    403: the key is limited to endpoints. 429: the endpoints exceed the customer's quota. An operator's key gets no 429.
    """
    if call.principal.endpoints is not None:
        raise problems.Refused(403, "a key that is limited to endpoints does not create others: use a key without a limit")
    crud.require_quota(call, "endpoint", call.bounds.max_endpoints_per_customer, adding=count)


def update(call: Call) -> schemas.Endpoint:
    """Change the given fields of an endpoint, each in full, and keep its other fields and its signing secrets.

    A given `auth` or `tls` replaces the stored one together with its secret. An omitted `auth` or `tls` keeps its secret.

    Raise RegistrationError if the fields are refused, and SealError if a secret that is kept cannot be opened. Raise Refused:

    * 404: there is no such endpoint.
    * 412: `If-Match` or `If-None-Match` does not hold.
    * 422: a key of scope `write_only` would redirect stored credentials to another server, or `If-Match` or `If-None-Match`
      is malformed.
    """
    before = crud.locked_row(call, "endpoint", _id(call))
    crud.require_conditions(call, get)
    document = {"id": _id(call)} | schemas.endpoint_document(before)
    kept = {(part, name): opened for part, name, opened in _secrets(call) if part not in call.document}
    _require_credentials_anew(call, before, is_auth_kept=("auth", "secret") in kept)
    for (part, name), secret in kept.items():
        document[part] = document[part] | {name: secret}
    crud.put(call, {"endpoints": [document | call.document]}, customer_id=before["customer"])
    return get(call)


def _require_credentials_anew(call: Call, before: dict[str, Any], *, is_auth_kept: bool) -> None:
    """Raise Refused with 422 if a key of scope `write_only`, which reads nothing, moves stored credentials to another origin.

    Requests carry the secret of `auth` and the values of `headers`, so the new server would show them to the sender of the
    change. `tls` may stay: TLS never sends its private key.
    """
    url = call.document.get("url")
    if call.principal.scope is not Scope.WRITE_ONLY or not isinstance(url, str) or _has_origin(url, before["url"]):
        return
    are_headers_kept = bool(before["headers"]) and "headers" not in call.document
    kept = [part for part, is_kept in (("auth", is_auth_kept), ("headers", are_headers_kept)) if is_kept]
    if kept:
        problem = "is stored, and url names another server: with a key of scope write_only, send this field again with url"
        raise problems.invalid(*((part, problem) for part in kept))


def _has_origin(url: str, other: str) -> bool:
    """Return True if two URLs have the same scheme, host and port, as deliveries read URLs (sending/request.py).

    Return False if one of them is no valid URL.
    """
    try:
        return yarl.URL(url, encoded=True).origin() == yarl.URL(other, encoded=True).origin()
    except (ValueError, IndexError):  # yarl raises IndexError for https://[[]@
        return False


def _secrets(call: Call) -> list[tuple[str, str, str]]:
    """Return the secrets that the request keeps, each as part (`auth` or `tls`), field and secret.

    Secrets that the request replaces are not opened. Raise SealError if a kept secret cannot be opened.
    """
    places = {endpoint_secrets.AUTH: ("auth", "secret"), endpoint_secrets.TLS_KEY: ("tls", "key")}
    opened = []
    for row in call.connection.execute(query("secrets"), {"ids": [_id(call)]}):
        part, name = places.get(row["purpose"], ("", ""))
        if part and part not in call.document:
            try:
                secret = endpoint_secrets.EndpointSecret.from_row(row, call.ring).secret
            except errors.SealError as exc:
                raise errors.SealError(f"endpoint {_id(call)}, {part}.{name}: {exc}") from exc
            opened.append((part, name, secret.reveal().decode()))
    return opened


def delete(call: Call) -> None:
    """Delete an endpoint with its subscriptions. Waiting deliveries end as skipped.

    Raise Refused:

    * 404: there is no such endpoint.
    * 412 or 422: `If-Match` or `If-None-Match` does not hold, or is malformed.
    """
    crud.delete(call, "endpoint", _id(call), get, lambda row: row["customer"])


def pause(call: Call) -> schemas.Endpoint:
    """Pause an endpoint: its deliveries wait.

    Raise Refused:

    * 404: there is no such endpoint.
    * 409: the endpoint is disabled.
    * 412 or 422: `If-Match` or `If-None-Match` does not hold, or is malformed.
    """
    return _set_status(call, EndpointStatus.PAUSED, unless=EndpointStatus.DISABLED)


def resume(call: Call) -> schemas.Endpoint:
    """Resume a paused endpoint.

    Raise Refused:

    * 404: there is no such endpoint.
    * 409: the endpoint is disabled, or its receiver has not permitted deliveries.
    * 412 or 422: `If-Match` or `If-None-Match` does not hold, or is malformed.
    """
    return _set_status(call, EndpointStatus.ACTIVE, unless=EndpointStatus.DISABLED)


def enable(call: Call) -> schemas.Endpoint:
    """Make an endpoint active, whatever its status.

    Raise Refused:

    * 404: there is no such endpoint.
    * 409: the receiver has not permitted deliveries.
    * 412 or 422: `If-Match` or `If-None-Match` does not hold, or is malformed.
    """
    return _set_status(call, EndpointStatus.ACTIVE)


def disable(call: Call) -> schemas.Endpoint:
    """Disable an endpoint until it is enabled.

    Raise Refused:

    * 404: there is no such endpoint.
    * 412 or 422: `If-Match` or `If-None-Match` does not hold, or is malformed.
    """
    return _set_status(call, EndpointStatus.DISABLED, reason=call.body_as(schemas.DisableEndpoint).reason)


def _set_status(
    call: Call, status: EndpointStatus, *, unless: EndpointStatus | None = None, reason: str | None = None
) -> schemas.Endpoint:
    before = crud.locked_row(call, "endpoint", _id(call))
    crud.require_conditions(call, get)
    change_status(call, _id(call), before, status, unless=unless, reason=reason)
    return get(call)


def change_status(
    call: Call,
    endpoint_id: str,
    before: dict[str, Any],
    status: EndpointStatus,
    *,
    unless: EndpointStatus | None = None,
    reason: str | None = None,
) -> bool:
    """Set the status of an endpoint that the caller has locked; return True if the status or the reason has changed.

    Write an audit entry if the status or the reason has changed. Raise Refused with 409 if the present status is `unless`, or
    if `status` is active and the receiver has not permitted deliveries.
    """
    if before["status"] == unless:
        raise problems.Refused(409, "the endpoint is disabled, so nothing was changed: enable it first")
    if status is EndpointStatus.ACTIVE:
        crud.require_permitted(before)
    endpoint_status.set_status(call.connection, endpoint_id, status, reason)
    after: dict[str, Any] = {"status": status.value, "disabled_reason": reason}
    was = {name: before[name] for name in after}
    if was != after:
        request_audit.write(call, "update", "endpoint", endpoint_id, customer_id=before["customer"], before=was, after=after)
    return was != after


def rotate(call: Call) -> schemas.RotatedSecret:
    """Create a new signing secret. Each earlier secret signs too until the overlap ends, or until its own earlier end.

    Raise Refused with 404 if there is no such endpoint. Raise Refused with 412 if `If-Match` or `If-None-Match` does not hold,
    and with 422 if one of them is malformed. Raise RegistrationError if the endpoint would have more than five valid signing
    secrets.
    """
    before = crud.locked_row(call, "endpoint", _id(call))
    crud.require_conditions(call, get)
    return rotate_locked(call, _id(call), before, call.body_as(schemas.RotateSecret))


def rotate_locked(call: Call, endpoint_id: str, before: dict[str, Any], wanted: schemas.RotateSecret) -> schemas.RotatedSecret:
    """Create a new signing secret for an endpoint that the caller has locked, and write the audit entry.

    Raise RegistrationError if the endpoint would have more than five valid signing secrets. The caller must then roll back,
    because the ends of the earlier secrets are set already.
    """
    overlap = dt.timedelta(seconds=wanted.overlap_s)
    rotated = rotation.rotate_in_transaction(call.connection, call.ring, endpoint_id, scheme=wanted.scheme, overlap=overlap)
    fields = rotated.audit_fields(overlap)
    request_audit.write(call, "rotate_secret", "endpoint", endpoint_id, customer_id=before["customer"], after=fields)
    return schemas.RotatedSecret(**rotation.secret_document(endpoint_id, rotated))


def _id(call: Call) -> str:
    return call.path["endpoint_id"]


_ONE = "/v1/endpoints/{endpoint_id}"
ROUTES = (
    Route(
        method="GET", path="/v1/endpoints", name="listEndpoints",
        summary="List endpoints, sorted by id. `q` is searched in id, URL and description.",
        scopes=routes.REGISTRY_READERS, handler=list_, query=EndpointQuery, answer=schemas.Endpoints,
    ),
    Route(
        method="POST", path="/v1/endpoints", name="createEndpoint",
        summary="Create an endpoint. Shows its signing secret once.",
        scopes=routes.REGISTRY_WRITERS, handler=create, body=schemas.NewEndpoint, answer=schemas.CreatedEndpoint, status=201,
        is_change=True, shown_once="signing_secret", location="/v1/endpoints/{id}", resource=schemas.Endpoint,
    ),
    Route(
        method="GET", path=_ONE, name="getEndpoint", summary="Get an endpoint.",
        scopes=routes.REGISTRY_READERS, handler=get, answer=schemas.Endpoint, resource=schemas.Endpoint,
    ),
    Route(
        method="PATCH", path=_ONE, name="updateEndpoint", summary="Change the given fields of an endpoint.",
        scopes=routes.REGISTRY_WRITERS, handler=update, body=schemas.EndpointChanges, answer=schemas.Endpoint, is_change=True,
        resource=schemas.Endpoint,
    ),
    Route(
        method="DELETE", path=_ONE, name="deleteEndpoint", summary="Delete an endpoint with its subscriptions.",
        scopes=routes.REGISTRY_WRITERS, handler=delete, status=204, is_change=True, resource=schemas.Endpoint,
    ),
    Route(
        method="POST", path=f"{_ONE}/pause", name="pauseEndpoint", summary="Pause an endpoint: its deliveries wait.",
        scopes=routes.REGISTRY_WRITERS, handler=pause, answer=schemas.Endpoint, is_change=True, resource=schemas.Endpoint,
    ),
    Route(
        method="POST", path=f"{_ONE}/resume", name="resumeEndpoint", summary="Resume a paused endpoint.",
        scopes=routes.REGISTRY_WRITERS, handler=resume, answer=schemas.Endpoint, is_change=True, resource=schemas.Endpoint,
    ),
    Route(
        method="POST", path=f"{_ONE}/disable", name="disableEndpoint", summary="Disable an endpoint until it is enabled.",
        scopes=routes.REGISTRY_WRITERS, handler=disable, body=schemas.DisableEndpoint, answer=schemas.Endpoint, is_change=True,
        resource=schemas.Endpoint,
    ),
    Route(
        method="POST", path=f"{_ONE}/enable", name="enableEndpoint", summary="Make an endpoint active, whatever its status.",
        scopes=routes.REGISTRY_WRITERS, handler=enable, answer=schemas.Endpoint, is_change=True, resource=schemas.Endpoint,
    ),
    Route(
        method="POST", path=f"{_ONE}/rotate-secret", name="rotateSecret",
        summary="Create a new signing secret, shown once. The earlier secrets sign too during an overlap.",
        scopes=routes.REGISTRARS, handler=rotate, body=schemas.RotateSecret, answer=schemas.RotatedSecret, is_change=True,
        shown_once="secret", resource=schemas.Endpoint,
    ),
)  # fmt: skip
