"""List examples of the operations on dead letters and on their consumers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from subscriptions_db.api.examples.endpoints import CHANGED_AT, CREATED_AT
from subscriptions_db.api.examples.example import (
    CONSUMER_NAME,
    ENDPOINT_ID,
    LETTER_CURSOR,
    LETTER_ID,
    RECEIPT,
    SUBSCRIPTION_ID,
    WEBHOOK_ID,
    Example,
)

LETTER: dict[str, Any] = {
    "id": LETTER_ID,
    "state": "waiting",
    "state_since": "2026-05-10T12:00:03Z",
    "archived_at": "2026-05-10T12:00:03Z",
    "payload_base64": "eyJhbW91bnQiOiA3MDB9",
    "record": {
        "webhook_id": WEBHOOK_ID,
        "event_id": "order-17",
        "event_type": "order.created",
        "tenant_id": "t1",
        "subscription_id": SUBSCRIPTION_ID,
        "topic": "events.order.created",
        "partition": 0,
        "offset": 7,
        "appended_at_ms": 1778414400000,
        "endpoint_id": ENDPOINT_ID,
        "customer_id": "acme",
        "reason": "timeout",
        "dead_lettered_at_ms": 1778414402000,
        "url_origin": "https://hooks.acme.example.com",
        "source": "shop",
        "sub_tenant_id": "100",
        "time": "2026-05-10T12:00:00Z",
        "headers": [],
        "attempts_omitted": 0,
        "attempts": [
            {
                "attempt": 1,
                "started_at_ms": 1778414400500,
                "duration_ms": 1000.0,
                "status": None,
                "error_class": "timeout",
                "detail": "no response in 1 s",
                "retry_after_s": None,
                "response": "",
            }
        ],
    },
}
_NEXT = {"next_cursor": LETTER_CURSOR, "has_more": False}
_FIRST = {"previous_cursor": None, "total": None, "is_total_exact": None}
CONSUMER: dict[str, Any] = {
    "name": CONSUMER_NAME,
    "endpoint": None,
    "event_type": "order.*",
    "tenant": None,
    "reason": None,
    "cursor": LETTER_CURSOR,
    "unacknowledged": 3,
    "max_receives": 5,
    "waiting": 12,
    "waiting_is_exact": True,
    "leased": 2,
    "parked": 1,
    "parked_is_exact": True,
    "created_at": CREATED_AT,
}
_NOTHING_READ = {"cursor": "bC4w", "unacknowledged": 0, "waiting": 15, "leased": 0, "parked": 0}
"""The fields of a consumer that has read no dead letter yet. `bC4w` is the cursor before the first dead letter."""


def _marked(state: str) -> dict[str, Any]:
    return {"id": LETTER_ID, "state": state, "state_since": CHANGED_AT}


def _settled(result: str, leased_until: str | None = None) -> dict[str, Any]:
    settled = {"index": 0, "result": result, "letter": LETTER_ID, "reason": None, "leased_until": leased_until}
    return {"letters": [LETTER_ID], "refused": [], "results": [settled]}


EXAMPLES: Mapping[str, Example] = {
    "listDeadLetters": Example(query={"event_type": "order.*", "limit": 1}, answer={"items": [LETTER]} | _NEXT | _FIRST),
    "countDeadLetters": Example(query={"event_type": "order.*"}, answer={"count": 15, "is_exact": True}),
    "getDeadLetter": Example(answer=LETTER),
    "getDeadLetterPayload": Example(answer='{"amount": 700}'),
    "redriveDeadLetter": Example(answer=_marked("redriving")),
    "discardDeadLetter": Example(answer=_marked("discarded")),
    "redriveDeadLetters": Example(body={"endpoint": ENDPOINT_ID, "reason": "timeout"}, answer={"count": 15} | _NEXT),
    "discardDeadLetters": Example(
        body={"event_type": "order.*", "until": "2026-06-01T00:00:00Z"}, answer={"count": 15} | _NEXT
    ),
    "recoverEndpoint": Example(
        body={"since": "2026-05-10T00:00:00Z"}, answer={"count": 15, "status": "active", "detail": ""} | _NEXT
    ),
    "listConsumers": Example(answer={"items": [CONSUMER]}),
    "createConsumer": Example(
        body={"name": CONSUMER_NAME, "event_type": "order.*", "max_receives": 5}, answer=CONSUMER | _NOTHING_READ
    ),
    "getConsumer": Example(answer=CONSUMER),
    "updateConsumer": Example(body={"max_receives": 10}, answer=CONSUMER | {"max_receives": 10}),
    "deleteConsumer": Example(),
    "seekConsumer": Example(body={"to": "beginning"}, answer=CONSUMER | _NOTHING_READ),
    "leaseDeadLetters": Example(
        body={"limit": 1, "lease_s": 60.0},
        answer={
            "items": [LETTER | {"receipt": RECEIPT, "times": 1, "leased_until": "2026-05-10T12:01:00Z"}],
            "has_more": True,
        },
    ),
    "acknowledgeDeadLetters": Example(body={"receipts": [RECEIPT]}, answer=_settled("acknowledged")),
    "extendDeadLetterLeases": Example(
        body={"receipts": [RECEIPT], "lease_s": 300.0}, answer=_settled("extended", "2026-05-10T12:05:00Z")
    ),
    "giveDeadLettersBack": Example(body={"receipts": [RECEIPT], "wait_s": 30.0}, answer=_settled("returned")),
    "listParkedDeadLetters": Example(
        query={"event_type": "order.*", "limit": 1},
        answer={"items": [LETTER | {"times": 5, "parked_at": CHANGED_AT}]} | _NEXT | _FIRST,
    ),
    "unparkDeadLetters": Example(body={"letters": [LETTER_ID]}, answer={"letters": [LETTER_ID], "has_more": False}),
}
"""The name of an operation → its example."""
