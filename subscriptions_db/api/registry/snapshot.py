"""Define the route by which a program follows the registry, with a key or token of scope `executor` or `operator`.

Secrets stay sealed (encrypted), so the program needs the key ring to open them. Runs in the API. The handler only reads the
number of the newest revision; snapshot_feed.py reads the rows, once for all equal requests.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from delivery.registry_model import Revision
from subscriptions_db import described
from subscriptions_db.api.contract import routes
from subscriptions_db.api.contract.principals import Scope
from subscriptions_db.api.contract.routes import Call, NoParameters, Route, SnapshotRequest, WaitS
from subscriptions_db.snapshot import registry_reader


class SnapshotQuery(NoParameters):
    """The revision of the registry that the reader has, and how long it waits for a later one."""

    since: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """Return only the changes after this revision. Null, or a revision that the log of changes lacks: the whole registry."""
    wait_s: WaitS = 0
    """Seconds to wait for a revision later than `since` or `If-None-Match`; at most `api.max_poll_s`."""


class RegistryDocument(described.DescribedModel):
    """The registry at a revision, or the changes since an earlier revision, as rows of the tables. Secrets are encrypted."""

    revision: int
    """The revision of the registry."""
    since: int | None
    """The revision after which the changes begin. The rows replace the reader's rows, and `gone` lists deleted rows. Null: the
    document is the whole registry."""
    tenants: list[dict[str, Any]]
    """The rows of tenants."""
    endpoints: list[dict[str, Any]]
    """The rows of endpoints."""
    secrets: list[dict[str, Any]]
    """The valid secrets of `endpoints`, the newest first. `sealed` is the encrypted secret in base64."""
    subscriptions: list[dict[str, Any]]
    """The rows of subscriptions."""
    scopes: list[dict[str, Any]]
    """The scopes of `subscriptions`."""
    gone: dict[str, list[str]]
    """The ids of deleted rows, by kind: `tenant`, `endpoint` or `subscription`."""


def follow(call: Call) -> SnapshotRequest:
    """Return the newest revision, and the reader's `since` and `wait_s`.

    `since` becomes None if the log of changes does not reach back to it.
    """
    wanted = call.query_as(SnapshotQuery)
    known = registry_reader.revisions(call.connection, wanted.since or 0)
    since = Revision(wanted.since) if wanted.since is not None and known.reach_back else None
    return SnapshotRequest(since, known.newest, wanted.wait_s)


ROUTES = (
    Route(
        method="GET", path="/v1/snapshot", name="getSnapshot",
        summary="Get the registry, or its changes since a revision, with sealed secrets. With `wait_s`, wait for a change.",
        scopes=routes.OPERATOR | {Scope.EXECUTOR}, handler=follow, query=SnapshotQuery, answer=RegistryDocument,
        is_conditional=True,
    ),
)  # fmt: skip
