"""Write audit entries: the author and the row of a change, with the fields before and after.

Runs in the API, in `fanout` commands and in `fanout archive`, in the transaction of the change. Entries contain no secrets,
because registered_rows.py puts `***` in their place. When the job disables an endpoint, a trigger writes the entry (migration
0014). So the job needs no right on the audit log.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Sequence
from typing import Any

from psycopg.types.json import Jsonb

from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query

_NOT_IN_JSONB = re.compile("[\x00\ud800-\udfff]")
"""Characters that `jsonb` refuses: NUL, and halves of surrogate pairs. Columns of type `json` may have them as escapes."""
COMMAND = "command"
"""The actor of changes by a `fanout` command. Each entry also has the login to Postgres."""
JOB = "job"
"""The actor of changes by the job. Migration 0014 depends on this word."""

Fields = dict[str, Any] | None
"""Fields of the changed row before or after the change. None: there are none, as before a creation."""


def note(
    connection: connect.Connection,
    actor: str,
    action: str,
    entity: str,
    entity_id: str,
    *,
    customer_id: str | None,
    before: Fields = None,
    after: Fields = None,
) -> None:
    """Write one audit entry.

    `actor` is the id of an API key or token, `COMMAND`, or `callback` for a receiver that permits deliveries. `customer_id` is
    the customer who may read the entry. None: only the operator reads it.
    """
    note_many(connection, [entry(actor, action, entity, entity_id, customer_id=customer_id, before=before, after=after)])


def note_many(connection: connect.Connection, entries: Sequence[dict[str, Any]]) -> None:
    """Write many audit entries in one statement.

    With one statement for each entry, a large registration would take 1.5 times as long.
    """
    if entries:
        connection.execute(query("put_audit_entries"), {"entries": Jsonb(entries)})


def entry(
    actor: str,
    action: str,
    entity: str,
    entity_id: str,
    *,
    customer_id: str | None,
    before: Fields = None,
    after: Fields = None,
) -> dict[str, Any]:
    """Return an entry for `note_many`. The parameters are those of `note`."""
    change = {name: None if fields is None else _json_fields(fields) for name, fields in (("before", before), ("after", after))}
    owner = {"key_id": actor, "customer_id": customer_id}
    return owner | {"action": action, "entity": entity, "entity_id": entity_id} | change


def _json_fields(fields: dict[str, Any]) -> Any:
    try:
        return _plain(fields)
    except RecursionError:  # plain SQL wrote a deeply nested filter, which must remain replaceable
        return dict.fromkeys(fields, "is nested too deeply for the audit log")


def _plain(value: Any) -> Any:
    """Return a value that `jsonb` can store.

    Characters in _NOT_IN_JSONB become U+FFFD. Infinity, NaN and times become text. Tuples and frozensets become lists.
    """
    if isinstance(value, str):
        return _NOT_IN_JSONB.sub("\ufffd", value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {_plain(str(key)): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple | frozenset):
        return [_plain(part) for part in (sorted(value, key=str) if isinstance(value, frozenset) else value)]
    return value.isoformat() if isinstance(value, dt.datetime) else value
