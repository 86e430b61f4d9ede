"""Note a change in the audit log, in the transaction of the change. Runs in the API."""

from __future__ import annotations

from typing import Any

from subscriptions_db.api.contract.routes import Call
from subscriptions_db.postgres import audit


def write(
    call: Call,
    action: str,
    entity: str,
    entity_id: str,
    *,
    customer_id: str | None,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> None:
    """Note a change."""
    who, told = call.principal.key_id, {"before": before, "after": after}
    audit.note(call.connection, who, action, entity, entity_id, customer_id=customer_id, **told)
