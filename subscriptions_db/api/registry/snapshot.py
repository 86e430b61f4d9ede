"""The route by which executors, and others, follow the registry over HTTP. Secrets stay sealed: a reader has the key ring.

Runs in the API. The handler only says how far the registry is; snapshot_feed.py answers, for all that ask the same at once.
"""

from __future__ import annotations

from typing import Annotated, Any

import pydantic
from pydantic import Field

from delivery.model import Revision
from subscriptions_db.api.contract import routes
from subscriptions_db.api.contract.principals import Scope
from subscriptions_db.api.contract.routes import Call, Following, Nothing, Route, WaitS
from subscriptions_db.snapshot import registry_reader


class Since(Nothing):
    """From where on."""

    since: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """Only what changed after this revision; all when it is left out, or when the log of changes does not reach back to it."""
    wait_s: WaitS = 0
    """How long to wait for a later revision than `since`, or than `If-None-Match`; at most `api.max_poll_s`."""


class RegistryDocument(pydantic.BaseModel):
    """The registry at a revision, or what changed since one, as rows of the tables. Secrets are sealed."""

    revision: int
    since: int | None
    """Null: this is all. Else these rows take the place of the reader's, and `gone` names those that are deleted."""
    tenants: list[dict[str, Any]]
    endpoints: list[dict[str, Any]]
    secrets: list[dict[str, Any]]
    """Those of the endpoints above that have not expired, the newest first; `sealed` in base64."""
    subscriptions: list[dict[str, Any]]
    scopes: list[dict[str, Any]]
    """Those of the subscriptions above."""
    gone: dict[str, list[str]]


def follow(call: Call) -> Following:
    """Say how far the registry is, and from where on it can be told."""
    wanted = call.query_as(Since)
    known = registry_reader.revisions(call.connection)
    since = wanted.since if wanted.since is not None and known.reach_back_to(wanted.since) else None
    return Following(None if since is None else Revision(since), known.newest, wanted.wait_s)


ROUTES = (
    Route(
        method="GET", path="/v1/snapshot", name="getSnapshot",
        summary="The registry, or what changed since a revision, with sealed secrets. Waits for a change, if asked to.",
        scopes=routes.OPERATOR | {Scope.EXECUTOR}, handler=follow, query=Since, answer=RegistryDocument, is_conditional=True,
    ),
)  # fmt: skip
