"""Ask an endpoint's receiver for permission to deliver, and record the permission (docs/delivery-contract.md, Permission).

Runs in the API and in `fanout` commands. delivery.webhooks.sending.handshake builds the question and interprets the reply. The
caller sends the question between `record` and `finish`, outside of any transaction.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from delivery import errors
from delivery.registry_model import EndpointId
from delivery.webhooks.http import guard, origin
from delivery.webhooks.http.transport import Response
from delivery.webhooks.sending import handshake, request
from delivery.webhooks.sending.handshake import HandshakeState, Reply
from subscriptions_db import disclosure
from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query
from subscriptions_db.secrets import keyring
from subscriptions_db.snapshot import registry_reader

LIFETIME = dt.timedelta(days=7)
"""Time after a question in which its receiver may use the callback URL: enough for a person to find the URL in a log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverQuestion:
    """A request that asks a receiver for permission to deliver (a question), ready to record and to send."""

    endpoint_id: str
    to: origin.Target
    question: handshake.Question
    token_digest: bytes = field(repr=False)
    """The digest of the token in the callback URL."""


def prepare(
    connection: connect.Connection,
    ring: keyring.KeyRing,
    address_guard: guard.Guard,
    endpoint_id: str,
    row: dict[str, Any],
    *,
    origin: str,
    public_url: str,
) -> ReceiverQuestion:
    """Return the question that asks an endpoint's receiver for permission to deliver. Change nothing.

    `row` is the endpoint's row of registered_rows. `origin` is the setting `delivery.webhook_origin`. `public_url` is the URL
    of the API; if it is empty, the question has no callback URL. Raise RegistrationError if `origin` is empty, or if the
    endpoint needs no permission, is quarantined, or was deleted since `row` was read.
    """
    if row["validation"] == "none":
        raise errors.RegistrationError(
            "validation", f"is none, so endpoint {endpoint_id} needs no permission. Its receiver was not asked"
        )
    if not origin:
        raise errors.RegistrationError(
            "",
            f"the receiver of endpoint {endpoint_id} was not asked, because the setting delivery.webhook_origin is empty. The "
            "operator must set it first",
        )
    read = registry_reader.read_rows(connection, ring, address_guard, endpoint_ids=[endpoint_id], subscription_ids=[])
    endpoint = read.endpoints.get(EndpointId(endpoint_id))
    if endpoint is None:
        raise errors.RegistrationError(
            "",
            f"endpoint {endpoint_id} was deleted meanwhile, so its receiver was not asked for permission. To deliver there, "
            "create the endpoint again",
        )
    if endpoint.fault:
        raise errors.RegistrationError(
            "", f"endpoint {endpoint_id} cannot be used, and its receiver was not asked: {endpoint.fault}"
        )
    token = secrets.token_hex(32)
    question = handshake.Question(
        origin=origin,
        per_minute=handshake.wished_per_minute(row["max_per_second"]),
        callback=f"{public_url}/v1/endpoints/{endpoint_id}/permit/{token}" if public_url else None,
    )
    return ReceiverQuestion(
        endpoint_id=endpoint_id,
        to=request.prepare_handshake(endpoint, question, address_guard),
        question=question,
        token_digest=digest(token),
    )


def record(connection: connect.Connection, asking: ReceiverQuestion) -> None:
    """Record a question that is about to be sent. The callback of an earlier question becomes invalid.

    The caller must commit before it sends the question, because the receiver may use the callback at once.
    """
    endpoint = asking.to.endpoint
    asked = {
        "endpoint_id": asking.endpoint_id,
        "customer_id": endpoint.customer_id,
        "url": endpoint.url,
        "origin": asking.question.origin,
        "token_digest": asking.token_digest,
        "lifetime_s": LIFETIME.total_seconds(),
    }
    connection.execute(query("put_validation"), asked)


def finish(connection: connect.Connection, asking: ReceiverQuestion, answer: Response | errors.AttemptFailed) -> Reply:
    """Record the permission, if the reply to a question gives one, and return the state that results.

    A reply without a permission leaves an earlier permission valid.

    1. The reply permits deliveries: return the reply, or a refusal if the endpoint was changed or asked again meanwhile.
    2. The receiver has permitted deliveries by the callback meanwhile: return a permission without its rate.
    3. Otherwise return the reply, or a refusal if no reply came.
    """
    if isinstance(answer, errors.AttemptFailed):
        reply = Reply(HandshakeState.REFUSED, reason=f"no answer ({disclosure.word(answer.error_class)}): {answer}")
    else:
        reply = handshake.parse_reply(asking.question, answer.headers)
    asked = open_question(connection, asking.endpoint_id, asking.token_digest)
    if reply.state is HandshakeState.PERMITTED:
        is_recorded = asked is not None and permit(connection, asking.endpoint_id, asking.token_digest, asked, reply.per_minute)
        if is_recorded:
            return reply
        reason = "the endpoint was changed or asked again meanwhile, so the permission was not recorded: ask again"
        return Reply(HandshakeState.REFUSED, reason=reason)
    # The receiver may have permitted deliveries by the callback before this reply arrived.
    return Reply(HandshakeState.PERMITTED) if asked is not None and asked["is_answered"] else reply


def audit_fields(reply: Reply, endpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Return the audit entry's fields: `state` and `reason` of the reply to a question, and the fields of `permission`."""
    return {"state": reply.state, "reason": reply.reason} | permission(endpoint)


def permission(endpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Return `permitted_origin` and `permitted_per_minute` (requests a minute) from the row of an endpoint.

    The two fields are None without a permission. `permitted_per_minute` is also None if the receiver sets no limit.
    """
    return {name: endpoint[name] for name in ("permitted_origin", "permitted_per_minute")}


def open_question(connection: connect.Connection, endpoint_id: str, token_digest: bytes) -> dict[str, Any] | None:
    """Return the open question to an endpoint's receiver, found by the digest of the token in its callback URL.

    The row has `customer_id`, `url`, `origin`, and `is_answered`: True if the receiver has answered the question already,
    and the endpoint still has a permission. None: the answer would give no permission, for one of these reasons:

    1. There is no such question, or the question has expired.
    2. The endpoint's URL was changed since the question, so the question went to another URL.
    3. The endpoint needs no permission any more.
    """
    asked = {"endpoint_id": endpoint_id, "token_digest": token_digest}
    return connection.execute(query("open_validation"), asked).fetchone()


def permit(
    connection: connect.Connection, endpoint_id: str, token_digest: bytes, asked: dict[str, Any], per_minute: int | None
) -> bool:
    """Record that an endpoint's receiver permits deliveries, and that the question with this token digest was answered.

    `asked` is the row of the question. `per_minute` None: without a limit. Return False, and record only the answer, if the
    endpoint was deleted, has another URL since the question, or needs no permission any more.
    """
    wanted = {"endpoint_id": endpoint_id, "token_digest": token_digest, "per_minute": per_minute}
    connection.execute(query("mark_validation_answered"), wanted)
    return connection.execute(query("set_permission"), asked | wanted).fetchone() is not None


def digest(token: str) -> bytes:
    """Return the SHA-256 digest of a token. Postgres stores the digest, not the token."""
    return hashlib.sha256(token.encode()).digest()
