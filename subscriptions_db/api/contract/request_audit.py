"""Write audit entries of API requests, in the transaction of the change. Runs in the API."""

from __future__ import annotations

from typing import Any

from subscriptions_db.api.contract.routes import Call
from subscriptions_db.postgres import audit_entries


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
    """Write an audit entry about the thing `entity_id` of the kind `entity`. The author is the request's principal.

    `before` and `after` have fields of the thing before and after the change. None: the entry has no such fields. `customer_id`
    is the customer who may read the entry. None: only the operator reads it.
    """
    key_id, fields = call.principal.key_id, {"before": before, "after": after}
    audit_entries.note(call.connection, key_id, action, entity, entity_id, customer_id=customer_id, **fields)
