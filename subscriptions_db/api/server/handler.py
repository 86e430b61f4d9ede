"""Execute a request in a transaction, and only once for each `Idempotency-Key`.

Runs in the API, on its worker threads.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
import pydantic
from psycopg.types.json import Jsonb

from delivery import errors
from delivery.config import service_settings
from delivery.webhooks.http import guard, transport
from subscriptions_db.api.contract import etags, problems, routes
from subscriptions_db.api.contract.deprecation import Deprecation
from subscriptions_db.api.contract.principals import Principal, Scope
from subscriptions_db.api.contract.routes import Route
from subscriptions_db.api.server import transactions
from subscriptions_db.postgres import connect, stored_answers
from subscriptions_db.postgres.sql import query
from subscriptions_db.secrets import keyring


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRequest:
    """An admitted request with its body, before the query and the body are validated."""

    principal: Principal
    path: Mapping[str, str]
    query: Mapping[str, str]
    body: bytes = field(repr=False)
    idempotency_key: str | None = None
    header: str | None = None
    """The value of the header that the route reads. None: the request does not have it."""
    conditions: etags.Conditions = etags.UNCONDITIONAL
    """`If-Match` and `If-None-Match` of a change of a resource. UNCONDITIONAL for other requests."""
    deprecations: set[Deprecation] = field(default_factory=set)
    """The deprecation of the operation. The validation adds the deprecations of the request's parameters and fields."""

    def digest(self, route: Route) -> bytes:
        """Return a digest of route, path, query, body and conditions, by which repeats of a request are recognised.

        Requests with API keys of scope `write_only` have other digests. Otherwise such an API key could get an answer that it
        may not read: the stored answer to a request with another API key.
        """
        asked: list[Any] = [
            route.name,
            sorted(self.path.items()),
            sorted(self.query.items()),
            hashlib.sha256(self.body).hexdigest(),
        ]
        if self.conditions != etags.UNCONDITIONAL:  # else the digest is that of earlier versions, whose answers are stored
            asked.append([None if value is None else _with_any_bytes(value) for value in self.conditions])
        if self.principal.scope is Scope.WRITE_ONLY:
            asked.append(str(Scope.WRITE_ONLY))
        return hashlib.sha256(orjson.dumps(asked)).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiAnswer:
    """The answer to a request, or the step that the event loop must take before the answer."""

    status: int
    document: dict[str, Any] | None
    is_repeated: bool = False
    sending: routes.PendingSend | None = None
    """Set if the handler asks for a test event, which is recorded and then sent. The result of its attempt takes the place of
    `document` in the answer."""
    exchange: routes.PendingQuestion | None = None
    """Set if the handler asks a receiver for its permission to deliver (a question). The question is recorded and then sent.
    The receiver's reply decides the document of the answer."""
    awaited: routes.LongPoll | None = None
    """Set if the handler found nothing, and the request may wait (long_polls.py)."""
    following: routes.SnapshotRequest | None = None
    """Set if the snapshot feed makes the answer."""
    content: bytes | None = None
    """Bytes to answer in place of a document."""


class RequestHandler:
    """Execute requests in transactions, and return the answers. Thread-safe."""

    def __init__(
        self,
        opened: transactions.Store,
        ring: keyring.KeyRing,
        address_guard: guard.Guard,
        bounds: service_settings.ApiSettings,
        webhook_origin: str,
    ) -> None:
        self._store = opened
        self._ring = ring
        self._guard = address_guard
        self._bounds = bounds
        self._webhook_origin = webhook_origin

    def answer(self, route: Route, request: ApiRequest) -> ApiAnswer:
        """Run the route's handler in a transaction, and return the answer.

        Raise Refused if the request is invalid, if the handler refuses it, or if an error of the platform prevents the answer.

        If an equal request of the same customer with the same `Idempotency-Key` succeeded within a day, return its answer
        without the secrets, and change nothing. Refuse a different request with the key. The answer to a refused request is not
        stored.
        """
        with self._call(route, request) as call:
            return _once(route, request, call) if request.idempotency_key else _made(route, call)

    def record(self, route: Route, request: ApiRequest, pending: routes.PendingSend | routes.PendingQuestion) -> None:
        """Record, in a transaction of its own, what is about to be sent: a test event, or the question to a receiver.

        Raise Refused as `answer` does.
        """
        with self._call(route, request) as call:
            pending.record(call)

    def conclude(
        self,
        route: Route,
        request: ApiRequest,
        exchange: routes.PendingQuestion,
        said: transport.Response | errors.AttemptFailed,
    ) -> ApiAnswer:
        """Store the reply of a receiver that a handler asked, and return the answer to the request.

        Runs in a transaction of its own. Raise Refused as `answer` does. `said` is the receiver's response, or the error of the
        attempt to get one.
        """
        with self._call(route, request) as call:
            return ApiAnswer(status=route.status, document=exchange.then(call, said).model_dump(mode="json"))

    @contextlib.contextmanager
    def _call(self, route: Route, request: ApiRequest) -> Iterator[routes.Call]:
        asked, document, body = _checked(route, request)
        is_change = route.is_change or route.is_poll or route.is_validation
        try:
            with self._store.transaction(request.principal, is_change=is_change) as connection:
                yield routes.Call(
                    principal=request.principal,
                    connection=connection,
                    ring=self._ring,
                    guard=self._guard,
                    bounds=self._bounds,
                    webhook_origin=self._webhook_origin,
                    path=request.path,
                    query=asked,
                    body=body,
                    document=document,
                    header=request.header,
                    conditions=request.conditions,
                    deprecations=request.deprecations,
                )
        except errors.FanoutError as exc:
            raise problems.from_error(exc) from exc


def _made(route: Route, call: routes.Call) -> ApiAnswer:
    assert route.handler is not None  # noqa: S101  # app.py sends requests without a handler to publish_handler.py
    match made := route.handler(call):
        case None:
            return ApiAnswer(status=route.status, document=None)
        case routes.Created(shown):
            return ApiAnswer(status=201, document=shown.model_dump(mode="json"))
        case routes.PendingSend():
            return ApiAnswer(status=route.status, document=None, sending=made)
        case routes.PendingQuestion():
            return ApiAnswer(status=route.status, document=None, exchange=made)
        case routes.SnapshotRequest():
            return ApiAnswer(status=route.status, document=None, following=made)
        case routes.RawBytes(content):
            return ApiAnswer(status=route.status, document=None, content=content)
        case routes.LongPoll(answer):
            return ApiAnswer(status=route.status, document=answer.model_dump(mode="json"), awaited=made)
    return ApiAnswer(status=route.status, document=made.model_dump(mode="json"))


def _once(route: Route, request: ApiRequest, call: routes.Call) -> ApiAnswer:
    repeated = _claim(call.connection, route, request)
    if repeated is not None:
        return repeated
    answer = _made(route, call)
    _keep(call.connection, route, request, answer)
    return answer


def _checked(route: Route, request: ApiRequest) -> tuple[pydantic.BaseModel, dict[str, Any], pydantic.BaseModel]:
    """Return the validated query, the body as received, and the validated body. The route declares the types.

    A route without a body type gets an empty body. Raise Refused if the types do not fit, or the body is no JSON object.
    """
    kind = route.query
    try:
        asked = kind.model_validate(dict(request.query), context=request.deprecations)
        document = _document(request.body) if route.body else {}
        kind = route.body or routes.NoParameters
        return asked, document, kind.model_validate(document, context=request.deprecations)
    except pydantic.ValidationError as exc:
        raise problems.from_validation(exc, kind) from None


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as exc:  # its text quotes nothing of the body
        raise problems.invalid(("", f"the body is not JSON: {exc}")) from None
    if not isinstance(document, dict):
        raise problems.invalid(("", "the body must be a JSON object"))
    return document


def _with_any_bytes(header: str) -> str:
    """Return a header as text that JSON can carry: aiohttp makes surrogates of bytes that are not UTF-8. ASCII is unchanged."""
    return header.encode(errors="surrogateescape").decode("latin-1")


def _claim(connection: connect.Connection, route: Route, request: ApiRequest) -> ApiAnswer | None:
    """Claim the idempotency key for this request; return the stored answer if an equal earlier request claimed it.

    1. No request has claimed the key within a day: claim it, delete old answers that the principal may see, and return None.
    2. An equal request has claimed the key: return the stored answer.
    3. A different request has claimed the key: raise Refused with 422.
    4. Another request with the key is in flight: wait for the end of its transaction. After a second, the lock timeout,
       `RequestHandler.answer` refuses this request with 503.
    """
    wanted = _row(request) | {"request_digest": request.digest(route)}
    if connection.execute(query("claim_idempotency_key"), wanted).fetchone() is not None:
        # After the claim: two requests that deleted the old answers of each other's keys would wait for each other.
        stored_answers.delete_old(connection)
        return None
    [kept] = connection.execute(query("stored_answer"), wanted).fetchall()
    if not hmac.compare_digest(bytes(kept["request_digest"]), wanted["request_digest"]):
        raise problems.invalid(("Idempotency-Key", "was used for a different request within a day: use a new key"))
    return ApiAnswer(status=kept["status"], document=kept["answer"], is_repeated=True)


def _keep(connection: connect.Connection, route: Route, request: ApiRequest, answer: ApiAnswer) -> None:
    document = answer.document
    if document is not None and route.shown_once:
        document = _without(document, route.shown_once)
    kept = None if document is None else Jsonb(document)
    connection.execute(query("put_answer"), _row(request) | {"status": answer.status, "answer": kept})


def _without(document: dict[str, Any], place: str) -> dict[str, Any]:
    """Return an answer with null in the secret field at `place` (Route.shown_once).

    `secret` is the field `secret` of the document. `items.secret` is the field `secret` of each item in the document's `items`.
    """
    field, _, of_item = place.partition(".")
    return document | {field: [_without(item, of_item) for item in document[field]] if of_item else None}


def _row(request: ApiRequest) -> dict[str, Any]:
    """Return the columns `customer_id` and `idempotency_key`, by which Postgres finds a stored answer.

    For a limited API key, the stored idempotency key is two digests with a space between them: of the API key's endpoints, and
    of the request's idempotency key. The policy of row-level security compares the first digest.
    """
    principal, key = request.principal, request.idempotency_key
    if principal.endpoints is not None and key is not None:
        key = " ".join(hashlib.sha256(text.encode()).hexdigest() for text in (principal.endpoint_ids, key))
    return {"customer_id": principal.customer_id, "idempotency_key": key}
