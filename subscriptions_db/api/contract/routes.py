"""What a route is. Its declaration is the one source for routing, for checking requests, and for the OpenAPI document.

Runs in the API.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypeVar

import pydantic
from pydantic import Field

from delivery import errors
from delivery.config import service_settings
from delivery.model import Revision, Sendable
from delivery.webhooks.http import guard
from delivery.webhooks.http.origin import Target
from delivery.webhooks.http.transport import Response
from subscriptions_db import answer_size
from subscriptions_db.api.contract import cursors
from subscriptions_db.api.contract.principals import Principal, Scope
from subscriptions_db.manifest import manifest
from subscriptions_db.postgres import connect
from subscriptions_db.secrets import keyring

OPERATOR = frozenset({Scope.OPERATOR})
ADMINS = OPERATOR | {Scope.CUSTOMER_ADMIN}
READERS = ADMINS | {Scope.READ_ONLY}
POLLERS = ADMINS | {Scope.POLLER}
BROWSERS = READERS | POLLERS
MAX_PAGE = 200

Model = TypeVar("Model", bound=pydantic.BaseModel)


WaitS = Annotated[float, Field(ge=0, le=60)]
"""Seconds that a request may wait for news; `api.max_poll_s` bounds it further."""


class Nothing(pydantic.BaseModel):
    """No parameters."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class Whose(Nothing):
    """Whose dead letters and attempts."""

    customer: manifest.Id | None = None
    """For the operator, who has to say it."""


class Page(Nothing):
    """Which part of a list."""

    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 50
    """At most so many rows, and no more than fit into 1 MiB."""
    cursor: Annotated[str, Field(max_length=512), pydantic.AfterValidator(cursors.checked)] | None = None
    """`next_cursor` of the page before."""


def fitting_part(items: list[Model]) -> list[Model]:
    """Return the first of a page's items that fit into one answer."""
    return items[: answer_size.count(len(item.model_dump_json()) for item in items)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request, checked, with all that its handler needs. Handlers are plain functions that run in the call's transaction."""

    principal: Principal
    connection: connect.Connection
    """In a transaction, with the rights of who asks."""
    ring: keyring.KeyRing
    guard: guard.Guard
    bounds: service_settings.Api
    webhook_origin: str
    """As whom the platform sends."""
    path: Mapping[str, str]
    query: pydantic.BaseModel
    body: pydantic.BaseModel
    document: dict[str, Any]
    """The body as it came: what it leaves out is not in there."""
    header: str | None
    """The header that the route reads, as it came."""

    def body_as(self, kind: type[Model]) -> Model:
        """Return the body, which the route has declared to be of this type."""
        assert isinstance(self.body, kind)  # noqa: S101  # tells the type checker
        return self.body

    def query_as(self, kind: type[Model]) -> Model:
        """Return the query, as above."""
        assert isinstance(self.query, kind)  # noqa: S101
        return self.query


class Sending(NamedTuple):
    """What a handler returns that has something sent, after its transaction; what came of it is the answer."""

    delivery: Sendable


class Exchange(NamedTuple):
    """What a handler returns that has a receiver asked, after its transaction. `then` makes the answer of it, in another."""

    to: Target
    then: Callable[[Call, Response | errors.AttemptFailed], pydantic.BaseModel]


class Awaited(NamedTuple):
    """What a handler returns that has found nothing, and whose asker would rather wait than hear of it."""

    answer: pydantic.BaseModel
    wait_s: float
    cursor: str | None = None
    """Where to look next, in place of the `cursor` that was asked with."""


class Following(NamedTuple):
    """What a handler returns whose answer is the same for all that follow the registry from the same place."""

    since: Revision | None
    """Null: all is asked for."""
    newest: Revision
    wait_s: float


class Raw(NamedTuple):
    """What a handler returns that is answered byte for byte."""

    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One method on one path."""

    method: str
    path: str
    name: str
    """`operationId` in the document."""
    summary: str
    scopes: frozenset[Scope]
    handler: Callable[[Call], pydantic.BaseModel | Sending | Exchange | Awaited | Following | Raw | None]
    body: type[pydantic.BaseModel] | None = None
    query: type[pydantic.BaseModel] = Nothing
    answer: type[pydantic.BaseModel | Raw] | None = None
    """None: no body, status 204."""
    status: int = 200
    is_change: bool = False
    """Takes an `Idempotency-Key`, and is written in the audit log."""
    is_poll: bool = False
    """Changes only which poller has what: too often for the audit log, and safe to repeat without a key, by its receipts."""
    is_validation: bool = False
    """Changes whether a receiver has permitted deliveries: safe to repeat without a key."""
    is_open: bool = False
    """Takes no key: the token in its path says whose it is. For no scope."""
    header: str | None = None
    """The name of the header that it reads."""
    is_conditional: bool = False
    """Answers with an `ETag`, and 304 when `If-None-Match` has it."""
    shown_once: str | None = None
    """The field of the answer that is a secret: it is not kept for a repeated request."""
