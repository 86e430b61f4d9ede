"""Encode and decode the cursors of lists as opaque text. Pure.

Runs in the API. A cursor holds the id of the last row of a page, so a list can be paged while rows are added and deleted.
"""

from __future__ import annotations

import base64
import binascii


def encode(last: str) -> str:
    """Return the cursor after the row with the id `last`."""
    return base64.urlsafe_b64encode(last.encode()).decode().rstrip("=")


def decode(cursor: str | None) -> str:
    """Return the id of the row before the page; without a cursor the empty text, which sorts first."""
    if not cursor:
        return ""
    try:
        return base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise ValueError("is not a cursor of this list: send `next_cursor` of an answer, unchanged") from None


def checked(cursor: str) -> str:
    """Return the cursor unchanged; raise ValueError if it is not valid. Validates the query parameter `cursor`."""
    if "\0" in decode(cursor):
        raise ValueError("is not a cursor of this list: send `next_cursor` of an answer, unchanged")
    return cursor
