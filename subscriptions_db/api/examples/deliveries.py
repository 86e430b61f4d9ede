"""List examples of the operations on deliveries, attempts, statistics and replays, and of publishing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from subscriptions_db.api.examples.endpoints import CHANGED_AT
from subscriptions_db.api.examples.example import (
    ATTEMPT_ID,
    ENDPOINT_ID,
    REPLAY_ID,
    SUBSCRIPTION_ID,
    WEBHOOK_ID,
    WHOLE_LIST,
    Example,
)

_EVENT = {
    "webhook_id": WEBHOOK_ID,
    "endpoint": ENDPOINT_ID,
    "event_id": "order-17",
    "event_type": "order.created",
    "tenant": "t1",
    "subscription": SUBSCRIPTION_ID,
    "events": 1,
}
ATTEMPT: dict[str, Any] = _EVENT | {
    "id": ATTEMPT_ID,
    "started_at": CHANGED_AT,
    "attempt": 1,
    "duration_ms": 20.4,
    "status": 503,
    "error_class": "unavailable",
    "detail": "",
    "response_headers": {"retry-after": "120"},
    "response": '{"error": "the database is away"}',
}
DELIVERY: dict[str, Any] = _EVENT | {
    "status": "waiting",
    "reason": "unavailable",
    "began_at": CHANGED_AT,
    "newest_at": CHANGED_AT,
    "attempts": 1,
    "dead_letters": 0,
    "dead_letter": None,
    "dead_letter_state": None,
}
_COUNTS = {
    "delivered": 1204,
    "dead_lettered": 1,
    "skipped": 0,
    "attempts": 1209,
    "failed_attempts": 5,
    "error_classes": {"server_error": 3, "timeout": 2},
    "duration_ms": {"p50": 20.7, "p90": 49.4, "p99": 197.4},
    "latency_ms": {"p50": 117.4, "p90": 279.2, "p99": 939.0},
}
_HOUR = {"since": "2026-05-10T12:00:00Z", "until": "2026-05-10T13:00:00Z"}
_DAYS = {"since": "2026-05-09T00:00:00Z", "until": "2026-05-11T00:00:00Z", "by": "day"}
_RANGE = {"since": "2026-05-10T00:00:00Z", "until": "2026-05-10T12:00:00Z", "event_types": ["order.*"]}
REPLAY: dict[str, Any] = _RANGE | {
    "id": REPLAY_ID,
    "endpoint": ENDPOINT_ID,
    "webhook_id": None,
    "state": "running",
    "reason": None,
    "is_whole": True,
    "created_at": CHANGED_AT,
    "state_since": CHANGED_AT,
    "handed_over": 120,
    "delivered": 100,
    "dead_lettered": 1,
    "skipped": 0,
}
_WAITING = {"state": "waiting", "handed_over": 0, "delivered": 0, "dead_lettered": 0}
_RESENT = {"since": None, "until": None, "event_types": None, "webhook_id": WEBHOOK_ID}
_PLAIN_EVENT = {"id": "order-17", "type": "order.created", "tenant_id": "t1", "amount": 20}
_CLOUD_EVENT = {
    "specversion": "1.0",
    "id": "order-17",
    "source": "shop",
    "type": "order.created",
    "tenantid": "t1",
    "data": {"amount": 20},
}
_FIRST_PAGE = {"next_cursor": ATTEMPT_ID, "previous_cursor": None, "total": None, "is_total_exact": None}
EXAMPLES: Mapping[str, Example] = {
    "listDeliveries": Example(query={"status": "waiting", "limit": 1}, answer={"items": [DELIVERY]} | _FIRST_PAGE),
    "getDelivery": Example(answer=DELIVERY | {"history": [ATTEMPT]}),
    "listAttempts": Example(query={"accepted": False, "limit": 1}, answer={"items": [ATTEMPT]} | _FIRST_PAGE),
    "resendAttempt": Example(answer=REPLAY | _WAITING | _RESENT),
    "getEndpointStatistics": Example(
        query=_HOUR, answer=_HOUR | {"by": "hour", "total": _COUNTS, "items": [_COUNTS | {"start": _HOUR["since"]}]}
    ),
    "getStatistics": Example(
        query=_DAYS, answer=_DAYS | {"total": _COUNTS, "items": [_COUNTS | {"start": "2026-05-10T00:00:00Z"}]}
    ),
    "createReplay": Example(body=_RANGE, answer=REPLAY | _WAITING),
    "listReplays": Example(query={"limit": 1}, answer={"items": [REPLAY]} | WHOLE_LIST | {"next_cursor": "NA"}),
    "getReplay": Example(answer=REPLAY),
    "cancelReplay": Example(answer=REPLAY | {"state": "cancelled"}),
    "publishEvents": Example(
        bodies={
            "application/json": _PLAIN_EVENT,
            "application/cloudevents+json": _CLOUD_EVENT,
            "application/cloudevents-batch+json": [_CLOUD_EVENT],
        },
        answer={"accepted": ["order-17"]},
    ),
}
"""The name of an operation → its example."""
