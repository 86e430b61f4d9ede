"""Read the registry back as plain rows, for people, for machines and for finding differences. Secrets never come out.

Runs in the command and in the API.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query
from subscriptions_db.secrets import endpoint_secrets

Kind = Literal["tenant", "customer", "endpoint", "subscription", "event_type"]
KINDS: tuple[Kind, ...] = ("tenant", "customer", "endpoint", "subscription", "event_type")
SECRET_KEPT = "***"  # noqa: S105  # what stands for a secret


Rows = dict[Kind, dict[str, dict[str, Any]]]


def document(connection: connect.Connection) -> Rows:
    """Return every row by kind and id, as of one moment."""
    with connect.one_moment(connection):
        return rows_of(connection)


def rows_of(connection: connect.Connection, only: Mapping[Kind, list[str]] | None = None) -> Rows:
    """Return every row by kind and id; with `only`, those of these ids, and of a kind that it leaves out none.

    The caller's transaction must see one moment only, or parts lack their whole.
    """
    ids = {kind: None if only is None else only.get(kind, []) for kind in KINDS}
    rows: Rows = {kind: _by_id(connection, f"document_{kind}s", ids[kind]) for kind in KINDS}
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


def revision(connection: connect.Connection) -> int:
    """Return the number of the newest committed change."""
    row = connection.execute(query("revision")).fetchone()
    return 0 if row is None else int(row["revision"])


def _parsed(text: str | None) -> Any:
    """Return what JSON says; as the text that it is when no parser takes it, so that it can be seen and replaced."""
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return text


def _by_id(connection: connect.Connection, name: str, ids: list[str] | None) -> dict[str, dict[str, Any]]:
    return {row.pop("id"): row for row in _found(connection, name, ids)}


def _found(connection: connect.Connection, name: str, ids: list[str] | None) -> list[dict[str, Any]]:
    return [] if ids == [] else connection.execute(query(name), {"ids": ids}).fetchall()
