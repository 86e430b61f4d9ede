"""Ask an endpoint's receiver for permission to deliver, and accept its permission by callback.

Runs in the API. The callback needs no API key: its token only permits deliveries to one endpoint.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from delivery import errors
from delivery.webhooks.http.transport import Response
from delivery.webhooks.sending import handshake
from subscriptions_db import described
from subscriptions_db.api.contract import crud, problems, request_audit, routes
from subscriptions_db.api.contract.routes import Call, PendingQuestion, Route
from subscriptions_db.registration import receiver_permission


class ValidationResult(described.DescribedModel):
    """The reply of the receiver. If the reply gives no permission, an earlier permission stays valid."""

    state: handshake.HandshakeState
    """The result of the question. `asked`: the response neither permits nor refuses deliveries, and the receiver may still
    permit deliveries by the callback."""
    permitted_per_minute: int | None
    """The permitted requests a minute. Null: any number, or the state is not `permitted`."""
    reason: str
    """The reason why `state` is not `permitted`, for people. Empty: it is `permitted`."""


class PermitResult(described.DescribedModel):
    """The recorded permission."""

    state: handshake.HandshakeState
    """The state of the permission."""
    permitted_per_minute: int | None
    """The permitted requests a minute. Null: any number."""


def validate(call: Call) -> PendingQuestion:
    """Prepare a question for permission, whatever the endpoint's status. The API then records the question, and sends it.

    Raise Refused with 404 if there is no such endpoint. Raise it with 409 if the endpoint needs no permission or cannot
    be used, or if the operator has set no `delivery.webhook_origin`.
    """
    endpoint_id = call.path["endpoint_id"]
    row, asked = (
        crud.locked_row(call, "endpoint", endpoint_id),
        {"origin": call.webhook_origin, "public_url": call.bounds.public_url},
    )
    try:
        asking = receiver_permission.prepare(call.connection, call.ring, call.guard, endpoint_id, row, **asked)
    except errors.RegistrationError as exc:
        raise problems.Refused(409, str(exc)) from None
    return PendingQuestion(asking.to, functools.partial(_record, asking), functools.partial(_concluded, asking))


def _record(asking: receiver_permission.ReceiverQuestion, call: Call) -> None:
    crud.locked_row(call, "endpoint", asking.endpoint_id)  # the endpoint may be deleted by now
    receiver_permission.record(call.connection, asking)


def _concluded(
    asking: receiver_permission.ReceiverQuestion, call: Call, said: Response | errors.AttemptFailed
) -> ValidationResult:
    before = crud.locked_row(call, "endpoint", asking.endpoint_id)  # the endpoint may be deleted by now
    reply = receiver_permission.finish(call.connection, asking, said)
    after = crud.existing_row(call, "endpoint", asking.endpoint_id)
    fields = receiver_permission.audit_fields(reply, after)
    request_audit.write(call, "validate", "endpoint", asking.endpoint_id, customer_id=before["customer"], after=fields)
    per_minute = after["permitted_per_minute"] if reply.state is handshake.HandshakeState.PERMITTED else None
    return ValidationResult(state=reply.state, permitted_per_minute=per_minute, reason=reply.reason)


def permit(call: Call) -> PermitResult:
    """Record the permission that a receiver gives at the callback URL.

    Only the first answer to a question counts; a repeat returns the recorded permission. If the permission was forgotten since,
    because the endpoint's URL was changed and changed back, a repeat records a permission again. Raise Refused with 404 if
    there is no such question, or if it can no longer be answered. Raise RegistrationError if the header `WebHook-Allowed-Rate`
    is malformed.
    """
    endpoint_id, token = call.path["endpoint_id"], receiver_permission.digest(call.path["token"])
    per_minute = None if call.header is None else handshake.per_minute(call.header)
    before = crud.locked_row(call, "endpoint", endpoint_id)
    asked = receiver_permission.open_question(call.connection, endpoint_id, token)
    if asked is None:  # a new question or a new URL has replaced the question meanwhile
        raise problems.question_closed()
    if asked["is_answered"]:
        return PermitResult(state=handshake.HandshakeState.PERMITTED, permitted_per_minute=before["permitted_per_minute"])
    receiver_permission.permit(call.connection, endpoint_id, token, asked, per_minute)
    was, now = map(receiver_permission.permission, (before, crud.existing_row(call, "endpoint", endpoint_id)))
    request_audit.write(call, "permit", "endpoint", endpoint_id, customer_id=before["customer"], before=was, after=now)
    return PermitResult(state=handshake.HandshakeState.PERMITTED, permitted_per_minute=per_minute)


_PERMIT = Route(
    method="POST", path="/v1/endpoints/{endpoint_id}/permit/{token}", name="permitDeliveries",
    summary="For receivers: permit deliveries to the endpoint, at the callback URL of the question.",
    scopes=frozenset(), handler=permit, answer=PermitResult, is_validation=True, is_open=True, header=handshake.ALLOWED_RATE,
)  # fmt: skip
ROUTES = (
    Route(
        method="POST", path="/v1/endpoints/{endpoint_id}/validate", name="validateEndpoint",
        summary="Ask the endpoint's receiver for permission to deliver (OPTIONS), and show its reply.",
        scopes=routes.REGISTRY_WRITERS, handler=validate, answer=ValidationResult, is_validation=True, is_answer_progress=True,
    ),
    _PERMIT,
    replace(_PERMIT, method="GET", name="permitDeliveriesByBrowser"),
)  # fmt: skip
