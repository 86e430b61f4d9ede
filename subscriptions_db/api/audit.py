"""The audit log: who changed what, when, with what there was before. Written in the transaction of the change.

Runs in the API. No secret gets in here: what it is given are the registry's rows, in which secrets are `***`.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import pydantic
from psycopg.types.json import Jsonb

from delivery import errors
from subscriptions_db.api import cursors, routes
from subscriptions_db.api.routes import Call, Page, Route
from subscriptions_db.sql import query

NEWEST = 2**62


class Entry(pydantic.BaseModel):
    """One change."""

    entry_id: int
    at: dt.datetime
    key_id: str
    """The API key that made it."""
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


def write(
    call: Call,
    action: str,
    entity: str,
    entity_id: str,
    *,
    customer_id: str | None,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> None:
    """Note a change."""
    entry = {"action": action, "entity": entity, "entity_id": entity_id, "customer_id": customer_id}
    told = {name: None if fields is None else Jsonb(_plain(fields)) for name, fields in (("before", before), ("after", after))}
    call.connection.execute(query("put_audit_entry"), entry | told | {"key_id": call.principal.key_id})


def list_(call: Call) -> Entries:
    """Return a page of the log."""
    wanted = call.query_as(Which)
    last = cursors.decode(wanted.cursor)
    if last and not last.isdecimal():
        raise errors.RegistrationError("cursor", "is no cursor of this list")
    asked = {"before": min(int(last or NEWEST), NEWEST), "customer": wanted.customer, "limit": wanted.limit + 1}
    rows = call.connection.execute(query("page_of_audit_log"), asked).fetchall()
    more = len(rows) > wanted.limit
    items = [Entry(customer=row.pop("customer_id"), **row) for row in rows[: wanted.limit]]
    return Entries(items=items, next_cursor=cursors.encode(str(items[-1].entry_id)) if more else None)


def _plain(value: Any) -> Any:
    """Return a value of the registry's rows as JSON has it."""
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple | frozenset):
        return [_plain(part) for part in (sorted(value, key=str) if isinstance(value, frozenset) else value)]
    return value.isoformat() if isinstance(value, dt.datetime) else value


ROUTES = (
    Route(
        method="GET", path="/v1/audit-log", name="listAuditLog", summary="What was changed through the API, the newest first.",
        scopes=routes.READERS, handler=list_, query=Which, answer=Entries,
    ),
)  # fmt: skip
