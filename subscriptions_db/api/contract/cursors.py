"""Encode and decode the cursors of lists as opaque text. Pure.

Runs in the API. The cursor of the next page holds the id after which that page begins. So rows may be added and deleted while a
client pages. The cursor of the previous page holds `<`, and then the text before which that page ends. No id begins with `<`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import NamedTuple, TypeVar

BEFORE = "<"
"""The first character of the decoded cursor of a previous page."""

_DIRECTLY_AFTER = "\x01"
"""A row's id with this character behind it sorts directly after the row, because all characters of ids sort after this one."""


class Place(NamedTuple):
    """The place in a list at which a page begins, or ends. The row `row_id` itself is not on the page."""

    row_id: str
    """The id of a row, which may be deleted; or a text that sorts between ids."""
    is_end: bool = False
    """True: the page has the rows before `row_id`. False: the page has the rows after `row_id`."""


START = Place("")
"""The place before the first row. The empty text sorts first."""


def encode(last: str) -> str:
    """Return the cursor of the page that begins after the id `last`: the id in URL-safe base64, without padding."""
    return base64.urlsafe_b64encode(last.encode()).decode().rstrip("=")


def decode(cursor: str | None) -> str:
    """Return the text in a cursor; None or an empty cursor gives the empty text.

    Raise ValueError if the cursor is not URL-safe base64 of UTF-8 text.
    """
    if not cursor:
        return ""
    try:
        return base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise ValueError("is not a cursor of this list: send a cursor of an answer, unchanged") from None


def encode_previous(first: str) -> str:
    """Return the cursor of the page whose rows sort before the text `first`, such as the id of a page's first row."""
    return encode(BEFORE + first)


def end_after(row_id: str) -> Place:
    """Return the place directly after the row `row_id`. A page that ends there has this row as its last row.

    If the row is deleted, the page ends with the row before it.
    """
    return Place(row_id + _DIRECTLY_AFTER, is_end=True)


def place(cursor: str | None) -> Place:
    """Return the place that a `next_cursor` or a `previous_cursor` stands for; START without a cursor."""
    text = decode(cursor)
    return Place(text.removeprefix(BEFORE), is_end=True) if text.startswith(BEFORE) else Place(text)


Position = TypeVar("Position")
"""The type of positions in a list."""


def neighbours(
    *,
    nearest: Position,
    further: Position | None,
    is_first: bool,
    is_backwards: bool,
    next_of: Callable[[Position], str],
    previous_of: Callable[[Position], str],
) -> tuple[str | None, str | None]:
    """Return `next_cursor` and `previous_cursor` of a page of a long list (BoundedListPage).

    One request examines only some rows of the list. A page has the rows after the request's cursor, or with `is_backwards` the
    rows before the cursor.

    * `nearest` is the position of the page's row that is nearest to the cursor. For an empty page, `nearest` is the position
      directly after the cursor, or with `is_backwards` directly before the cursor.
    * `further` is the position at which a search in the same direction continues. None: no row follows in this direction.
    * `is_first`: the request has no cursor, so no page is before this one.
    * `next_of` returns the cursor of the page that begins after a position.
    * `previous_of` returns the cursor of the page that ends before a position.
    """
    back = None if is_first else nearest
    following, preceding = (back, further) if is_backwards else (further, back)
    return (
        None if following is None else next_of(following),
        None if preceding is None else previous_of(preceding),
    )


def checked(cursor: str) -> str:
    """Return the cursor unchanged; raise ValueError if it cannot be decoded, or has NUL, which Postgres refuses.

    pydantic calls this function for the parameter `cursor`.
    """
    if "\0" in decode(cursor):
        raise ValueError("is not a cursor of this list: send a cursor of an answer, unchanged")
    return cursor
