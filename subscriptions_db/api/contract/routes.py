"""Define the type Route, and the types of the arguments and the results of handlers.

The list of Routes (server/route_table.py) is the single source of routing, request validation and the OpenAPI document. Only
the probes, the OpenAPI document and the pages about problems are outside of this list (server/app.py).

Runs in the API, and in `fanout` commands for the OpenAPI document.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypeVar

import pydantic
from pydantic import Field

from delivery import errors
from delivery.config import service_settings
from delivery.model import Sendable
from delivery.registry_model import Revision
from delivery.webhooks.http import guard
from delivery.webhooks.http.origin import Target
from delivery.webhooks.http.transport import Response
from subscriptions_db import answer_size, described
from subscriptions_db.api.contract import cursors, etags
from subscriptions_db.api.contract.deprecation import Deprecation
from subscriptions_db.api.contract.principals import Principal, Scope
from subscriptions_db.manifest import manifest
from subscriptions_db.postgres import connect
from subscriptions_db.secrets import keyring

OPERATOR = frozenset({Scope.OPERATOR})
ADMINS = OPERATOR | {Scope.CUSTOMER_ADMIN}
WRITERS = ADMINS | {Scope.WRITE_ONLY}
REGISTRARS = ADMINS | {Scope.REGISTRAR}
REGISTRY_WRITERS = REGISTRARS | WRITERS
READERS = ADMINS | {Scope.READ_ONLY}
REGISTRY_READERS = READERS | REGISTRARS
POLLERS = ADMINS | {Scope.POLLER}
BROWSERS = READERS | POLLERS
"""The scopes of API keys that may call a route. BROWSERS may list dead letters; POLLERS may also lease them. WRITERS may change
dead letters, consumers and replays. READERS may read deliveries, attempts, statistics, replays and the audit log.
REGISTRY_WRITERS may change endpoints and subscriptions, and REGISTRY_READERS may read them. REGISTRARS may read and change
endpoints and subscriptions, and also rotate secrets and send test events."""
MAX_PAGE = 200
"""Maximum rows of a page."""

Model = TypeVar("Model", bound=pydantic.BaseModel)


Cursor = Annotated[str, Field(max_length=512), pydantic.AfterValidator(cursors.checked)]
"""A cursor of the registry's lists."""
WaitS = Annotated[float, Field(ge=0, le=60)]
"""Seconds that a request waits for a result, at most `api.max_poll_s`."""


class NoParameters(described.DescribedModel):
    """A query without parameters, or a body without fields. Also the base class of other queries and bodies."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class CustomerQuery(NoParameters):
    """The customer that the request is about."""

    customer: manifest.Id | None = None
    """Required with an operator's key; other keys belong to one customer."""


class ListQuery(NoParameters):
    """The page of a list to return. Without `cursor`: the first page. With `cursor`: the page that an earlier answer names."""

    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 50
    """Maximum number of rows. A page also ends when it has 1 MiB."""
    cursor: Cursor | None = None
    """`next_cursor` or `previous_cursor` of another page."""
    total: bool = False
    """Count the rows of all pages too."""


class ListPage(described.DescribedModel):
    """A page of a list: its cursors and the total of the list."""

    next_cursor: str | None
    """The cursor of the next page. Null: this is the last page."""
    previous_cursor: str | None
    """The cursor of the previous page. Null: this is the first page."""
    total: int | None
    """The number of rows of all pages. Null: the request does not have `total=true`."""


class BoundedListPage(ListPage):
    """A page of a list in which one request examines a bounded number of rows.

    So a page can be empty, and still have a `next_cursor` or a `previous_cursor`.
    """

    is_total_exact: bool | None
    """Null without `total=true`. False: there may be more than `total`, because only a bounded number of rows is counted."""


def fitting_part(items: list[Model]) -> list[Model]:
    """Return the first items of a page, as many as fit into answer_size.MAX_BYTES (1 MiB); at least one if there are any."""
    return items[: answer_size.count(len(item.model_dump_json().encode()) for item in items)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A validated request with everything its handler needs. Handlers are plain functions, run in the call's transaction."""

    principal: Principal
    connection: connect.Connection
    """The connection to Postgres, in a transaction with the rights of the principal."""
    ring: keyring.KeyRing
    guard: guard.Guard
    bounds: service_settings.ApiSettings
    """The settings of the API, with its limits for customers."""
    webhook_origin: str
    """The origin that the platform states to receivers (`delivery.webhook_origin`)."""
    path: Mapping[str, str]
    query: pydantic.BaseModel
    body: pydantic.BaseModel
    document: dict[str, Any]
    """The body as received, without the defaults of omitted fields."""
    header: str | None
    """The value of the header that the route reads, as received. None: the request does not have it."""
    conditions: etags.Conditions
    """`If-Match` and `If-None-Match` of a change of a resource. UNCONDITIONAL for other requests."""
    deprecations: set[Deprecation]
    """pydantic's validation context, for handlers that validate parts of the body themselves. It has the deprecations of the
    operation, and of the parameters and fields that the request has."""

    def body_as(self, kind: type[Model]) -> Model:
        """Return the body as the type that the route declares."""
        assert isinstance(self.body, kind)  # noqa: S101  # tells the type checker
        return self.body

    def query_as(self, kind: type[Model]) -> Model:
        """Return the query as the type that the route declares."""
        assert isinstance(self.query, kind)  # noqa: S101
        return self.query


class PendingSend(NamedTuple):
    """A handler's return value: a test event to send after the transaction. The answer is the result of the attempt.

    `record` runs in a transaction of its own, which is committed directly before the test event is sent.
    """

    delivery: Sendable
    record: Callable[[Call], None]


class PendingQuestion(NamedTuple):
    """A handler's return value: a request for permission to deliver (a question), to send to a receiver after the transaction.

    `record` and `then` run in transactions of their own. The transaction of `record` is committed before the question is sent.
    `then` makes the answer from the receiver's response, or from the error of the attempt.
    """

    to: Target
    record: Callable[[Call], None]
    then: Callable[[Call, Response | errors.AttemptFailed], pydantic.BaseModel]


class LongPoll(NamedTuple):
    """A handler's return value: the handler found nothing. long_polls.py repeats the request for up to `wait_s` seconds.

    The setting `api.max_poll_s` bounds the wait.
    """

    answer: pydantic.BaseModel
    """The answer if the wait ends without a result."""
    wait_s: float
    cursor: str | None = None
    """The cursor of the next try, in place of the request's `cursor`. None: the next try has the request's `cursor` again."""


class SnapshotRequest(NamedTuple):
    """A handler's return value: the server answers with the registry, or with its changes since `since`.

    Requests with the same `since` and `newest` share one answer.
    """

    since: Revision | None
    """The revision that the client has. None: the client wants the whole registry."""
    newest: Revision
    """The newest revision of the registry when the handler ran."""
    wait_s: float
    """Seconds to wait for a newer revision, if the client has the newest one."""


class RawBytes(NamedTuple):
    """A handler's return value: bytes to answer unchanged, in place of JSON."""

    content: bytes


class Created(NamedTuple):
    """A handler's return value: a PUT created the resource. The status is 201, in place of the route's, with `Location`."""

    answer: pydantic.BaseModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One method on one path."""

    method: str
    path: str
    name: str
    """`operationId` in the OpenAPI document."""
    summary: str
    scopes: frozenset[Scope]
    handler: (
        Callable[
            [Call], pydantic.BaseModel | Created | PendingSend | PendingQuestion | LongPoll | SnapshotRequest | RawBytes | None
        ]
        | None
    )
    """None: the route publishes the events in the body, without a transaction (server/publish_handler.py)."""
    body: type[pydantic.BaseModel] | None = None
    bodies: tuple[tuple[str, type[pydantic.BaseModel]], ...] = ()
    """Content types of the body, each with the type of its document. Set in place of `body` if the route takes other content
    types than JSON."""
    query: type[pydantic.BaseModel] = NoParameters
    answer: type[pydantic.BaseModel | RawBytes] | None = None
    """None: no body, status 204."""
    status: int = 200
    is_change: bool = False
    """The route accepts an `Idempotency-Key`, and writes an audit entry for each change."""
    is_poll: bool = False
    """The route changes leases only. It writes no audit entries, because leases are too frequent. It takes no
    `Idempotency-Key`, because receipt handles make repeats safe."""
    is_validation: bool = False
    """The route asks for, or records, a receiver's permission. It takes no `Idempotency-Key`: repeats are safe."""
    needs_permission: bool = False
    """The handler may answer 409, because the receiver has not permitted deliveries, although the route changes nothing in the
    registry."""
    is_open: bool = False
    """The route needs no API key: a receiver calls it to permit deliveries. In its path is the token that the receiver got with
    the question. `scopes` is empty."""
    header: str | None = None
    """The name of the header that the handler reads."""
    is_conditional: bool = False
    """The route has no `resource`, but evaluates `If-None-Match` and may answer 304."""
    resource: type[pydantic.BaseModel] | None = None
    """The type of the resource, as GET answers it. Answers that show the resource have its `ETag`, except answers to PUT. GET
    takes `If-None-Match`. PUT, PATCH, DELETE, and a POST that changes the resource, also take `If-Match`."""
    location: str | None = None
    """A template for the path of the created resource, such as `/v1/endpoints/{id}`. The answer's fields fill the template. The
    path is the header `Location` of a 201."""
    cost: int = 1
    """One request of the route counts as this number of requests in the rate of its key."""
    is_answer_progress: bool = False
    """The answer shows only ids, counts, cursors and results of the request itself. So keys of scope `write_only` get this
    answer, in place of 204."""
    deprecation: Deprecation | None = None
    """Set if the operation is deprecated. Each of its answers says so in headers."""
    shown_once: str | None = None
    """The secret field of the answer, or of its items, such as `items.rotated`. A repeat with the same `Idempotency-Key`
    gets null for it, because stored answers have no secrets."""

    @property
    def may_answer_304(self) -> bool:
        """Return True if a request with `If-None-Match` may get 304."""
        return self.is_conditional or (self.resource is not None and self.method == "GET")

    @property
    def may_answer_412(self) -> bool:
        """Return True if the route evaluates `If-Match` and `If-None-Match` before a change, and so may answer 412."""
        changes = self.method in {"PUT", "PATCH", "DELETE"} or (self.method == "POST" and self.location is None)
        return self.resource is not None and changes

    @property
    def refuses_conditions(self) -> bool:
        """Return True if the route is not GET and evaluates no conditions.

        The server then refuses each request that has `If-Match` or `If-None-Match`.
        """
        return self.method != "GET" and not self.may_answer_412

    @property
    def is_silent_to_writers(self) -> bool:
        """Return True if a key of scope `write_only` gets 204 in place of the answer."""
        return Scope.WRITE_ONLY in self.scopes and self.answer is not None and not self.is_answer_progress

    @property
    def has_etag(self) -> bool:
        """Return True if the answer shows the resource, and so has the `ETag` of the resource.

        False for each PUT: RFC 9110 (9.3.4) forbids an `ETag` in the answer to a PUT that adds defaults.
        """
        if self.resource is None or self.answer is None or self.method == "PUT":
            return False
        return issubclass(self.answer, self.resource)

    def location_headers(self, document: dict[str, Any], query: Mapping[str, str]) -> dict[str, str]:
        """Return `Location`, the path of the created resource, for a 201; empty if the route has no `location`.

        The path has the query parameter `customer` if the request has it.
        """
        if self.location is None:
            return {}
        suffix = f"?customer={query['customer']}" if "customer" in query else ""
        return {"location": self.location.format_map(document) + suffix}
