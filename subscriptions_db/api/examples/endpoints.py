"""List examples of the operations on endpoints: registration, status, secrets, test events and permissions of receivers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from subscriptions_db.api.examples.example import ENDPOINT_ID, WHOLE_LIST, Example

CREATED_AT, CHANGED_AT = "2026-05-01T08:00:00Z", "2026-05-10T12:00:00Z"
ENDPOINT_URL = "https://hooks.acme.example.com/orders"
SIGNING_SECRET = "whsec_EXAMPLEEXAMPLEEXAMPLEEXAMPLEEXAMPLEEXAMPLE0="  # noqa: S105  # signs nothing
_NEW: dict[str, Any] = {
    "url": ENDPOINT_URL,
    "max_per_second": 50.0,
    "description": "Orders of the shop",
    "metadata": {"team": "logistics"},
}
ENDPOINT: dict[str, Any] = {
    "id": ENDPOINT_ID,
    "customer": "acme",
    "mode": "direct",
    "status": "active",
    "content_mode": "standard",
    "payload": "json",
    "headers": {},
    "auth": {
        "kind": "bearer",
        "username": None,
        "header": None,
        "client_id": None,
        "token_url": None,
        "token_scope": None,
    },
    "tls": {"authorities": None, "certificate": None},
    "max_in_flight": None,
    "batch": {"max_events": 1000, "max_wait_s": 1.0, "max_bytes": 1048576, "gzip": False},
    "retry": {"schedule_s": None, "max_age_s": None, "timeout_s": None},
    "order_by": None,
    "validation": "none",
    "awaits_permission": False,
    "permitted_origin": None,
    "permitted_per_minute": None,
    "permitted_at": None,
    "disabled_reason": None,
    "disabled_at": None,
    "created_at": CREATED_AT,
    "updated_at": CREATED_AT,
} | _NEW
_REASON = "The receiver moves to another host."
_DISABLED = {"status": "disabled", "disabled_reason": _REASON, "disabled_at": CHANGED_AT, "updated_at": CHANGED_AT}
_PERMITTED = {"state": "permitted", "permitted_per_minute": None}
EXAMPLES: Mapping[str, Example] = {
    "listEndpoints": Example(
        query={"status": "active", "metadata": "team:logistics", "total": True},
        answer=WHOLE_LIST | {"total": 1, "items": [ENDPOINT]},
    ),
    "createEndpoint": Example(
        body=_NEW | {"auth": {"kind": "bearer", "secret": "the token of the receiver"}},
        answer=ENDPOINT | {"signing_secret": SIGNING_SECRET},
    ),
    "getEndpoint": Example(answer=ENDPOINT),
    "updateEndpoint": Example(
        body={"max_per_second": 20.0, "retry": {"schedule_s": [5.0, 60.0, 600.0]}},
        answer=ENDPOINT
        | {"max_per_second": 20.0, "retry": {"schedule_s": [5.0, 60.0, 600.0], "max_age_s": None, "timeout_s": None}}
        | {"updated_at": CHANGED_AT},
    ),
    "deleteEndpoint": Example(),
    "pauseEndpoint": Example(answer=ENDPOINT | {"status": "paused", "updated_at": CHANGED_AT}),
    "resumeEndpoint": Example(answer=ENDPOINT | {"updated_at": CHANGED_AT}),
    "disableEndpoint": Example(body={"reason": _REASON}, answer=ENDPOINT | _DISABLED),
    "enableEndpoint": Example(answer=ENDPOINT | {"updated_at": CHANGED_AT}),
    "rotateSecret": Example(
        body={"scheme": "v1", "overlap_s": 86_400},
        answer={
            "endpoint": ENDPOINT_ID,
            "scheme": "v1",
            "secret": SIGNING_SECRET,
            "public_key": None,
            "others_end_at": ["2026-05-11T12:00:00Z"],
        },
    ),
    "changeEndpoints": Example(
        body={"action": "pause", "status": "active", "metadata": "team:logistics", "dry_run": True},
        answer={
            "action": "pause",
            "dry_run": True,
            "changed": 1,
            "items": [{"endpoint": ENDPOINT_ID, "result": "changed", "detail": "", "rotated": None}],
            "next_cursor": None,
        },
    ),
    "createEndpoints": Example(
        body={"endpoints": [_NEW | {"mode": "batch", "batch": {"max_events": 500, "max_wait_s": 2.0}}]},
        answer={"dry_run": False, "created": 1, "items": [{"id": ENDPOINT_ID, "signing_secret": SIGNING_SECRET}]},
    ),
    "testEndpoint": Example(
        body={"type": "order.created", "data": {"amount": 20}},
        answer={
            "webhook_id": "msg_d66f57e4b8dcef1ec0dd22b708745a63",
            "is_delivered": True,
            "status": 200,
            "error_class": None,
            "detail": "",
            "response": "",
            "duration_ms": 41.7,
        },
    ),
    "validateEndpoint": Example(
        answer={"state": "asked", "permitted_per_minute": None, "reason": "the receiver may permit deliveries by the callback"}
    ),
    "permitDeliveries": Example(answer=_PERMITTED),
    "permitDeliveriesByBrowser": Example(answer=_PERMITTED),
}
"""The name of an operation → its example."""
