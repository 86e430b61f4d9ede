"""Where a page of a list ends, as a text that says nothing to others. Pure.

Runs in the API. A cursor names the last row that was shown, so a list can be followed while rows come and go.
"""

from __future__ import annotations

import base64
import binascii


def encode(last: str) -> str:
    """Return the cursor behind a row."""
    return base64.urlsafe_b64encode(last.encode()).decode().rstrip("=")


def decode(cursor: str | None) -> str:
    """Return the row that a cursor is behind; without a cursor a text before all others."""
    if not cursor:
        return ""
    try:
        return base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise ValueError("is no cursor of this list") from None


def checked(cursor: str) -> str:
    """Return the cursor; raise ValueError when it is none."""
    if "\0" in decode(cursor):
        raise ValueError("is no cursor of this list")
    return cursor
