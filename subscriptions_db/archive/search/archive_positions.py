"""Encode and decode positions in the archive as opaque text: cursors and receipt handles. Pure.

Runs in the API and in `fanout` commands. A cursor is no secret and grants no access: every query also names the customer of
the request.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import datetime as dt
import uuid
from typing import Any, NamedTuple

from delivery import errors

MAX_POSITION = 2**63 - 1
"""The largest `bigint` of Postgres."""
MAX_CHARS = 128
"""Maximum characters of a cursor or a receipt handle."""
BACKWARDS = "b"
"""The first part of a cursor that leads backwards: to newer attempts or deliveries, or to earlier dead letters. Cursors that
lead forwards begin with `a` (attempts and deliveries) or `l` (dead letters)."""
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)


class ReceiptHandle(NamedTuple):
    """A receipt handle: the position of a leased dead letter and the token of the lease."""

    position: int
    token: uuid.UUID

    def text(self) -> str:
        """Return the receipt handle as text."""
        return _encoded("r", self.position, self.token.hex)

    @classmethod
    def read(cls, text: str) -> ReceiptHandle:
        """Parse a receipt handle; raise RegistrationError if the text is not valid."""
        position, token = _decoded("receipt", "r", text, 2)
        try:
            return cls(_position("receipt", position), uuid.UUID(hex=token))
        except ValueError:
            raise _no("receipt") from None


class RecordPosition(NamedTuple):
    """The position of a record, a row of the table of attempts. Searches sort by `started_at`, then by `position`."""

    started_at: dt.datetime
    position: int

    def text(self) -> str:
        """Return the position as opaque text."""
        return _of_place("a", self)

    @classmethod
    def read(cls, text: str) -> RecordPosition:
        """Parse the position of a record; raise RegistrationError if the text is not valid."""
        return _place_of("a", text)

    def parameters(self) -> dict[str, Any]:
        """Return the position as the parameters `place_at` and `place` of the statements."""
        return {"place_at": self.started_at, "place": self.position}

    def beside(self, *, is_newer: bool) -> RecordPosition:
        """Return the position directly after this one if `is_newer`, else directly before. No attempt lies between the two."""
        return self._replace(position=self.position + (1 if is_newer else -1))


class PageStart(NamedTuple):
    """The place at which a page of attempts or deliveries begins. The record at the place is not on the page."""

    place: RecordPosition
    is_backwards: bool = False
    """True: the page has records that are newer than `place`. False: records that are older."""

    def text(self) -> str:
        """Return the cursor of the page."""
        return _of_place(BACKWARDS if self.is_backwards else "a", self.place)

    @classmethod
    def read(cls, text: str) -> PageStart:
        """Return the start of a page by its cursor; raise RegistrationError if the cursor is not valid."""
        with contextlib.suppress(errors.RegistrationError):
            return cls(_place_of(BACKWARDS, text), is_backwards=True)
        return cls(_place_of("a", text))


def letter_cursor(position: int) -> str:
    """Return the cursor of the page of dead letters that begins after a position."""
    return _encoded("l", position)


def letter_cursor_back(position: int) -> str:
    """Return the cursor of the page of dead letters that ends before a position."""
    return _encoded(BACKWARDS, position)


def letter_start(text: str | None) -> tuple[int, bool]:
    """Return the position in a cursor, and True if the page has dead letters before the position, False for those after it.

    Without a cursor the page begins before the first dead letter. Raise RegistrationError if `text` is no cursor of dead
    letters.
    """
    if not text:
        return 0, False
    with contextlib.suppress(errors.RegistrationError):
        [position] = _decoded("cursor", BACKWARDS, text, 1)
        if before := _position("cursor", position):  # no dead letter is before the position 0, so no answer has that cursor
            return before, True
    return letter_position(text), False


def letter_position(text: str) -> int:
    """Return the position after which a page of dead letters begins, by its cursor.

    Raise RegistrationError if `text` is no cursor of dead letters, or leads backwards.
    """
    [position] = _decoded("cursor", "l", text, 1)
    return _position("cursor", position)


def _of_place(kind: str, place: RecordPosition) -> str:
    return _encoded(kind, (place.started_at - _EPOCH) // _MICROSECOND, place.position)


def _place_of(kind: str, text: str) -> RecordPosition:
    at, position = _decoded("cursor", kind, text, 2)
    try:
        return RecordPosition(_EPOCH + _position("cursor", at) * _MICROSECOND, _position("cursor", position))
    except OverflowError:
        raise _no("cursor") from None


def _encoded(kind: str, *parts: object) -> str:
    return base64.urlsafe_b64encode(".".join(map(str, (kind, *parts))).encode()).decode().rstrip("=")


def _decoded(name: str, kind: str, text: str, count: int) -> list[str]:
    if len(text) > MAX_CHARS:
        raise _no(name)
    try:
        found, *parts = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True).decode("ascii").split(".")
    except (binascii.Error, ValueError):
        raise _no(name) from None
    if found != kind or len(parts) != count:
        raise _no(name)
    return parts


def _position(name: str, digits: str) -> int:
    if not digits.isdecimal() or int(digits) > MAX_POSITION:
        raise _no(name)
    return int(digits)


def _no(name: str) -> errors.RegistrationError:
    return errors.RegistrationError(name, f"is not a valid {name} of the archive: send one from an answer, unchanged")
