"""Encode and decode positions in the archive as opaque text: cursors and receipt handles. Pure.

Runs in the API and in `fanout` commands. A cursor is neither a secret nor a right: every query also names the customer of the
request.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import uuid
from typing import NamedTuple

from delivery import errors

MAX_POSITION = 2**63 - 1
"""The largest `bigint` of Postgres."""
MAX_CHARS = 128
"""Maximum characters of a cursor or a receipt handle."""
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
        """Return the receipt handle of a text; raise RegistrationError if it is not valid."""
        position, token = _decoded("receipt", "r", text, 2)
        try:
            return cls(_position("receipt", position), uuid.UUID(hex=token))
        except ValueError:
            raise _no("receipt") from None


class AttemptPosition(NamedTuple):
    """The position of an attempt. Attempts are sorted by time."""

    started_at: dt.datetime
    position: int

    def text(self) -> str:
        """Return the position as text."""
        return _encoded("a", (self.started_at - _EPOCH) // _MICROSECOND, self.position)

    @classmethod
    def read(cls, text: str) -> AttemptPosition:
        """Return the position of a text; raise RegistrationError if it is not valid."""
        at, position = _decoded("cursor", "a", text, 2)
        try:
            return cls(_EPOCH + _position("cursor", at) * _MICROSECOND, _position("cursor", position))
        except OverflowError:
            raise _no("cursor") from None


def letter_cursor(position: int) -> str:
    """Return the cursor after the dead letter at a position."""
    return _encoded("l", position)


def letter_position(text: str) -> int:
    """Return the position after which a page of dead letters begins. Raise RegistrationError if `text` is no such cursor."""
    [position] = _decoded("cursor", "l", text, 1)
    return _position("cursor", position)


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
