"""List the audit log: each change with its author, its time, and the fields before and after.

Runs in the API.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from delivery import errors
from subscriptions_db import described
from subscriptions_db.api.contract import crud, cursors, routes
from subscriptions_db.api.contract.routes import Call, PageQuery, Route
from subscriptions_db.postgres.sql import query

NEWEST = 2**62
"""A number above all entry ids: where a list without a cursor begins."""


class AuditEntry(described.DescribedModel):
    """One change of the registry or of the archive."""

    entry_id: int
    """The number of the entry. An entry may become visible after entries with larger numbers, because its transaction took
    longer."""
    at: dt.datetime
    """When the change was made."""
    key_id: str
    """The API key of the change; or `oidc:…` (the subject of a token), `command` (a `fanout` command), `job` (the job itself),
    `callback` (a receiver)."""
    login: str | None
    """The login to Postgres. Null: the key is a customer's, or an older version wrote the entry."""
    customer: str | None
    """The customer that the changed row belongs to. Null: the row belongs to no customer."""
    action: str
    """The change, such as `create`, `update` or `delete`."""
    entity: str
    """The kind of the changed row, such as `endpoint`."""
    entity_id: str
    """The id of the changed row. For a change of many dead letters: the id of their customer."""
    before: dict[str, Any] | None
    """The changed fields before the change; of a deleted row, all fields. Null: the entry has none, as for a created row."""
    after: dict[str, Any] | None
    """The changed fields after the change. Null: the entry has none, as for a deleted row."""


class AuditEntries(described.DescribedModel):
    """A page of the audit log, the newest first."""

    items: list[AuditEntry]
    """The entries of the page."""
    next_cursor: str | None
    """Cursor of older entries. Null: this is the last page."""


class AuditQuery(PageQuery):
    """Search criteria for audit entries."""

    customer: str | None = None
    """Only entries about rows of this customer. A customer's key may name its own customer only."""


def list_(call: Call) -> AuditEntries:
    """Return a page of the audit log, the newest first.

    Raise RegistrationError for an invalid cursor, and Refused with 422 if a customer's key names another customer.
    """
    wanted = call.query_as(AuditQuery)
    crud.require_own(call, wanted.customer)
    last = cursors.decode(wanted.cursor)
    if last and not last.isdecimal():
        raise errors.RegistrationError("cursor", "is not a cursor of this list: send `next_cursor` of an answer, unchanged")
    asked = {"before": min(int(last or NEWEST), NEWEST), "customer": wanted.customer, "limit": wanted.limit + 1}
    rows = call.connection.execute(query("page_of_audit_log"), asked).fetchall()
    items = routes.fitting_part([_shown(call, row) for row in rows[: wanted.limit]])
    more = len(rows) > len(items)
    return AuditEntries(items=items, next_cursor=cursors.encode(str(items[-1].entry_id)) if more else None)


def _shown(call: Call, row: dict[str, Any]) -> AuditEntry:
    login, is_operator = row.pop("login"), call.principal.customer_id is None
    return AuditEntry(customer=row.pop("customer_id"), login=login if is_operator else None, **row)


ROUTES = (
    Route(
        method="GET", path="/v1/audit-log", name="listAuditLog", summary="List the audit log, the newest first.",
        scopes=routes.READERS, handler=list_, query=AuditQuery, answer=AuditEntries,
    ),
)  # fmt: skip
