"""What the archive keeps of a dead letter and of an attempt, made from what the job wrote. Pure.

Runs in `fanout archive`. The records come decoded (delivery.webhooks.results). One that the job cannot have written raises
RecordUnreadable.
"""

from __future__ import annotations

import base64
import datetime as dt
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeGuard

import msgspec
import orjson

from delivery import errors
from delivery.model import OutcomeKind
from delivery.webhooks.results import log_entries
from delivery.webhooks.results.dead_letter_records import DeadLetter
from delivery.webhooks.results.log_entries import Attempted, BatchEntry, Entry, RedrivenEntry, Unattempted
from delivery.webhooks.results.log_records import LogRecord
from subscriptions_db import disclosure
from subscriptions_db.archive.notifications.endpoint_health import Seen
from subscriptions_db.replays.progress import Ended

MAX_CHARS = 255
"""How much is kept of what is asked for: more than a subscription's pattern may have."""
_REGISTRY_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
_OUTCOMES: dict[type, str] = {
    **dict.fromkeys(log_entries.SKIPPED, OutcomeKind.SKIPPED.value),
    **dict.fromkeys(log_entries.POSTPONED, OutcomeKind.POSTPONED.value),
    **dict.fromkeys(log_entries.DEAD_LETTERED, OutcomeKind.DEAD_LETTERED.value),
}
"""By the type of an entry that tells of no attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterRow:
    """A dead letter, as its table has it."""

    customer_id: str
    endpoint_id: str
    tenant_id: str
    event_type: str
    reason: str
    webhook_id: str
    dead_lettered_at: dt.datetime
    payload: bytes
    letter: bytes
    """The record as it was written, less the payload."""
    batch_webhook_id: str | None = None
    """Of the batch that it was sent in; None: it was sent alone."""


class AttemptRow(NamedTuple):
    """A request to an endpoint and its result, as the table has it; or, without a request, the result of a delivery.

    A NamedTuple, because a busy platform has thousands of them a second, and a frozen dataclass takes much longer to make.
    """

    started_at: dt.datetime
    customer_id: str
    endpoint_id: str
    webhook_id: str
    event_id: str | None
    event_type: str | None
    tenant_id: str | None
    subscription_id: str | None
    events: int
    attempt: int
    """The first is 1. 0: there was none, see `outcome`."""
    duration_ms: float
    status: int | None
    error_class: str | None
    """Of what was not attempted, why."""
    detail: str
    outcome: str | None = None
    """None: an attempt. Else how the delivery has ended without one, or that it is `postponed`; told at `started_at`."""
    topic: str | None = None
    """Where its event is in Kafka; None: of a batch, or archived by an older version."""
    partition: int | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RedrivenRow:
    """A note that a letter was handed to the retry lane again."""

    customer_id: str
    endpoint_id: str
    webhook_id: str
    dead_lettered_at: dt.datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What one Kafka record holds for the archive: a letter, some attempts, notes of redrives, or nothing."""

    topic: str
    partition: int
    offset: int
    letter: LetterRow | None = None
    attempts: list[AttemptRow] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    """What it tells of replays."""
    seen: list[Seen] = field(default_factory=list)
    """What it says of endpoints' conditions."""
    redriven: list[RedrivenRow] = field(default_factory=list)

    def without_rows(self) -> Taken:
        """Return that the record was seen, and that nothing of it is kept."""
        return Taken(topic=self.topic, partition=self.partition, offset=self.offset)


def letter_row(letter: DeadLetter, document: dict[str, Any]) -> LetterRow:
    """Return the row of a dead letter. `document` is all of its record, also what a newer version wrote there."""
    payload = letter.event().data  # a redrive will need all of the event
    shown = disclosure.letter(document)
    del shown["payload_base64"]
    return LetterRow(
        customer_id=_registry_id(letter.customer_id),
        endpoint_id=_registry_id(letter.endpoint_id),
        tenant_id=_registry_id(letter.tenant_id),
        event_type=_text(letter.event_type),
        reason=_text(disclosure.word(letter.reason) or "unknown")[:64],
        webhook_id=_text(letter.webhook_id),
        dead_lettered_at=_moment(letter.dead_lettered_at_ms),
        payload=payload,
        letter=msgspec.json.encode(shown),
        batch_webhook_id=_text(letter.batch_webhook_id or "") or None,
    )


def written(letter: bytes, payload: bytes) -> bytes:
    """Return the record of the dead-letter topic again. Its fields are in their order, but the payload is the last."""
    return orjson.dumps(orjson.loads(letter) | {"payload_base64": base64.b64encode(payload).decode()})


def attempt_rows(record: LogRecord, at: dt.datetime) -> list[AttemptRow]:
    """Return the attempts in a record of the log, written `at`, and what was not attempted."""
    endpoint_id, customer_id = _registry_id(record.endpoint_id), _registry_id(record.customer_id)
    return [_attempt_row(entry, endpoint_id, customer_id, at) for entry in record.entries if _is_kept(entry)]


def _is_kept(entry: Entry) -> TypeGuard[Attempted | Unattempted]:
    """Tell whether an entry has a row. A batch that could not be made has no id: its letters tell of it."""
    if isinstance(entry, RedrivenEntry):
        return False
    return isinstance(entry, log_entries.ATTEMPTED) or bool(entry.webhook_id)


def _attempt_row(entry: Attempted | Unattempted, endpoint_id: str, customer_id: str, at: dt.datetime) -> AttemptRow:
    attempt = entry if isinstance(entry, log_entries.ATTEMPTED) else None
    event = None if isinstance(entry, BatchEntry) else entry
    return AttemptRow(
        started_at=at if attempt is None else _moment(attempt.started_at_ms),
        customer_id=customer_id,
        endpoint_id=endpoint_id,
        webhook_id=_text(entry.webhook_id),
        event_id=None if event is None else _text(event.event_id),
        event_type=None if event is None else _text(event.event_type),
        tenant_id=None if event is None else _registry_id(event.tenant_id),
        subscription_id=None if event is None else _registry_id(event.subscription_id),
        events=entry.count,
        attempt=0 if attempt is None else attempt.attempt,
        duration_ms=0.0 if attempt is None else attempt.duration_ms,
        status=None if attempt is None else attempt.status,
        error_class=disclosure.word(
            entry.error_class if isinstance(entry, log_entries.ATTEMPTED) else _text(entry.reason or "unknown")
        ),
        detail="" if attempt is None else _text(attempt.detail),
        outcome=_OUTCOMES.get(type(entry)),
        topic=None if event is None else _text(event.topic),
        partition=None if event is None else event.partition,
        offset=None if event is None else event.offset,
    )


def redriven_rows(record: LogRecord) -> list[RedrivenRow]:
    """Return the notes of redrives in such a record."""
    return [
        RedrivenRow(
            customer_id=_registry_id(record.customer_id),
            endpoint_id=_registry_id(record.endpoint_id),
            webhook_id=_text(entry.webhook_id),
            dead_lettered_at=_moment(entry.dead_lettered_at_ms),
        )
        for entry in record.entries
        if isinstance(entry, RedrivenEntry)
    ]


def ended(record: LogRecord) -> list[Ended]:
    """Return what such a record tells of replays: dead letters are in their topic."""
    return list(_ended(record))


def ended_of_letter(letter: DeadLetter) -> list[Ended]:
    """Return what a dead letter tells of a replay."""
    return [Ended(_text(letter.replay), dead_lettered=1)] if letter.replay else []


def _ended(record: LogRecord) -> Iterator[Ended]:
    for entry in record.entries:
        if not entry.replay:
            continue
        if isinstance(entry, log_entries.ATTEMPTED) and entry.error_class is None:
            yield Ended(_text(entry.replay), delivered=sum(1 for _ in entry.accepted()))
        elif isinstance(entry, log_entries.SKIPPED):
            yield Ended(_text(entry.replay), skipped=entry.count)


def _registry_id(value: str) -> str:
    if not _REGISTRY_ID.fullmatch(value):
        raise errors.RecordUnreadable("names no id of the registry")
    return value


def _text(value: str) -> str:
    """Return what Postgres takes of a text, and its indexes."""
    return value[:MAX_CHARS].replace("\0", "\ufffd")


def _moment(epoch_ms: float) -> dt.datetime:
    try:
        return dt.datetime.fromtimestamp(epoch_ms / 1000, dt.UTC)
    except (ValueError, OverflowError, OSError) as exc:
        raise errors.RecordUnreadable("has a time beyond all calendars") from exc
