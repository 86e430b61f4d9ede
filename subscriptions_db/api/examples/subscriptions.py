"""List examples of the operations on subscriptions, and of the operations that explain whether an event is due."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from subscriptions_db.api.examples.endpoints import CHANGED_AT, CREATED_AT
from subscriptions_db.api.examples.example import ENDPOINT_ID, SUBSCRIPTION_ID, WHOLE_LIST, Example

_NEW: dict[str, Any] = {
    "endpoint": ENDPOINT_ID,
    "event_type": "order.*",
    "tenants": ["t1"],
    "filter": {"data": {"amount": [{"numeric": [">=", 500]}]}},
}
SUBSCRIPTION: dict[str, Any] = {
    "id": SUBSCRIPTION_ID,
    "everything": False,
    "sub_tenants": {},
    "except_tenants": [],
    "except_sub_tenants": {},
    "status": "active",
    "description": "",
    "metadata": {},
    "created_at": CREATED_AT,
    "updated_at": CREATED_AT,
} | _NEW
_CHANGES = {"tenants": ["t1", "t2"], "description": "Large orders"}
_EXPLAINED = Example(
    body={"event": {"type": "order.created", "tenant_id": "t1", "data": {"amount": 700}}},
    answer={
        "items": [
            {
                "subscription": SUBSCRIPTION_ID,
                "endpoint": ENDPOINT_ID,
                "is_due": True,
                "rule": "matches",
                "detail": "the event would be sent if its tenant is registered and active",
            }
        ],
        "catalogue": {"is_known": True, "is_deprecated": False, "keeps_to_schema": True, "errors": []},
    },
)
EXAMPLES: Mapping[str, Example] = {
    "listSubscriptions": Example(query={"endpoint": ENDPOINT_ID}, answer=WHOLE_LIST | {"items": [SUBSCRIPTION]}),
    "createSubscription": Example(query={"strict": True}, body=_NEW, answer=SUBSCRIPTION | {"warnings": []}),
    "getSubscription": Example(answer=SUBSCRIPTION),
    "updateSubscription": Example(body=_CHANGES, answer=SUBSCRIPTION | _CHANGES | {"updated_at": CHANGED_AT, "warnings": []}),
    "deleteSubscription": Example(),
    "pauseSubscription": Example(answer=SUBSCRIPTION | {"status": "paused", "updated_at": CHANGED_AT}),
    "resumeSubscription": Example(answer=SUBSCRIPTION | {"updated_at": CHANGED_AT}),
    "explainForEndpoint": _EXPLAINED,
    "explainForSubscription": _EXPLAINED,
}
"""The name of an operation → its example."""
