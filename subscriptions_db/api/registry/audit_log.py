"""The audit log: who changed what, when, and the fields as they were.

Runs in the API.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import pydantic

from delivery import errors
from subscriptions_db.api.contract import cursors, routes
from subscriptions_db.api.contract.routes import Call, Page, Route
from subscriptions_db.postgres.sql import query

NEWEST = 2**62


class Entry(pydantic.BaseModel):
    """One change."""

    entry_id: int
    at: dt.datetime
    key_id: str
    """The API key that made it. Or `command`, the operator by a command; `job`, the job by itself; `callback`, a receiver."""
    login: str | None
    """By which login to Postgres, for the operator to see. Null: noted by an older version."""
    customer: str | None
    action: str
    entity: str
    entity_id: str
    before: dict[str, Any] | None
    """The fields that changed, as they were."""
    after: dict[str, Any] | None


class Entries(pydantic.BaseModel):
    """A page of the audit log, the newest first."""

    items: list[Entry]
    next_cursor: str | None


class Which(Page):
    """Which entries."""

    customer: str | None = None
    """Only of this customer's rows."""


def list_(call: Call) -> Entries:
    """Return a page of the log."""
    wanted = call.query_as(Which)
    last = cursors.decode(wanted.cursor)
    if last and not last.isdecimal():
        raise errors.RegistrationError("cursor", "is no cursor of this list")
    asked = {"before": min(int(last or NEWEST), NEWEST), "customer": wanted.customer, "limit": wanted.limit + 1}
    rows = call.connection.execute(query("page_of_audit_log"), asked).fetchall()
    items = routes.fitting_part([_shown(call, row) for row in rows[: wanted.limit]])
    more = len(rows) > len(items)
    return Entries(items=items, next_cursor=cursors.encode(str(items[-1].entry_id)) if more else None)


def _shown(call: Call, row: dict[str, Any]) -> Entry:
    login, is_operator = row.pop("login"), call.principal.customer_id is None
    return Entry(customer=row.pop("customer_id"), login=login if is_operator else None, **row)


ROUTES = (
    Route(
        method="GET", path="/v1/audit-log", name="listAuditLog", summary="What was changed, the newest first.",
        scopes=routes.READERS, handler=list_, query=Which, answer=Entries,
    ),
)  # fmt: skip
