"""Ask an endpoint's receiver whether it wants deliveries, and take its permission by the callback.

Runs in the API. The callback takes no key: all it may do is permit deliveries to the one endpoint that its token was made for.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import pydantic

from delivery import errors
from delivery.webhooks import validation
from delivery.webhooks.transport import Response
from subscriptions_db import validating
from subscriptions_db.api import change_log, problems, routes, rows
from subscriptions_db.api.routes import Call, Exchange, Route


class Validated(pydantic.BaseModel):
    """What the receiver said. A permission of before stays, whatever it says now."""

    state: validation.State
    permitted_per_minute: int | None
    """How many requests a minute it permits; null: as many as we like, if `permitted`."""
    reason: str
    """Why it is not permitted."""


class Permitted(pydantic.BaseModel):
    """That it was noted."""

    state: validation.State
    permitted_per_minute: int | None


def validate(call: Call) -> Exchange:
    """Ask the receiver, whatever the endpoint's status is."""
    endpoint_id = call.path["endpoint_id"]
    row, asked = rows.held(call, "endpoint", endpoint_id), {"origin": call.webhook_origin, "public_url": call.bounds.public_url}
    try:
        asking = validating.begin(call.connection, call.ring, call.guard, endpoint_id, row, **asked)
    except errors.RegistrationError as exc:
        raise problems.Refused(409, str(exc)) from None
    return Exchange(asking.to, functools.partial(_concluded, asking))


def _concluded(asking: validating.Asking, call: Call, said: Response | errors.AttemptFailed) -> Validated:
    before = rows.held(call, "endpoint", asking.endpoint_id)  # it may be gone by now
    reply = validating.finish(call.connection, asking, said)
    after = rows.found(call, "endpoint", asking.endpoint_id)
    told = validating.noted(reply, after)
    change_log.write(call, "validate", "endpoint", asking.endpoint_id, customer_id=before["customer"], after=told)
    per_minute = after["permitted_per_minute"] if reply.state is validation.State.PERMITTED else None
    return Validated(state=reply.state, permitted_per_minute=per_minute, reason=reply.reason)


def permit(call: Call) -> Permitted:
    """Note the receiver's permission. The first answer to a question counts; what is repeated is told what counts."""
    endpoint_id, token = call.path["endpoint_id"], validating.digest(call.path["token"])
    per_minute = None if call.header is None else validation.per_minute(call.header)
    before = rows.held(call, "endpoint", endpoint_id)
    asked = validating.open_question(call.connection, endpoint_id, token)
    if asked is None:  # asked anew, or the URL was changed, at this moment
        raise problems.not_found("question, or it can no longer be answered")
    if asked["is_answered"]:
        return Permitted(state=validation.State.PERMITTED, permitted_per_minute=before["permitted_per_minute"])
    validating.permit(call.connection, endpoint_id, token, asked, per_minute)
    was, now = map(validating.permission, (before, rows.found(call, "endpoint", endpoint_id)))
    change_log.write(call, "permit", "endpoint", endpoint_id, customer_id=before["customer"], before=was, after=now)
    return Permitted(state=validation.State.PERMITTED, permitted_per_minute=per_minute)


_PERMIT = Route(
    method="POST", path="/v1/endpoints/{endpoint_id}/permit/{token}", name="permitDeliveries",
    summary="For the receiver that was asked: permit deliveries to the endpoint, by the URL that it was told.",
    scopes=frozenset(), handler=permit, answer=Permitted, is_validation=True, is_open=True, header=validation.ALLOWED_RATE,
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
