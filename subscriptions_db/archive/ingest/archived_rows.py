"""Convert decoded records of the attempts and dead-letter topics to rows of the archive. Pure.

Runs in `fanout archive`. The API reads attempts back as AttemptRow. delivery.webhooks.results decodes the records. For
a record that the job cannot have written, `attempt_rows` and `redriven_rows` raise RecordUnreadable. `dead_letter_row` raises
RecordUnreadable or ValueError.
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
from delivery.model import OutcomeKind, SkipReason
from delivery.webhooks.policy import response_body
from delivery.webhooks.results import log_entries
from delivery.webhooks.results.dead_letter_records import DeadLetter
from delivery.webhooks.results.log_entries import Attempted, BatchEntry, Entry, RedrivenEntry, Unattempted
from delivery.webhooks.results.log_records import LogRecord
from subscriptions_db import disclosure
from subscriptions_db.archive.ingest.hourly_counts import HourCounts
from subscriptions_db.archive.notifications.endpoint_health import Signal
from subscriptions_db.replays.progress import ReplayCounts

MAX_CHARS = 255
"""Maximum stored characters of a searchable text. The event type of a subscription has no more characters."""
HourOfEndpoint = tuple[str, str, int]
"""Customer id, endpoint id, and whole hours since 1970."""
CountsByHour = dict[HourOfEndpoint, HourCounts]
"""Customer, endpoint and hour → the counts of this hour."""
_REGISTRY_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
_OUTCOMES: dict[type, str] = {
    **dict.fromkeys(log_entries.SKIPPED, OutcomeKind.SKIPPED.value),
    **dict.fromkeys(log_entries.POSTPONED, OutcomeKind.POSTPONED.value),
    **dict.fromkeys(log_entries.DEAD_LETTERED, OutcomeKind.DEAD_LETTERED.value),
}
"""Type of a log entry without an attempt → its outcome."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterRow:
    """A row of the table of dead letters."""

    customer_id: str
    endpoint_id: str
    tenant_id: str
    event_type: str
    reason: str
    webhook_id: str
    dead_lettered_at: dt.datetime
    payload: bytes
    letter: bytes
    """The record of the dead-letter topic without the payload, and with the error classes that customers see
    (disclosure.py)."""
    batch_webhook_id: str | None = None
    """The `webhook-id` of the batch that contained the event. None: the event was sent alone, or the job could not build its
    batch."""


class AttemptRow(NamedTuple):
    """A row of the table of attempts: a request and its result, or the outcome of a delivery without a request.

    A NamedTuple, because a busy platform creates thousands a second, and a frozen dataclass takes much longer to create.
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
    """Number of events. For a batch, the four fields above are None."""
    attempt: int
    """Attempt number; the first attempt is 1. 0: no attempt, see `outcome`."""
    duration_ms: float
    status: int | None
    """HTTP status of the response. None: no response came."""
    error_class: str | None
    """The error class of a failed attempt. None: the attempt was accepted. Without an attempt: the reason of the outcome."""
    detail: str
    """The error's text for a person. Empty: no error."""
    outcome: str | None = None
    """None: an attempt. Otherwise the outcome of the delivery at `started_at`, including `postponed`."""
    topic: str | None = None
    """With `partition` and `offset`: the position of the event in Kafka. None: a batch, or a row of an older version."""
    partition: int | None = None
    offset: int | None = None
    response_headers: dict[str, str] | None = None
    """Headers of the response, by name in lower case. None: the record has none."""
    response: str | None = None
    """Beginning of the body of the response, without credentials. None: the record has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedrivenRow:
    """A redrive note: a dead letter was enqueued in the retry lane again."""

    customer_id: str
    endpoint_id: str
    webhook_id: str
    dead_lettered_at: dt.datetime
    topic: str
    """With `partition` and `offset`: the position of the event in Kafka. Two events may have the same `webhook-id`."""
    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedRecord:
    """All that the archive writes for one Kafka record.

    The rows are a dead letter, or attempts and redrive notes, or none. A record can also have counts (of replays, and by hour)
    and signals about the health of endpoints.
    """

    topic: str
    partition: int
    offset: int
    letter: DeadLetterRow | None = None
    attempts: list[AttemptRow] = field(default_factory=list)
    replay_counts: list[ReplayCounts] = field(default_factory=list)
    """Outcomes of replayed deliveries."""
    signals: list[Signal] = field(default_factory=list)
    """Signals in the record about the health of endpoints."""
    redriven: list[RedrivenRow] = field(default_factory=list)
    statistics: CountsByHour = field(default_factory=dict)

    def without_rows(self) -> ArchivedRecord:
        """Return a copy with the position only. So the next offset moves past a record that Postgres refuses."""
        return ArchivedRecord(topic=self.topic, partition=self.partition, offset=self.offset)


class _EventPlace(msgspec.Struct, frozen=True, gc=False):
    """The position of the event in Kafka, among the fields of an archived dead letter."""

    topic: str
    partition: int
    offset: int


def dead_letter_row(letter: DeadLetter, document: dict[str, Any]) -> DeadLetterRow:
    """Return the row of a dead letter; raise RecordUnreadable or ValueError if the job cannot have written the dead letter.

    `document` is the whole record of the dead letter, including fields of a newer version.
    """
    payload = letter.event().data  # raises for an event that a redrive could not use
    letter.payload()  # raises for an opaque payload that nobody could read
    shown = disclosure.letter(document)
    del shown["payload_base64"]
    return DeadLetterRow(
        customer_id=registry_id(letter.customer_id),
        endpoint_id=registry_id(letter.endpoint_id),
        tenant_id=registry_id(letter.tenant_id),
        event_type=_text(letter.event_type),
        reason=_text(disclosure.word(letter.reason) or "unknown")[:64],
        webhook_id=_text(letter.webhook_id),
        dead_lettered_at=_moment(letter.dead_lettered_at_ms),
        payload=payload,
        letter=msgspec.json.encode(shown),
        batch_webhook_id=_text(letter.batch_webhook_id or "") or None,
    )


def topic_record(letter: bytes, payload: bytes) -> bytes:
    """Rebuild the record of the dead-letter topic from an archived dead letter.

    The payload becomes the last field. The record has the reason and the error classes that customers see.
    """
    return orjson.dumps(orjson.loads(letter) | {"payload_base64": base64.b64encode(payload).decode()})


def event_place(letter: bytes) -> tuple[str, int, int]:
    """Return the Kafka position (topic, partition, offset) of a dead letter's event. `letter` is as in DeadLetterRow."""
    found = _places.decode(letter)
    return _text(found.topic), found.partition, found.offset


def attempt_rows(record: LogRecord, at: dt.datetime) -> list[AttemptRow]:
    """Return the archive's rows of a record of the attempts topic. `at` is the time at which the record was written."""
    endpoint_id, customer_id = registry_id(record.endpoint_id), registry_id(record.customer_id)
    return [_attempt_row(entry, endpoint_id, customer_id, at) for entry in record.entries if _is_kept(entry)]


def _is_kept(entry: Entry) -> TypeGuard[Attempted | Unattempted]:
    """Return True if an entry gets a row.

    Three kinds get none: redrive notes, batches that could not be built, and resends that brought an attempt forward. Dead
    letters report a batch that could not be built. The row of a resend that brought an attempt forward would show its delivery
    as skipped, although the delivery waits.
    """
    if isinstance(entry, RedrivenEntry) or is_brought_forward(entry):
        return False
    return isinstance(entry, log_entries.ATTEMPTED) or bool(entry.webhook_id)


def is_brought_forward(entry: Entry) -> bool:
    """Return True if an entry reports a resend that was skipped because it brought the next attempt of its delivery forward."""
    return isinstance(entry, log_entries.SKIPPED) and entry.reason == SkipReason.BROUGHT_FORWARD


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
        tenant_id=None if event is None else registry_id(event.tenant_id),
        subscription_id=None if event is None else registry_id(event.subscription_id),
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
        response_headers=None if attempt is None else _headers(attempt),
        response=None if attempt is None else _body(attempt),
    )


def redriven_rows(record: LogRecord) -> list[RedrivenRow]:
    """Return the redrive notes of a record of the attempts topic."""
    return [
        RedrivenRow(
            customer_id=registry_id(record.customer_id),
            endpoint_id=registry_id(record.endpoint_id),
            webhook_id=_text(entry.webhook_id),
            dead_lettered_at=_moment(entry.dead_lettered_at_ms),
            topic=_text(entry.topic),
            partition=entry.partition,
            offset=entry.offset,
        )
        for entry in record.entries
        if isinstance(entry, RedrivenEntry)
    ]


def replay_counts(record: LogRecord) -> list[ReplayCounts]:
    """Count the delivered and the skipped deliveries of replays in a record of the attempts topic.

    A redriven dead letter counts as -1 dead letter, because its delivery waits again. Each log entry about a delivery of a
    replay gives one item, so the result may have several items of one replay. `replay_counts_of_dead_letter` counts dead
    letters.
    """
    return list(_replay_counts(record))


def replay_counts_of_dead_letter(letter: DeadLetter) -> list[ReplayCounts]:
    """Count a dead letter for the replay that requested its delivery; return an empty list if no replay did."""
    return [ReplayCounts(_text(letter.replay), dead_lettered=1)] if letter.replay else []


def _replay_counts(record: LogRecord) -> Iterator[ReplayCounts]:
    for entry in record.entries:
        if not entry.replay:
            continue
        if isinstance(entry, log_entries.ATTEMPTED) and entry.error_class is None:
            yield ReplayCounts(_text(entry.replay), delivered=sum(1 for _ in entry.accepted()))
        elif isinstance(entry, log_entries.SKIPPED):
            yield ReplayCounts(_text(entry.replay), skipped=entry.count)
        elif isinstance(entry, RedrivenEntry):
            yield ReplayCounts(_text(entry.replay), dead_lettered=-1)


def registry_id(value: str) -> str:
    """Return the text unchanged. Raise RecordUnreadable if the registry cannot have it as an id."""
    if not _REGISTRY_ID.fullmatch(value):
        raise errors.RecordUnreadable("it has an id that the registry cannot have")
    return value


def _text(value: str) -> str:
    """Return a text that Postgres can store and index: the first MAX_CHARS characters, with each NUL replaced by U+FFFD."""
    return value[:MAX_CHARS].replace("\0", "\ufffd")


def _headers(attempt: Attempted) -> dict[str, str] | None:
    """Return the response headers of an attempt, as texts that Postgres can store. None: the entry has no headers."""
    return {_text(name): _text(value) for name, value in (attempt.response_headers or {}).items()} or None


def _body(attempt: Attempted) -> str | None:
    """Return the beginning of an attempt's response body, as text that Postgres can store. None: the entry has no body."""
    return (attempt.response or "")[: response_body.MAX_BYTES].replace("\0", "\ufffd") or None


def _moment(epoch_ms: float) -> dt.datetime:
    try:
        return dt.datetime.fromtimestamp(epoch_ms / 1000, dt.UTC)
    except (ValueError, OverflowError, OSError) as exc:
        raise errors.RecordUnreadable("it has a time outside the calendar") from exc


_places = msgspec.json.Decoder(_EventPlace)
