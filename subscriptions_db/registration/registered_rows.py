"""Read rows of the registry, to show them and to compute differences. A placeholder takes the place of each secret.

Runs in `fanout` commands and in the API; `revision` also on the driver and in `fanout archive`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query
from subscriptions_db.secrets import endpoint_secrets

RowKind = Literal["tenant", "customer", "endpoint", "subscription", "event_type"]
KINDS: tuple[RowKind, ...] = ("tenant", "customer", "endpoint", "subscription", "event_type")
"""All kinds, in an order in which Postgres accepts new rows."""
SECRET_KEPT = "***"  # noqa: S105  # the placeholder of a stored secret


RegisteredRows = dict[RowKind, dict[str, dict[str, Any]]]
"""Kind → row id → the columns of the row, with its parts such as sub-tenants and scopes."""


def document(connection: connect.Connection) -> RegisteredRows:
    """Return every row by kind and id, from one consistent read."""
    with connect.consistent_read(connection):
        return rows_of(connection)


def rows_of(connection: connect.Connection, only: Mapping[RowKind, list[str]] | None = None) -> RegisteredRows:
    """Return every row by kind and id. With `only`, return the rows with these ids, and none of a kind that `only` omits.

    The caller's transaction must be REPEATABLE READ or have locked the rows, because one row is read by several statements.
    """
    ids = {kind: None if only is None else only.get(kind, []) for kind in KINDS}
    rows: RegisteredRows = {kind: _by_id(connection, f"document_{kind}s", ids[kind]) for kind in KINDS}
    for tenant in rows["tenant"].values():
        tenant["sub_tenants"] = {}
    for row in _found(connection, "document_sub_tenants", ids["tenant"]):
        rows["tenant"][row["tenant_id"]]["sub_tenants"][row["id"]] = row["name"]
    for endpoint in rows["endpoint"].values():
        kept = {endpoint_secrets.FIELD_OF[purpose] for purpose in endpoint.pop("purposes")}
        endpoint |= {name: SECRET_KEPT if name in kept else None for name in endpoint_secrets.FIELD_OF.values()}
    for subscription in rows["subscription"].values():
        subscription["scopes"] = frozenset(map(tuple, subscription["scopes"]))
        subscription["filter"] = _parsed(subscription["filter"])
    for event_type in rows["event_type"].values():
        event_type |= {name: _parsed(event_type[name]) for name in ("json_schema", "examples")}
    return rows


def lock(connection: connect.Connection, kind: RowKind, ids: list[str]) -> None:
    """Lock these rows until the end of the caller's transaction; wait for rows that another transaction has locked.

    Raise psycopg's SerializationFailure in a REPEATABLE READ transaction, if another transaction changed or deleted one of the
    rows since this transaction's first query.
    """
    _found(connection, f"lock_{kind}s", ids)


def revision(connection: connect.Connection) -> int:
    """Return the registry's revision: the number of its newest committed change; 0 before the first change.

    Raise RegistryUnavailable if Postgres cannot answer.
    """
    with connect.translated_errors():
        row = connection.execute(query("revision")).fetchone()
    return 0 if row is None else int(row["revision"])


def _parsed(text: str | None) -> Any:
    """Return parsed JSON, or the text itself if it cannot be parsed, so that an operator can see and replace it."""
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return text


def _by_id(connection: connect.Connection, name: str, ids: list[str] | None) -> dict[str, dict[str, Any]]:
    return {row.pop("id"): row for row in _found(connection, name, ids)}


def _found(connection: connect.Connection, name: str, ids: list[str] | None) -> list[dict[str, Any]]:
    return [] if ids == [] else connection.execute(query(name), {"ids": ids}).fetchall()
