"""Note in the audit log who changed what, with what there was before. Called in the transaction of the change.

Runs in the API and in the command. No secret gets in here: what it is given are the registry's rows, in which secrets are
`***`. What the job disables is noted by Postgres itself (migration 0014), so that the job needs no right on the log.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from typing import Any

from psycopg.types.json import Jsonb

from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query

COMMAND = "command"
"""Who changed it, where no API key did: somebody by `fanout …`. The login to Postgres stands beside it."""
JOB = "job"
"""The job by itself. Migration 0014 knows it by this word."""

Fields = dict[str, Any] | None


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
    """Note a change. `actor` is the id of an API key, or one of the words above."""
    note_all(connection, [entry(actor, action, entity, entity_id, customer_id=customer_id, before=before, after=after)])


def note_all(connection: connect.Connection, entries: Sequence[dict[str, Any]]) -> None:
    """Note many changes, in one statement: each by its own would take a large registration half as long again."""
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
    """Return a change as the log has it, for who notes many at once."""
    told = {name: None if fields is None else _noted(fields) for name, fields in (("before", before), ("after", after))}
    whose = {"key_id": actor, "customer_id": customer_id}
    return whose | {"action": action, "entity": entity, "entity_id": entity_id} | told


def _noted(fields: dict[str, Any]) -> Any:
    try:
        return _plain(fields)
    except RecursionError:  # a filter of plain SQL: what it was must not keep anybody from replacing it
        return dict.fromkeys(fields, "is nested too deeply to be noted")


def _plain(value: Any) -> Any:
    """Return a value of the registry's rows as Postgres takes it for `jsonb`: it has neither NUL nor infinity."""
    if isinstance(value, str):
        return value.replace("\x00", "\ufffd")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple | frozenset):
        return [_plain(part) for part in (sorted(value, key=str) if isinstance(value, frozenset) else value)]
    return value.isoformat() if isinstance(value, dt.datetime) else value
