"""List the audit log: each change with its author, its time, and the fields before and after.

Runs in the API.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, Literal, LiteralString

from delivery import errors
from subscriptions_db import answer_size, described
from subscriptions_db.api.contract import crud, cursors, routes, schemas
from subscriptions_db.api.contract.routes import Call, Route
from subscriptions_db.postgres.sql import query

NEWEST = 2**62
"""A number above all entry ids: where a list without a cursor begins."""
MAX_LOOKED_AT = 5000
"""Maximum entries that one call examines. If few of them match, the next call continues beyond them. In a log of 500,000
entries, a call without a match took 61 ms, on two cores with a load of 20."""
ENTRIES_PER_READ = 5
"""Number of entries that the first read takes from Postgres; each further read takes twice as many. A change of a subscription
with many tenants makes an entry of more than 1 MB. As Python objects, the entry takes several MB."""
MAX_COUNTED = 10_000
"""Maximum entries that a total counts. The count took 104 ms on two cores with a load of 20."""
Side = Literal["before", "after"]
"""The side of a place in the list. Entries on the side `before` are older than the place, entries on the side `after` newer."""


class AuditEntry(described.DescribedModel):
    """One change of the registry or of the archive, or another recorded action, such as a test event or an accepted loss."""

    entry_id: int
    """The number of the entry. An entry may become visible after entries with larger numbers, because its transaction took
    longer."""
    at: dt.datetime
    """When the change was made."""
    key_id: str
    """The API key of the change; or `oidc:…` (the subject of a token), `command` (a `fanout` command), `job` (the job itself),
    `callback` (a receiver)."""
    login: str | None
    """The login to Postgres that wrote the entry. Null: the reader has a customer's key, or an older version of the platform
    wrote the entry."""
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


class AuditEntries(routes.BoundedListPage):
    """A page of the audit log, the newest first."""

    items: list[AuditEntry]
    """The entries of the page."""


class AuditQuery(schemas.TextQuery):
    """Search criteria for audit entries. `q` is searched in `key_id`, `action`, `entity` and `entity_id`."""

    customer: str | None = None
    """Only entries about rows of this customer. A customer's key may name its own customer only."""


def list_(call: Call) -> AuditEntries:
    """Return a page of the audit log, the newest first.

    One call examines at most MAX_LOOKED_AT entries, so the page may be empty although further entries match. Raise
    RegistrationError for an invalid cursor, and Refused with 422 if a customer's key names another customer.
    """
    wanted = call.query_as(AuditQuery)
    crud.require_own(call, wanted.customer)
    start = cursors.place(wanted.cursor)
    side: Side = "after" if start.is_end else "before"
    place = _entry_id(start)
    # Row-level security limits the rows anyway. The customer of the key is a condition too, so that Postgres uses the index.
    customer_id = call.principal.customer_id if wanted.customer is None else wanted.customer
    asked = {"customer": customer_id, "q": wanted.q, "place": place, "most": MAX_LOOKED_AT, "limit": wanted.limit + 1}
    items, has_further = _fitting(call, side, asked, wanted.limit)
    further = items[-1].entry_id if has_further else _last_looked_at(call, side, asked)
    beside = place + 1 if start.is_end else place - 1
    following, preceding = cursors.neighbours(
        nearest=items[0].entry_id if items else beside,
        further=further,
        is_first=start == cursors.START,
        is_backwards=start.is_end,
        next_of=lambda entry_id: cursors.encode(str(entry_id)),
        previous_of=lambda entry_id: cursors.encode_previous(str(entry_id)),
    )
    total, is_total_exact = _count(call, asked) if wanted.total else (None, None)
    return AuditEntries(
        items=items[::-1] if start.is_end else items,
        next_cursor=following,
        previous_cursor=preceding,
        total=total,
        is_total_exact=is_total_exact,
    )


def _fitting(call: Call, side: Side, asked: dict[str, Any], limit: int) -> tuple[list[AuditEntry], bool]:
    """Return the matches nearest to the place in `asked` that fit into one answer, at most `limit`.

    Also return True if further matches are known.

    Read ENTRIES_PER_READ entries first, and twice as many with each further read. Stop when all are read, or when more are
    read than `limit` or the maximum size of an answer permits. So a page of large entries takes little memory.
    """
    items: list[AuditEntry] = []
    sizes: list[int] = []
    with call.connection.cursor("nearest_entries") as found:
        found.execute(_statement(side, f"nearest_entries_{side}"), asked)
        at_a_time = ENTRIES_PER_READ
        while rows := found.fetchmany(at_a_time):
            at_a_time *= 2
            further = [_shown(call, row) for row in rows]
            items += further
            sizes += [len(item.model_dump_json().encode()) for item in further]
            fitting = min(answer_size.count(sizes), limit)
            if fitting < len(items):
                return items[:fitting], True
    return items, False


def _entry_id(place: cursors.Place) -> int:
    """Return the number of the entry at a place of the list; NEWEST at its start.

    Raise RegistrationError for a place of another list.
    """
    if place.row_id and not place.row_id.isdecimal():
        raise errors.RegistrationError("cursor", "is not a cursor of this list: send a cursor of an answer, unchanged")
    return min(int(place.row_id or NEWEST), NEWEST)


def _count(call: Call, asked: dict[str, Any]) -> tuple[int, bool]:
    """Return the number of matches among the newest MAX_COUNTED entries of the customer, and True if the number is exact.

    False: older entries of the customer may match too. Without a customer in `asked`, the entries of all customers count.
    """
    newest = asked | {"place": NEWEST, "most": MAX_COUNTED}
    # Not prepared: with a customer, the right plan reads another index than without.
    [row] = call.connection.execute(_statement("before", "number_of_matches"), newest, prepare=False).fetchall()
    return row["count"], _last_looked_at(call, "before", newest) is None


def _last_looked_at(call: Call, side: Side, asked: dict[str, Any]) -> int | None:
    """Return the `entry_id` of the last of the `asked["most"]` entries that a search examines.

    The search begins at the place in `asked`, and examines the entries before or after it (`side`). None: fewer entries are
    there, so the search examines all of them.
    """
    statement = "with looked_at as (" + query(f"entries_{side}") + ")" + query(f"last_entry_{side}")
    last = call.connection.execute(statement, asked, prepare=False).fetchone()
    return None if last is None else last["entry_id"]


def _statement(side: Side, name: str) -> LiteralString:
    """Return the statement `name` on the matches among the `most` entries nearest to the parameter `place`.

    `side` chooses the entries before or after the place.
    """
    looked_at, matching = query(f"entries_{side}"), query("matching_entries")
    return "with looked_at as (" + looked_at + "), matching as (" + matching + ")" + query(name)


def _shown(call: Call, row: dict[str, Any]) -> AuditEntry:
    login, is_operator = row.pop("login"), call.principal.customer_id is None
    return AuditEntry(customer=row.pop("customer_id"), login=login if is_operator else None, **row)


ROUTES = (
    Route(
        method="GET", path="/v1/audit-log", name="listAuditLog",
        summary="List the audit log, the newest first. `q` is searched in `key_id`, `action`, `entity` and `entity_id`.",
        scopes=routes.READERS, handler=list_, query=AuditQuery, answer=AuditEntries,
    ),
)  # fmt: skip
