"""What the kinds of rows share: to be held while they are changed, to be listed in pages, to be written with an audit entry.

Runs in the API.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from subscriptions_db.api.contract import audit, cursors, problems, routes
from subscriptions_db.api.contract.routes import Call, Model, Page
from subscriptions_db.manifest import manifest
from subscriptions_db.postgres.sql import query
from subscriptions_db.registration import apply, registered_rows

AT_ONCE = 20
"""Rows that are read at a time, each of up to 200 kB."""


def hold(call: Call, kind: registered_rows.Kind, row_id: str) -> bool:
    """Keep everybody else from changing a row until the transaction ends; tell whether there is one."""
    wanted = {"kind": kind, "id": row_id}
    call.connection.execute(query("hold_row"), wanted)
    return call.connection.execute(query(f"hold_{kind}"), wanted).fetchone() is not None


def held(call: Call, kind: registered_rows.Kind, row_id: str) -> dict[str, Any]:
    """Return a row, held; raise that there is none."""
    if not hold(call, kind, row_id):
        raise problems.not_found(kind)
    return found(call, kind, row_id)


def found(call: Call, kind: registered_rows.Kind, row_id: str) -> dict[str, Any]:
    """Return a row; raise that there is none."""
    row = registered_rows.rows_of(call.connection, {kind: [row_id]})[kind].get(row_id)
    if row is None:
        raise problems.not_found(kind)
    return row


def require_permitted(endpoint: Mapping[str, Any]) -> None:
    """Raise that nothing is sent to an endpoint before its receiver has permitted it."""
    if endpoint["awaits_permission"]:
        raise problems.Refused(409, "its receiver has not permitted deliveries yet: post to /v1/endpoints/{id}/validate")


def page(
    call: Call, kind: registered_rows.Kind, show: Callable[[dict[str, dict[str, Any]]], list[Model]], **only: str | None
) -> tuple[list[Model], str | None]:
    """Return a page's rows as `show` makes them, in their order, and the cursor of the next page.

    1. The ids of as many rows as are asked for, and of one more.
    2. Their rows, some at a time, until an answer is full: each may be large.
    """
    wanted = call.query_as(Page)
    asked = {"after": cursors.decode(wanted.cursor), "limit": wanted.limit + 1} | only
    ids = [row["id"] for row in call.connection.execute(query(f"page_of_{kind}s"), asked)]
    shown: list[Model] = []
    for first in range(0, wanted.limit, AT_ONCE):
        part = ids[first : min(first + AT_ONCE, wanted.limit)]
        rows = registered_rows.rows_of(call.connection, {kind: part})[kind]
        shown += show({row_id: rows[row_id] for row_id in part})
        fitting = routes.fitting_part(shown)
        if len(fitting) < len(shown):
            shown = fitting
            break
    return shown, cursors.encode(ids[len(shown) - 1]) if len(ids) > len(shown) else None


def each(show: Callable[[str, dict[str, Any]], Model]) -> Callable[[dict[str, dict[str, Any]]], list[Model]]:
    """Return what shows rows of which each is shown by itself."""
    return lambda rows: [show(row_id, row) for row_id, row in rows.items()]


def put(
    call: Call, document: Mapping[str, Any], *, customer_id: str | None, action: str = "", strict: bool = False
) -> apply.Result:
    """Bring the rows that a manifest names to it, checked by its rules, and note each change. `strict`: see lint."""
    result = apply.apply_rows(call.connection, manifest.check(dict(document), call.guard), call.ring, strict=strict)
    for change in result.changes:
        audit.write(call, action or change.action, change.kind, change.id, customer_id=customer_id, **change.told())
    return result


def delete(call: Call, kind: registered_rows.Kind, row_id: str, owner: Callable[[dict[str, Any]], str | None]) -> None:
    """Delete a row with what hangs on it, and note what it was and, by `owner`, whose; raise that there is none."""
    before = held(call, kind, row_id)
    call.connection.execute(query(f"delete_{kind}s"), {"ids": [row_id]})
    audit.write(call, "delete", kind, row_id, customer_id=owner(before), before=before)


def new_id(prefix: str) -> str:
    """Return an id that nobody has."""
    return f"{prefix}_{secrets.token_hex(12)}"


def require_room(call: Call, kind: registered_rows.Kind, bound: int) -> None:
    """Raise that a customer has as many as it can make by itself. Requests at the same moment may pass it by their number."""
    own = call.principal.customer_id
    if own is not None and call.connection.execute(query(f"count_{kind}s"), {"customer": own}).fetchall()[0]["rows"] >= bound:
        raise problems.Refused(409, f"you have {bound} {kind}s, the most there may be: delete some, or ask the operator")


def owner_for(call: Call, wanted: str | None) -> str:
    """Return whose a new row is: of who asks, or of whom the operator names. Another customer is as one that there is not."""
    own = call.principal.customer_id
    if own is None and wanted is None:
        raise problems.invalid(("customer", "must be named by the operator"))
    if own is not None and wanted not in {None, own}:
        raise problems.invalid(("customer", f"there is no customer {wanted}"))
    return own or str(wanted)


def id_for(call: Call, kind: registered_rows.Kind, wanted: str | None, *, prefix: str) -> str:
    """Return the id of a new row. A customer gets one that is made: that its own choice is taken would tell of others' rows."""
    if wanted is None:
        return new_id(prefix)
    if call.principal.customer_id is not None:
        raise problems.invalid(("id", "is made by the platform: leave it out"))
    if hold(call, kind, str(wanted)):
        raise problems.Refused(409, f"there is a {kind} with this id", ("id", "is taken"))
    return str(wanted)
