"""Write results as rows for Kafka: the attempts topic, the dead-letter topic, the operator's rejected topic.

Runs in the executors. Must not import pyspark or psycopg. docs/delivery-contract.md describes the dead letter for customers.
No row holds a secret: request headers are left out, and a URL is cut to its origin, since paths and queries carry tokens.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import orjson
import yarl

from delivery.model import Attempt, CustomerId, Delivery, EndpointId, Outcome, OutcomeKind, Record
from delivery.webhooks import envelope
from delivery.webhooks.intake import Receipt, Rejection
from delivery.webhooks.lane import Results

MAX_REJECTED_BYTES = 64 * 1024
"""How much of a rejected record is kept; a larger one is cut, and found whole at its offset."""

MAX_ROW_BYTES = 256 * 1024
"""How much of the log shares a row: far below Kafka's 1 MiB, and more than enough to share the costs of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """Where the results go."""

    attempts: str
    dead_letters: str
    rejected: str


class Row(NamedTuple):
    """One record for Kafka."""

    topic: str
    key: bytes
    value: bytes


def rows(results: Results, topics: Topics) -> Iterator[Row]:
    """Yield every row that records `results`. Written in one commit with the offsets that they came from.

    The log's entries of one endpoint share rows: a row costs the JVM about 15 µs, whatever is in it (docs/benchmarks/).
    """
    for endpoint_id, (customer_id, entries) in _log(results.outcomes).items():
        head = orjson.dumps({"kind": "outcomes", "endpoint_id": endpoint_id, "customer_id": customer_id})[:-1]
        for chunk in _chunks(entries):
            yield Row(topics.attempts, endpoint_id.encode(), b'%s,"entries":[%s]}' % (head, b",".join(chunk)))
    for outcome in results.outcomes:
        if outcome.kind is OutcomeKind.DEAD_LETTERED:
            key = outcome.delivery.endpoint.endpoint_id.encode()
            yield Row(topics.dead_letters, key, orjson.dumps(_dead_letter(outcome)))
    for rejection in results.rejections:
        yield Row(topics.rejected, rejection.record.topic.encode(), orjson.dumps(_rejected(rejection)))
    for receipt in results.receipts:
        yield Row(topics.attempts, f"{receipt.topic}:{receipt.partition}".encode(), orjson.dumps(_receipt_entry(receipt)))


def _log(outcomes: list[Outcome]) -> dict[EndpointId, tuple[CustomerId, list[bytes]]]:
    """Return the entries of each endpoint: one an attempt, and one that says why for what was never attempted."""
    log: dict[EndpointId, tuple[CustomerId, list[bytes]]] = {}
    for outcome in outcomes:
        delivery = outcome.delivery
        endpoint = delivery.endpoint
        found = log.get(endpoint.endpoint_id)
        if found is None:
            found = log[endpoint.endpoint_id] = (endpoint.customer_id, [])
        if not outcome.attempts:
            found[1].append(orjson.dumps({"kind": outcome.kind, **_identity(delivery), "reason": outcome.reason}))
        for attempt in outcome.attempts:
            found[1].append(orjson.dumps({"kind": "attempt", **_identity(delivery), **_attempt(attempt)}))
    return log


def _chunks(entries: list[bytes]) -> Iterator[list[bytes]]:
    """Part the entries so that each row stays below MAX_ROW_BYTES, or holds one entry."""
    first, size = 0, 0
    for number, entry in enumerate(entries):
        size += len(entry)
        if size > MAX_ROW_BYTES and number > first:
            yield entries[first:number]
            first, size = number, len(entry)
    if entries:
        yield entries[first:]


def _identity(delivery: Delivery) -> dict[str, Any]:
    event = delivery.event
    record = event.record
    return {
        "webhook_id": delivery.webhook_id,
        "event_id": event.event_id,
        "event_type": event.event_type,
        "tenant_id": event.tenant_id,
        "subscription_id": delivery.subscription.subscription_id,
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "appended_at_ms": record.appended_at_ms,
    }


def _attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        "attempt": attempt.number,
        "started_at_ms": attempt.started_at_ms,
        "duration_ms": round(attempt.duration_ms, 1),
        "status": attempt.status,
        "error_class": attempt.error_class,
        "detail": attempt.detail,
        "retry_after_s": attempt.retry_after_s,
    }


def _dead_letter(outcome: Outcome) -> dict[str, Any]:
    delivery = outcome.delivery
    event = delivery.event
    return {
        **_identity(delivery),
        "endpoint_id": delivery.endpoint.endpoint_id,
        "customer_id": delivery.endpoint.customer_id,
        "reason": outcome.reason,
        "dead_lettered_at_ms": int(time.time() * 1000),
        "url_origin": str(yarl.URL(delivery.endpoint.url).origin()),
        "source": event.source,
        "sub_tenant_id": event.sub_tenant_id,
        "time": event.time,
        "headers": _headers(event.record),
        "payload_base64": base64.b64encode(event.data).decode(),
        "attempts": [
            _attempt(attempt) | {"response": attempt.response.decode(errors="replace")} for attempt in outcome.attempts
        ],
    }


def _rejected(rejection: Rejection) -> dict[str, Any]:
    record = rejection.record
    value = record.value
    return {
        "reason": rejection.reason,
        "detail": rejection.detail,
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "appended_at_ms": record.appended_at_ms,
        "headers": _headers(record, MAX_REJECTED_BYTES),
        "value_bytes": None if value is None else len(value),
        "value_base64": None if value is None else base64.b64encode(value[:MAX_REJECTED_BYTES]).decode(),
    }


def _receipt_entry(receipt: Receipt) -> dict[str, Any]:
    return {"kind": "receipt", **asdict(receipt)}


def _headers(record: Record, max_bytes: int | None = None) -> list[dict[str, str]]:
    """Return the record's headers, as many as fit into `max_bytes`. A value is any bytes, so it is kept in base64."""
    kept, size = [], 0
    for name, value in record.headers:
        size += envelope.header_bytes(name, value)
        if max_bytes is not None and size > max_bytes:
            break
        kept.append({"name": name, "value_base64": base64.b64encode(value).decode()})
    return kept
