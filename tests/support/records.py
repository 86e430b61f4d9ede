"""Build records of the topics with full defaults. A test gives only the fields that it is about."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from delivery.webhooks.results.dead_letter_records import DeadLetter
from delivery.webhooks.results.log_entries import Entry
from delivery.webhooks.results.log_records import LogRecord, OffsetReceipt

Type = TypeVar("Type", bound=msgspec.Struct)
_DEFAULTS: dict[str, Any] = {
    "webhook_id": "msg_1", "event_id": "e1", "event_type": "order.created", "tenant_id": "t1", "subscription_id": "s1",
    "topic": "events.order.created", "partition": 0, "offset": 7, "appended_at_ms": 1_700_000_000_000,
    "attempt": 1, "started_at_ms": 1_700_000_000_100, "duration_ms": 12.5, "status": None, "error_class": None, "reason": None,
    "left_by": "count", "count": 1, "oldest_appended_at_ms": 1_700_000_000_000, "offsets": {},
    "detail": "", "value_bytes": None, "value_base64": None,
    "dead_lettered_at_ms": 1_700_000_001_000, "redriven_at_ms": 1_700_000_002_000,
    "endpoint_id": "ep1", "customer_id": "c1", "url_origin": "https://hooks.example.com", "source": "events.order.created",
    "sub_tenant_id": None, "time": "2026-01-01T00:00:00Z", "headers": [], "payload_base64": "e30=", "attempts": [],
    "entries": [],
    "lane": "direct", "revision": 1, "first_offset": 0, "last_offset": 9, "records": 10, "rejected": 0, "due": 0,
}  # fmt: skip


def entry(type_: type[Type], **fields: Any) -> Type:
    """Return an entry of the attempts topic, or another record, of this type."""
    return type_(**{field.name: _DEFAULTS[field.name] for field in msgspec.structs.fields(type_) if field.required} | fields)


def log(*entries: Entry, **fields: Any) -> LogRecord:
    """Return a record of the attempts topic with these entries."""
    return entry(LogRecord, entries=list(entries), **fields)


def dead_letter(**fields: Any) -> DeadLetter:
    return entry(DeadLetter, **fields)


def receipt(**fields: Any) -> OffsetReceipt:
    return entry(OffsetReceipt, **fields)
