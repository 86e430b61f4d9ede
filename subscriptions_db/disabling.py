"""Disable endpoints, and enable them.

Runs on the driver, in the command and in the API. A running job learns of it by the revision, as of every change.
"""

from __future__ import annotations

from collections.abc import Iterable

from delivery import errors
from delivery.model import EndpointStatus
from subscriptions_db import connect
from subscriptions_db.sql import query


def disable_active(connection: connect.Connection, endpoint_ids: Iterable[str], reason: str) -> list[str]:
    """Disable those that are active, and return which were. Safe to repeat: what is paused or disabled stays as it is."""
    with connect.translating():
        rows = connection.execute(query("disable_active_endpoints"), {"ids": list(endpoint_ids), "reason": reason})
        return [row["endpoint_id"] for row in rows]


def disable(connection: connect.Connection, endpoint_id: str, reason: str) -> None:
    """Disable an endpoint, whatever its status, as the operator wants it."""
    set_status(connection, endpoint_id, EndpointStatus.DISABLED, reason)


def enable(connection: connect.Connection, endpoint_id: str) -> None:
    """Make an endpoint active, whatever its status. Why it was disabled is forgotten."""
    set_status(connection, endpoint_id, EndpointStatus.ACTIVE, None)


def set_status(connection: connect.Connection, endpoint_id: str, status: EndpointStatus, reason: str | None) -> None:
    """Set an endpoint's status, whatever it is now; raise RegistrationError where `active` would send nothing."""
    wanted = {"endpoint_id": endpoint_id, "status": status.value, "reason": reason}
    with connect.translating():
        found = connection.execute(query("customer_of"), wanted).fetchone()
        if found is None:
            raise errors.RegistrationError(endpoint_id, "there is no such endpoint; `fanout get endpoints` lists them")
        if status is EndpointStatus.ACTIVE and found["awaits_permission"]:
            raise errors.RegistrationError(endpoint_id, "waits for its receiver's permission: fanout endpoints validate")
        connection.execute(query("set_status"), wanted)
