"""Ask an endpoint's receiver whether it wants deliveries, and take its permission by the callback.

Runs in the API. The callback takes no key: all it may do is permit deliveries to the one endpoint that its token was made for.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import pydantic

from delivery import errors
from delivery.webhooks.http.transport import Response
from delivery.webhooks.sending import handshake
from subscriptions_db.api.contract import audit, crud, problems, routes
from subscriptions_db.api.contract.routes import Call, Exchange, Route
from subscriptions_db.registration import receiver_permission


class Validated(pydantic.BaseModel):
    """What the receiver said. A permission of before stays, whatever it says now."""

    state: handshake.State
    permitted_per_minute: int | None
    """How many requests a minute it permits; null: as many as we like, if `permitted`."""
    reason: str
    """Why it is not permitted."""


class Permitted(pydantic.BaseModel):
    """That it was noted."""

    state: handshake.State
    permitted_per_minute: int | None


def validate(call: Call) -> Exchange:
    """Ask the receiver, whatever the endpoint's status is."""
    endpoint_id = call.path["endpoint_id"]
    row, asked = crud.held(call, "endpoint", endpoint_id), {"origin": call.webhook_origin, "public_url": call.bounds.public_url}
    try:
        asking = receiver_permission.begin(call.connection, call.ring, call.guard, endpoint_id, row, **asked)
    except errors.RegistrationError as exc:
        raise problems.Refused(409, str(exc)) from None
    return Exchange(asking.to, functools.partial(_concluded, asking))


def _concluded(asking: receiver_permission.Asking, call: Call, said: Response | errors.AttemptFailed) -> Validated:
    before = crud.held(call, "endpoint", asking.endpoint_id)  # it may be gone by now
    reply = receiver_permission.finish(call.connection, asking, said)
    after = crud.found(call, "endpoint", asking.endpoint_id)
    told = receiver_permission.noted(reply, after)
    audit.write(call, "validate", "endpoint", asking.endpoint_id, customer_id=before["customer"], after=told)
    per_minute = after["permitted_per_minute"] if reply.state is handshake.State.PERMITTED else None
    return Validated(state=reply.state, permitted_per_minute=per_minute, reason=reply.reason)


def permit(call: Call) -> Permitted:
    """Note the receiver's permission. The first answer to a question counts; what is repeated is told what counts."""
    endpoint_id, token = call.path["endpoint_id"], receiver_permission.digest(call.path["token"])
    per_minute = None if call.header is None else handshake.per_minute(call.header)
    before = crud.held(call, "endpoint", endpoint_id)
    asked = receiver_permission.open_question(call.connection, endpoint_id, token)
    if asked is None:  # asked anew, or the URL was changed, at this moment
        raise problems.not_found("question, or it can no longer be answered")
    if asked["is_answered"]:
        return Permitted(state=handshake.State.PERMITTED, permitted_per_minute=before["permitted_per_minute"])
    receiver_permission.permit(call.connection, endpoint_id, token, asked, per_minute)
    was, now = map(receiver_permission.permission, (before, crud.found(call, "endpoint", endpoint_id)))
    audit.write(call, "permit", "endpoint", endpoint_id, customer_id=before["customer"], before=was, after=now)
    return Permitted(state=handshake.State.PERMITTED, permitted_per_minute=per_minute)


_PERMIT = Route(
    method="POST", path="/v1/endpoints/{endpoint_id}/permit/{token}", name="permitDeliveries",
    summary="For the receiver that was asked: permit deliveries to the endpoint, by the URL that it was told.",
    scopes=frozenset(), handler=permit, answer=Permitted, is_validation=True, is_open=True, header=handshake.ALLOWED_RATE,
)  # fmt: skip
ROUTES = (
    Route(
        method="POST", path="/v1/endpoints/{endpoint_id}/validate", name="validateEndpoint",
        summary="Ask the endpoint's receiver whether it wants deliveries (OPTIONS), and show what it says.",
        scopes=routes.ADMINS, handler=validate, answer=Validated, is_validation=True,
    ),
    _PERMIT,
    replace(_PERMIT, method="GET", name="permitDeliveriesByBrowser"),
)  # fmt: skip
