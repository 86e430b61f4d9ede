"""Disable endpoints, and enable them.

Runs on the driver, in the command and in the API. A running job learns of it by the revision, as of every change. What the job
and the command do here is in the audit log; the API notes by itself what it was asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from delivery import errors
from delivery.model import EndpointStatus
from subscriptions_db.postgres import audit, connect
from subscriptions_db.postgres.sql import query


def disable_active(
    connection: connect.Connection, endpoint_ids: Iterable[str], reason: str, *, active_s: float = 0.0
) -> list[str]:
    """Disable those that have been active for `active_s`, and return which. Safe to repeat: what is not stays as it is.

    One that was enabled since is not overruled by what is known from before.
    """
    asked = {"ids": list(endpoint_ids), "reason": reason, "active_s": active_s}
    with connect.translating(), connection.transaction():
        connection.execute(query("act_as"), {"actor": audit.JOB})
        rows = connection.execute(query("disable_active_endpoints"), asked)
        return [row["endpoint_id"] for row in rows]


def disable(connection: connect.Connection, endpoint_id: str, reason: str) -> None:
    """Disable an endpoint, whatever its status, as the operator wants it."""
    _set_by_command(connection, endpoint_id, EndpointStatus.DISABLED, reason)


def enable(connection: connect.Connection, endpoint_id: str) -> None:
    """Make an endpoint active, whatever its status. Why it was disabled is forgotten."""
    _set_by_command(connection, endpoint_id, EndpointStatus.ACTIVE, None)


def _set_by_command(connection: connect.Connection, endpoint_id: str, status: EndpointStatus, reason: str | None) -> None:
    with connect.translating(), connection.transaction():
        found = set_status(connection, endpoint_id, status, reason)
        after = {"status": status.value, "disabled_reason": reason}
        before = {name: found[name] for name in after}
        if before != after:
            told = {"customer_id": found["customer_id"], "before": before, "after": after}
            audit.note(connection, audit.COMMAND, "update", "endpoint", endpoint_id, **told)


def set_status(
    connection: connect.Connection, endpoint_id: str, status: EndpointStatus, reason: str | None
) -> Mapping[str, Any]:
    """Set an endpoint's status, whatever it is now, and return what it was; raise where `active` would send nothing.

    To be called in a transaction: the row is held until its end.
    """
    wanted = {"endpoint_id": endpoint_id, "status": status.value, "reason": reason}
    with connect.translating():
        found = connection.execute(query("hold_status"), wanted).fetchone()
        if found is None:
            raise errors.RegistrationError(endpoint_id, "there is no such endpoint; `fanout get endpoints` lists them")
        if status is EndpointStatus.ACTIVE and found["awaits_permission"]:
            raise errors.RegistrationError(endpoint_id, "waits for its receiver's permission: fanout endpoints validate")
        connection.execute(query("set_status"), wanted)
    return found
