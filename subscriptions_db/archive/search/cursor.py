"""Say a place in the archive as text that customers hand back, and read it. Pure.

Runs wherever the archive is read. A cursor is no secret and no right: what it leads to is still the asking customer's own.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import uuid
from typing import NamedTuple

from delivery import errors

MAX_POSITION = 2**63 - 1
MAX_CHARS = 128
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)


class Receipt(NamedTuple):
    """What a poller hands back of a letter that it was given."""

    position: int
    token: uuid.UUID

    def text(self) -> str:
        """Return it for the poller."""
        return _encoded("r", self.position, self.token.hex)

    @classmethod
    def read(cls, text: str) -> Receipt:
        """Return the receipt that a text is; raise RegistrationError where it is none."""
        position, token = _decoded("receipt", "r", text, 2)
        try:
            return cls(_position("receipt", position), uuid.UUID(hex=token))
        except ValueError:
            raise _no("receipt") from None


class Moment(NamedTuple):
    """A place among attempts, which stand in the order of their time."""

    started_at: dt.datetime
    position: int

    def text(self) -> str:
        """Return it for the customer."""
        return _encoded("a", (self.started_at - _EPOCH) // _MICROSECOND, self.position)

    @classmethod
    def read(cls, text: str) -> Moment:
        """Return the place that a text is; raise RegistrationError where it is none."""
        at, position = _decoded("cursor", "a", text, 2)
        try:
            return cls(_EPOCH + _position("cursor", at) * _MICROSECOND, _position("cursor", position))
        except OverflowError:
            raise _no("cursor") from None


def of_position(position: int) -> str:
    """Return the cursor behind a letter."""
    return _encoded("l", position)


def position_of(text: str) -> int:
    """Return the position of a cursor; raise RegistrationError where it is none."""
    [position] = _decoded("cursor", "l", text, 1)
    return _position("cursor", position)


def _encoded(kind: str, *parts: object) -> str:
    return base64.urlsafe_b64encode(".".join(map(str, (kind, *parts))).encode()).decode().rstrip("=")


def _decoded(what: str, kind: str, text: str, count: int) -> list[str]:
    if len(text) > MAX_CHARS:
        raise _no(what)
    try:
        found, *parts = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True).decode("ascii").split(".")
    except (binascii.Error, ValueError):
        raise _no(what) from None
    if found != kind or len(parts) != count:
        raise _no(what)
    return parts


def _position(what: str, digits: str) -> int:
    if not digits.isdecimal() or int(digits) > MAX_POSITION:
        raise _no(what)
    return int(digits)


def _no(what: str) -> errors.RegistrationError:
    return errors.RegistrationError(what, f"is no {what} of the archive: hand back one that it gave, unchanged")
