"""What the archive keeps of a dead letter and of an attempt, made from what the job wrote. Pure.

Runs in `fanout archive`. A record that the job cannot have written raises RecordUnreadable.
"""

from __future__ import annotations

import base64
import datetime as dt
import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import orjson

from delivery import errors
from delivery.model import OutcomeKind
from subscriptions_db import disclosed
from subscriptions_db.archive.conditions import Seen
from subscriptions_db.replays.progress import Ended

MAX_CHARS = 255
"""How much is kept of what is asked for: more than a subscription's pattern may have."""
Row = TypeVar("Row")
_REGISTRY_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
_ATTEMPTS = {"attempt", "batch_attempt"}
_WITHOUT_ATTEMPT = (OutcomeKind.SKIPPED, OutcomeKind.POSTPONED, OutcomeKind.DEAD_LETTERED)
_OUTCOMES = {f"{of}{kind.value}": kind.value for of in ("", "batch_") for kind in _WITHOUT_ATTEMPT}
"""What the entries are called that tell of no attempt."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    """A request to an endpoint and what came of it, as its table has it; or, without a request, what became of a delivery."""

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


def letter_row(written: bytes) -> LetterRow:
    """Return the dead letter in a record of their topic."""
    try:
        document: dict[str, Any] = disclosed.letter(orjson.loads(written))
        payload = base64.b64decode(document.pop("payload_base64"), validate=True)
        return LetterRow(
            customer_id=_registry_id(document["customer_id"]),
            endpoint_id=_registry_id(document["endpoint_id"]),
            tenant_id=_registry_id(document["tenant_id"]),
            event_type=_text(document["event_type"]),
            reason=_text(document["reason"] or "unknown")[:64],
            webhook_id=_text(document["webhook_id"]),
            dead_lettered_at=_moment(document["dead_lettered_at_ms"]),
            payload=payload,
            letter=orjson.dumps(document),
            batch_webhook_id=_text(document.get("batch_webhook_id") or "") or None,
        )
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as exc:
        raise errors.RecordUnreadable(f"is no dead letter ({type(exc).__name__})") from exc


def written(letter: bytes, payload: bytes) -> bytes:
    """Return the record of the dead-letter topic again. Its fields are in their order, but the payload is the last."""
    return orjson.dumps(orjson.loads(letter) | {"payload_base64": base64.b64encode(payload).decode()})


def attempt_rows(written: bytes, at: dt.datetime) -> list[AttemptRow]:
    """Return the attempts in a record of the attempts topic, written `at`, and what was not attempted."""
    return _rows(written, b'"outcomes"', functools.partial(_attempts, at=at))


def redriven_rows(written: bytes) -> list[RedrivenRow]:
    """Return the notes of redrives in such a record."""
    return _rows(written, b'"redriven"', _redriven)


def ended(written: bytes) -> list[Ended]:
    """Return what such a record tells of replays: dead letters are in their topic."""
    return _rows(written, b'"replay"', _ended)


def ended_of_letter(written: bytes) -> list[Ended]:
    """Return what a record of the dead-letter topic, which is a letter, tells of a replay."""
    replay_id = orjson.loads(written).get("replay") if b'"replay"' in written else None
    return [] if replay_id is None else [Ended(_text(replay_id), dead_lettered=1)]


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    """What attempts of all kinds say."""

    kind: str
    webhook_id: str = ""
    started_at_ms: float = 0.0
    attempt: int = 0
    duration_ms: float = 0.0
    status: int | None = None
    error_class: str | None = None
    reason: str | None = None
    detail: str = ""
    event_id: str | None = None
    event_type: str | None = None
    tenant_id: str | None = None
    subscription_id: str | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    count: int = 1
    dead_lettered_at_ms: float = 0.0
    rejected: dict[str, dict[str, dict[str, list[int]]]] = {}
    replay: str | None = None


class _Outcomes(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    endpoint_id: str = ""
    customer_id: str = ""
    entries: list[_Entry] = []


_outcomes = msgspec.json.Decoder(_Outcomes)


def _rows(written: bytes, sign: bytes, of: Callable[[_Outcomes], Iterator[Row]]) -> list[Row]:
    """Return what a record has of one kind. Without its sign it has none: to look for that is far cheaper than to parse."""
    if sign not in written:
        return []
    try:
        row = _outcomes.decode(written)
        return list(of(row)) if row.kind == "outcomes" else []
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as exc:
        raise errors.RecordUnreadable(f"is no row of the attempts topic ({type(exc).__name__})") from exc


def _redriven(row: _Outcomes) -> Iterator[RedrivenRow]:
    for entry in row.entries:
        if entry.kind == "redriven":
            yield RedrivenRow(
                customer_id=_registry_id(row.customer_id),
                endpoint_id=_registry_id(row.endpoint_id),
                webhook_id=_text(entry.webhook_id),
                dead_lettered_at=_moment(entry.dead_lettered_at_ms),
            )


def _ended(row: _Outcomes) -> Iterator[Ended]:
    for entry in row.entries:
        if entry.replay is None:
            continue
        if entry.kind in _ATTEMPTS and entry.error_class is None:
            rejected = sum(len(at) for topics in entry.rejected.values() for parts in topics.values() for at in parts.values())
            yield Ended(_text(entry.replay), delivered=entry.count - rejected)
        elif entry.kind in {"skipped", "batch_skipped"}:
            yield Ended(_text(entry.replay), skipped=entry.count)


def _attempts(row: _Outcomes, at: dt.datetime) -> Iterator[AttemptRow]:
    endpoint_id, customer_id = _registry_id(row.endpoint_id), _registry_id(row.customer_id)
    for entry in row.entries:
        outcome = _OUTCOMES.get(entry.kind)
        if outcome is None and entry.kind not in _ATTEMPTS:
            continue
        if outcome is not None and not entry.webhook_id:  # a batch that could not be made has none: its letters tell of it
            continue
        yield AttemptRow(
            started_at=_moment(entry.started_at_ms) if outcome is None else at,
            customer_id=customer_id,
            endpoint_id=endpoint_id,
            webhook_id=_text(entry.webhook_id),
            event_id=None if entry.event_id is None else _text(entry.event_id),
            event_type=None if entry.event_type is None else _text(entry.event_type),
            tenant_id=None if entry.tenant_id is None else _registry_id(entry.tenant_id),
            subscription_id=None if entry.subscription_id is None else _registry_id(entry.subscription_id),
            events=entry.count,
            attempt=entry.attempt,
            duration_ms=entry.duration_ms,
            status=entry.status,
            error_class=disclosed.word(entry.error_class if outcome is None else _text(entry.reason or "unknown")),
            detail=_text(entry.detail),
            outcome=outcome,
            topic=None if entry.topic is None else _text(entry.topic),
            partition=entry.partition,
            offset=entry.offset,
        )


def _registry_id(value: str) -> str:
    if not _REGISTRY_ID.fullmatch(value):
        raise ValueError("no id of the registry")
    return value


def _text(value: str) -> str:
    """Return what Postgres takes of a text, and its indexes."""
    return value[:MAX_CHARS].replace("\0", "\ufffd")


def _moment(epoch_ms: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(epoch_ms / 1000, dt.UTC)
