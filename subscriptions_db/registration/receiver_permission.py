"""Ask an endpoint's receiver whether it wants deliveries, and note its permission (docs/delivery-contract.md, Permission).

Runs in the API and in the command. What is asked, and what an answer means, is decided in
delivery.webhooks.sending.handshake. The request is sent in between, outside of any transaction.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from delivery import errors
from delivery.model import EndpointId
from delivery.webhooks.http import guard, origin
from delivery.webhooks.http.transport import Response
from delivery.webhooks.sending import handshake, request
from delivery.webhooks.sending.handshake import Reply, State
from subscriptions_db import disclosure
from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query
from subscriptions_db.secrets import keyring
from subscriptions_db.snapshot import registry_reader

LIFETIME = dt.timedelta(days=7)
"""For so long a receiver may answer by the callback: time for a person to find it in a log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """A question that is to be sent."""

    endpoint_id: str
    to: origin.Target
    question: handshake.Question
    token: bytes = field(repr=False)
    """Its digest."""


def begin(
    connection: connect.Connection,
    ring: keyring.KeyRing,
    address_guard: guard.Guard,
    endpoint_id: str,
    row: dict[str, Any],
    *,
    origin: str,
    public_url: str,
) -> Asking:
    """Make the question to an endpoint, by its row in the registry; raise RegistrationError when it cannot be asked.

    To be committed before it is sent: a receiver may use the callback at once.
    """
    if row["validation"] == "none":
        raise errors.RegistrationError("validation", "is none: deliveries are sent to this endpoint without asking")
    if not origin:
        raise errors.RegistrationError("validation", "the operator has to set delivery.webhook_origin first")
    endpoint = registry_reader.read_rows(
        connection, ring, address_guard, endpoint_ids=[endpoint_id], subscription_ids=[]
    ).endpoints[EndpointId(endpoint_id)]
    if endpoint.fault:
        raise errors.RegistrationError("", f"the endpoint cannot be used: {endpoint.fault}")
    token = secrets.token_hex(32)
    question = handshake.Question(
        origin=origin,
        per_minute=handshake.wished_per_minute(row["max_per_second"]),
        callback=f"{public_url}/v1/endpoints/{endpoint_id}/permit/{token}" if public_url else None,
    )
    asked = {"endpoint_id": endpoint_id, "customer_id": endpoint.customer_id, "url": endpoint.url, "origin": origin}
    made = Asking(
        endpoint_id=endpoint_id,
        to=request.prepare_handshake(endpoint, question, address_guard),
        question=question,
        token=digest(token),
    )
    lifetime = {"token_digest": made.token, "lifetime_s": LIFETIME.total_seconds()}
    connection.execute(query("put_validation"), asked | lifetime)
    return made


def finish(connection: connect.Connection, asking: Asking, answer: Response | errors.AttemptFailed) -> Reply:
    """Note what came of a question, and return it. A permission that was given before stays, whatever is said now."""
    if isinstance(answer, errors.AttemptFailed):
        reply = Reply(State.REFUSED, reason=f"no answer ({disclosure.word(answer.error_class)}): {answer}")
    else:
        reply = handshake.parse_reply(asking.question, answer.headers)
    asked = open_question(connection, asking.endpoint_id, asking.token)
    if reply.state is State.PERMITTED:
        is_noted = asked is not None and permit(connection, asking.endpoint_id, asking.token, asked, reply.per_minute)
        return reply if is_noted else Reply(State.REFUSED, reason="the endpoint was changed, or asked anew, at the same time")
    # By the callback, before this answer had come?
    return Reply(State.PERMITTED) if asked is not None and asked["is_answered"] else reply


def noted(reply: Reply, endpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the audit log has of a question: what came of it, and what is permitted now."""
    return {"state": reply.state, "reason": reply.reason} | permission(endpoint)


def permission(endpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an endpoint's receiver permits."""
    return {name: endpoint[name] for name in ("permitted_origin", "permitted_per_minute")}


def open_question(connection: connect.Connection, endpoint_id: str, token: bytes) -> dict[str, Any] | None:
    """Return the question that a token's digest answers, if it can still be answered."""
    asked = {"endpoint_id": endpoint_id, "token_digest": token}
    return connection.execute(query("validation"), asked).fetchone()


def permit(
    connection: connect.Connection, endpoint_id: str, token: bytes, asked: dict[str, Any], per_minute: int | None
) -> bool:
    """Note that the receiver permits deliveries; tell whether that still was what had been asked."""
    wanted = {"endpoint_id": endpoint_id, "token_digest": token, "per_minute": per_minute}
    connection.execute(query("answer_validation"), wanted)
    return connection.execute(query("permit"), asked | wanted).fetchone() is not None


def digest(token: str) -> bytes:
    """Return what is kept of a token."""
    return hashlib.sha256(token.encode()).digest()
