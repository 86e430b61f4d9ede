"""What records of the topics say of an endpoint's condition. Pure.

Runs in `fanout archive`. Of deliveries of operational events only attempts count: a backlog or dead letters of nothing else
would be told by one more of them, each time, without end.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import msgspec

from delivery import errors
from delivery.model import PLATFORM
from subscriptions_db import disclosed
from subscriptions_db.archive.conditions import Seen, Sign
from subscriptions_db.archive.rows import LetterRow

_POSTPONED = {"postponed", "batch_postponed"}
_ATTEMPTS = {"attempt", "batch_attempt"}


class _Entry(msgspec.Struct, frozen=True):
    kind: str
    tenant_id: str | None = None
    error_class: str | None = None
    reason: str | None = None
    count: int = 1


class _Outcomes(msgspec.Struct, frozen=True):
    kind: str
    endpoint_id: str = ""
    customer_id: str = ""
    entries: list[_Entry] = []


_outcomes = msgspec.json.Decoder(_Outcomes)


def of_log(written: bytes, at: dt.datetime) -> list[Seen]:
    """Return the signs in a record of the attempts topic, written `at`: those of one kind in a row as one."""
    if b'attempt"' not in written and b'postponed"' not in written:  # a receipt, as in rows.attempt_rows
        return []
    try:
        row = _outcomes.decode(written)
    except msgspec.MsgspecError as exc:
        raise errors.RecordUnreadable(f"is no row of the attempts topic ({type(exc).__name__})") from exc
    signs: list[Seen] = []
    for sign, times, reason in _signs(row.entries):
        if signs and signs[-1].sign is sign:
            signs[-1] = signs[-1]._replace(times=signs[-1].times + times, reason=reason)
        else:
            signs.append(Seen(row.endpoint_id, row.customer_id, sign, at, times, reason))
    return signs


def of_letter(letter: LetterRow, at: dt.datetime) -> list[Seen]:
    """Return the sign that a dead letter is, written `at`."""
    if letter.tenant_id == PLATFORM:
        return []
    return [Seen(letter.endpoint_id, letter.customer_id, Sign.DEAD_LETTER, at, reason=letter.reason)]


def _signs(entries: list[_Entry]) -> Iterator[tuple[Sign, int, str | None]]:
    for entry in entries:
        if entry.kind in _ATTEMPTS and entry.error_class is None:
            yield Sign.ACCEPTED, 1, None
        elif entry.kind in _ATTEMPTS and entry.error_class != errors.LocalFailure.error_class:
            yield Sign.FAILED, 1, disclosed.word(entry.error_class)
        elif entry.kind in _POSTPONED and entry.tenant_id != PLATFORM:
            yield Sign.POSTPONED, entry.count, disclosed.word(entry.reason)
