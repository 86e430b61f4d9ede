"""Change the status of endpoints: disable, enable, pause and resume them.

Runs on the driver, in `fanout` commands and in the API. A running job sees the change with the next revision. The writer of the
audit entry depends on the author of the change:

1. The job: a trigger of Postgres writes the entry.
2. A `fanout` command: this module writes the entry.
3. The API: the handler of the request writes the entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from delivery import errors
from delivery.registry_model import AttemptedEndpoint, EndpointStatus
from subscriptions_db.postgres import audit_entries, connect
from subscriptions_db.postgres.sql import query


def disable_active(
    connection: connect.Connection, attempted: Iterable[AttemptedEndpoint], reason: str, *, active_s: float = 0.0
) -> list[str]:
    """Disable the given endpoints that have been active for at least `active_s` seconds, and return their ids.

    Endpoints that have been active since an unknown time are disabled too. All other endpoints stay unchanged, because failures
    from before an endpoint was enabled must not disable it. `AttemptedEndpoint.url_sha256` is the digest of the URL of the
    failed attempts, if this is known. An endpoint that has another URL now stays unchanged too. Safe to repeat.
    """
    endpoints = list(attempted)
    asked = {
        "ids": [endpoint.endpoint_id for endpoint in endpoints],
        "url_hashes": [endpoint.url_sha256 for endpoint in endpoints],
        "reason": reason,
        "active_s": active_s,
    }
    with connect.translated_errors(), connection.transaction():
        connection.execute(query("set_actor"), {"actor": audit_entries.JOB})
        rows = connection.execute(query("disable_active_endpoints"), asked)
        return [row["endpoint_id"] for row in rows]


def disable(connection: connect.Connection, endpoint_id: str, reason: str) -> None:
    """Disable an endpoint, whatever its status, and store the reason in place of an earlier one.

    For `fanout` commands only: the audit entry names a command as the author. Raise RegistrationError if the endpoint does not
    exist.
    """
    _set_by_command(connection, endpoint_id, EndpointStatus.DISABLED, reason)


def enable(connection: connect.Connection, endpoint_id: str) -> None:
    """Make an endpoint active, whatever its status, and clear the reason why it was disabled.

    For `fanout` commands only: the audit entry names a command as the author. Raise RegistrationError if the endpoint does not
    exist, or if it needs its receiver's permission and does not have it.
    """
    _set_by_command(connection, endpoint_id, EndpointStatus.ACTIVE, None)


def _set_by_command(connection: connect.Connection, endpoint_id: str, status: EndpointStatus, reason: str | None) -> None:
    with connect.translated_errors(), connection.transaction():
        found = set_status(connection, endpoint_id, status, reason)
        after = {"status": status.value, "disabled_reason": reason}
        before = {name: found[name] for name in after}
        if before != after:
            change = {"customer_id": found["customer_id"], "before": before, "after": after}
            audit_entries.note(connection, audit_entries.COMMAND, "update", "endpoint", endpoint_id, **change)


def set_status(
    connection: connect.Connection, endpoint_id: str, status: EndpointStatus, reason: str | None
) -> Mapping[str, Any]:
    """Set an endpoint's status and disabled reason; return fields of the row from before the change.

    The fields are `customer_id`, `status`, `disabled_reason` and `awaits_permission`. Raise RegistrationError if the endpoint
    does not exist, or if `status` is active and the endpoint awaits permission. The row stays locked until the caller's
    transaction ends. Writes no audit entry.
    """
    wanted = {"endpoint_id": endpoint_id, "status": status.value, "reason": reason}
    with connect.translated_errors():
        found = connection.execute(query("lock_endpoint_status"), wanted).fetchone()
        if found is None:
            raise errors.RegistrationError(
                endpoint_id, "there is no such endpoint, so nothing was changed; `fanout get endpoints` lists them"
            )
        if status is EndpointStatus.ACTIVE and found["awaits_permission"]:
            raise errors.RegistrationError(
                endpoint_id,
                "cannot become active before its receiver permits deliveries, and nothing was changed: run `fanout endpoints "
                f"validate {endpoint_id}`",
            )
        connection.execute(query("set_status"), wanted)
    return found
