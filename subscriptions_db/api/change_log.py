"""Note a change in the audit log, in the transaction of the change. Runs in the API."""

from __future__ import annotations

from typing import Any

from subscriptions_db import auditing
from subscriptions_db.api.routes import Call


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
    auditing.note(call.connection, who, action, entity, entity_id, customer_id=customer_id, **told)
