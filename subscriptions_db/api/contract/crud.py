"""Lock, list, write and delete registry rows of any kind; each change writes an audit entry.

Runs in the API.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple

import psycopg
import pydantic
from psycopg.pq import TransactionStatus

from subscriptions_db.api.contract import cursors, etags, problems, request_audit, routes
from subscriptions_db.api.contract.routes import Call, ListQuery, Model
from subscriptions_db.manifest import manifest
from subscriptions_db.postgres.sql import query
from subscriptions_db.registration import apply, registered_rows

ROWS_PER_READ = 20
"""Rows read from Postgres at a time. One row has up to 200 kB."""


def lock(call: Call, kind: registered_rows.RowKind, row_id: str) -> bool:
    """Lock a row until the transaction ends; return True if the row exists and the principal may see it.

    For an operator, the id of a missing row is locked too, so that no other request of the API creates the row meanwhile. A
    customer locks only rows that it may see. Otherwise it could delay changes of another customer's row by naming the row's id.
    """
    wanted = {"kind": kind, "id": row_id}
    if call.principal.customer_id is None:
        call.connection.execute(query("lock_row"), wanted)
    return call.connection.execute(query(f"lock_{kind}"), wanted).fetchone() is not None


def locked_row(call: Call, kind: registered_rows.RowKind, row_id: str) -> dict[str, Any]:
    """Lock a row and return it; raise Refused with 404 if it does not exist, or if the principal may not see it."""
    if not lock(call, kind, row_id):
        raise problems.not_found(kind)
    return existing_row(call, kind, row_id)


def existing_row(call: Call, kind: registered_rows.RowKind, row_id: str) -> dict[str, Any]:
    """Return a row; raise Refused with 404 if it does not exist, or if the principal may not see it."""
    row = registered_rows.rows_of(call.connection, {kind: [row_id]})[kind].get(row_id)
    if row is None:
        raise problems.not_found(kind)
    return row


def require_conditions(call: Call, show: Callable[[Call], pydantic.BaseModel] | None) -> None:
    """Raise Refused with 412 if `If-Match` or `If-None-Match` does not hold for the resource, with 422 if one is malformed.

    A request without these headers passes. The caller has locked the resource. `show` returns the resource as GET does. `show`
    None: the resource does not exist.
    """
    if call.conditions != etags.UNCONDITIONAL:
        shown = None if show is None else show(call)
        etags.require(call.conditions, None if shown is None else etags.of(shown.model_dump(mode="json"), type(shown)))


def require_permitted(endpoint: Mapping[str, Any]) -> None:
    """Raise Refused with 409 if the endpoint needs its receiver's permission for deliveries, and does not have it."""
    if endpoint["awaits_permission"]:
        raise problems.Refused(
            409,
            "the receiver has not permitted deliveries yet, so the endpoint is unchanged and nothing was sent: ask the "
            "receiver with POST /v1/endpoints/{id}/validate",
        )


class Page(NamedTuple, Generic[Model]):
    """A page of a list of registry rows, in the fields of `routes.ListPage`."""

    items: list[Model]
    next_cursor: str | None
    """None: no row follows the page."""
    previous_cursor: str | None
    """None: no row is before the page."""
    total: int | None
    """The number of rows on all pages. None: the request does not ask for the total."""


def page(
    call: Call, kind: registered_rows.RowKind, show: Callable[[dict[str, dict[str, Any]]], list[Model]], **only: Any
) -> Page[Model]:
    """Return a page of rows, sorted by id and converted by `show`.

    `only` has the search criteria, for example the customer of the rows.

    1. Read one id more than the limit: forwards from a `next_cursor`, or backwards from a `previous_cursor`.
    2. Read the rows, `ROWS_PER_READ` at a time, until all are read or the answer has its maximum size.
    3. With a `next_cursor`, look for a row before the page. If none exists, the page has no `previous_cursor`.
       With a `previous_cursor`, look for a row after the page. If none exists, the page has no `next_cursor`.

    If no row is before a `previous_cursor`, the first page is returned. If no row is after a `next_cursor`, the page is empty
    and has a `previous_cursor`, unless all earlier rows are deleted too.
    """
    wanted = call.query_as(ListQuery)
    place = cursors.place(wanted.cursor)
    ids = _ids(call, kind, place, wanted.limit + 1, only)
    if place.is_end and not ids:
        place = cursors.START
        ids = _ids(call, kind, place, wanted.limit + 1, only)
    shown: list[Model] = []
    for first in range(0, wanted.limit, ROWS_PER_READ):
        part = ids[first : min(first + ROWS_PER_READ, wanted.limit)]
        rows = registered_rows.rows_of(call.connection, {kind: part})[kind]
        shown += show({row_id: rows[row_id] for row_id in part})
        fitting = routes.fitting_part(shown)
        if len(fitting) < len(shown):
            shown = fitting
            break
    has_more, ids = len(ids) > len(shown), ids[: len(shown)]
    others = cursors.Place(ids[0], is_end=not place.is_end) if ids else cursors.end_after(place.row_id)
    has_others = place != cursors.START and bool(_ids(call, kind, others, 1, only))
    if place.is_end:
        shown.reverse()
        ids.reverse()
        has_more, has_others = has_others, has_more
    return Page(
        items=shown,
        next_cursor=cursors.encode(ids[-1]) if has_more else None,
        previous_cursor=cursors.encode_previous(ids[0] if ids else others.row_id) if has_others else None,
        total=_matching(call, kind, "number_of_rows", only).fetchall()[0]["rows"] if wanted.total else None,
    )


def ids_after(call: Call, kind: registered_rows.RowKind, row_id: str, limit: int, only: Mapping[str, Any]) -> list[str]:
    """Return the ids of rows after `row_id`, in order, at most `limit`.

    `only` has the search criteria that the rows match. The empty text is before every id.
    """
    return _ids(call, kind, cursors.Place(row_id), limit, only)


def ids_among(call: Call, kind: registered_rows.RowKind, ids: Sequence[str], only: Mapping[str, Any]) -> set[str]:
    """Return the ids in `ids` whose rows exist now and match the search criteria `only`."""
    return {row["id"] for row in _matching(call, kind, "rows_among", dict(only) | {"ids": list(ids)})}


def _ids(call: Call, kind: registered_rows.RowKind, place: cursors.Place, limit: int, only: Mapping[str, Any]) -> list[str]:
    """Return the ids of the matching rows directly after a place, or directly before it if `place.is_end`; at most `limit`.

    `only` has the search criteria. The id nearest to the place is first.
    """
    asked = dict(only) | {"place": place.row_id, "limit": limit}
    return [row["id"] for row in _matching(call, kind, "rows_before" if place.is_end else "rows_after", asked)]


def _matching(call: Call, kind: registered_rows.RowKind, name: str, asked: Mapping[str, Any]) -> psycopg.Cursor[dict[str, Any]]:
    """Execute the statement `name` (such as `rows_after`) on the rows of a kind that match `asked`; return psycopg's cursor.

    `asked` has the search criteria and the parameters of the statement.
    """
    return call.connection.execute("with matching as (" + query(f"matching_{kind}s") + ")" + query(name), asked)


def show_each(show: Callable[[str, dict[str, Any]], Model]) -> Callable[[dict[str, dict[str, Any]]], list[Model]]:
    """Return a function that applies `show` to each id and row, in order. `page` takes the function as its own `show`."""
    return lambda rows: [show(row_id, row) for row_id, row in rows.items()]


def put(call: Call, document: Mapping[str, Any], *, customer_id: str | None, strict: bool = False) -> apply.Result:
    """Check a manifest document, register its rows, and write an audit entry for each change.

    Return the changes, the new secrets and the warnings of manifest/lint.py. `customer_id` goes into the audit entries. Raise
    RegistrationError if the document is refused. With `strict`, a document with warnings is refused too.
    """
    result = apply.apply_rows(call.connection, manifest.check(dict(document), call.guard), call.ring, strict=strict)
    for change in result.changes:
        request_audit.write(call, change.action, change.kind, change.id, customer_id=customer_id, **change.audit_fields())
    return result


def delete(
    call: Call,
    kind: registered_rows.RowKind,
    row_id: str,
    show: Callable[[Call], pydantic.BaseModel],
    owner: Callable[[dict[str, Any]], str | None],
) -> None:
    """Delete a row with its dependent rows, and write an audit entry; raise Refused with 404, 412 or 422.

    404: the row does not exist, or the principal may not see it. 412 and 422: `If-Match` or `If-None-Match` does not hold, or
    is malformed. `show` returns the resource as GET does. `owner` returns the customer of a row, for the audit entry.
    """
    before = locked_row(call, kind, row_id)
    require_conditions(call, show)
    call.connection.execute(query(f"delete_{kind}s"), {"ids": [row_id]})
    request_audit.write(call, "delete", kind, row_id, customer_id=owner(before), before=before)


def new_id(prefix: str) -> str:
    """Return a new random id that begins with `prefix`."""
    return f"{prefix}_{secrets.token_hex(12)}"


def require_quota(call: Call, kind: registered_rows.RowKind, default: int, *, adding: int = 1) -> None:
    """Raise Refused with 429 if `adding` more rows of the kind would bring the customer above its quota.

    `default` is the quota of a customer that has none of its own. Requests with an operator's key have no quota. A lock makes
    the customer's other requests that add rows of the kind wait until this transaction ends. So concurrent requests together
    do not exceed the quota.
    """
    own = call.principal.customer_id
    if own is None:
        return
    found = counted(call, f"count_{kind}s", customer=own)
    quota = default if found["quota"] is None else found["quota"]
    if found["rows"] + adding > quota:
        # A limited key does not learn how many rows there are beyond its endpoints.
        added = f", the request adds {adding}" if adding > 1 else ""
        owned = f"you have {found['rows']} {kind}s{added}, and your quota is {quota}"
        had = owned if call.principal.endpoints is None else f"the customer would exceed its quota of {quota} {kind}s"
        raise problems.quota_reached(f"{had}. Nothing was created: delete some, or ask the operator for a larger quota")


def counted(call: Call, name: str, **asked: Any) -> dict[str, Any]:
    """Execute the statement `name`, which is a `count_…`, with the parameters `asked`, and return its row.

    The statement takes a lock before it counts. So it waits for other requests that count the same rows of the customer, until
    their transactions end. The count includes rows that a limited key does not reach.
    """
    with of_whole_customer(call):
        # Binding parameters on the client sends both statements in one round trip. The count sees all rows that were
        # committed before this transaction got the lock.
        cursor = psycopg.ClientCursor(call.connection).execute(query(name), asked)
        cursor.nextset()
        [found] = cursor.fetchall()
    return found


@contextlib.contextmanager
def of_whole_customer(call: Call) -> Iterator[None]:
    """Let the block see all rows of the customer, also with a limited key, which reaches only some endpoints.

    Use it only for counts that a limited key is never shown, and for a search whose criteria name one of the key's endpoints.
    After the block, the limit of the key holds again. After a failed statement the limit stays lifted. That is harmless:
    Postgres refuses every further statement of the transaction.
    """
    limit = call.principal.endpoint_ids
    if limit:
        call.connection.execute(query("limit_to_endpoints"), {"endpoint_ids": ""})
    try:
        yield
    finally:
        # After a failed statement, Postgres refuses every other one. The error of this statement would hide the first error.
        if limit and call.connection.info.transaction_status is TransactionStatus.INTRANS:
            call.connection.execute(query("limit_to_endpoints"), {"endpoint_ids": limit})


def owner_for(call: Call, wanted: str | None) -> str:
    """Return the customer of a request: the customer of its API key, or, with an operator's key, the customer `wanted`.

    Raise Refused with 422 if a request with an operator's key names no customer, or one with a customer's key names another
    customer. The answer about another customer is the same as about a customer that does not exist.
    """
    own = call.principal.customer_id
    if own is None and wanted is None:
        raise problems.invalid(("customer", "is required with an operator's key: add it"))
    require_own(call, wanted)
    return own or str(wanted)


def require_own(call: Call, wanted: str | None) -> None:
    """Raise Refused with 422 if a customer's key names another customer in `wanted`.

    The answer is the same as about a customer that does not exist. An operator's key may name any customer.
    """
    if call.principal.customer_id is not None and wanted not in {None, call.principal.customer_id}:
        raise no_customer(wanted)


def no_customer(wanted: str | None) -> problems.Refused:
    """Return the 422 for the id of a customer that does not exist, or that a customer's key must not see."""
    problem = f"there is no customer {wanted}: correct the id, or leave `customer` out with a customer's key"
    return problems.invalid(("customer", problem))


def id_for(call: Call, kind: registered_rows.RowKind, wanted: str | None, *, prefix: str) -> str:
    """Return the id of a new row: a random id, or the id `wanted`, which only an operator's key may choose.

    Raise Refused with 422 if a customer's key chooses an id, and with 409 if the id is taken. A chosen id is locked until the
    transaction ends. Customers choose no ids, because a 409 would reveal the ids of other customers' rows.
    """
    if wanted is None:
        return new_id(prefix)
    if call.principal.customer_id is not None:
        raise problems.invalid(("id", "is chosen by the platform: leave it out"))
    if lock(call, kind, str(wanted)):
        taken = f"is already used by another {kind}: choose another id"
        raise problems.Refused(409, f"the id {wanted} {taken}. Nothing was changed", ("id", taken))
    return str(wanted)
