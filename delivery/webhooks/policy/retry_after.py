"""Read the wait that a response asks for by `Retry-After`. Pure."""

from __future__ import annotations

import calendar
import email.utils
import re
from collections.abc import Iterable

MAX_RETRY_AFTER_S = 86_400.0
"""Seconds. A longer `Retry-After` counts as this, so that an endpoint cannot defer its deliveries for years."""
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?(e[+-]?[0-9]+)?", re.IGNORECASE)
"""A number of seconds. RFC 9110 has whole seconds only, but some servers write 1.5. If such a value were ignored, the
next attempt would come too early."""


def retry_after_s(value: str, now: float, cap_s: float = MAX_RETRY_AFTER_S) -> float | None:
    """Return the seconds from `now` that a `Retry-After` header asks for, from 0 to `cap_s`. None: the value is unreadable.

    RFC 9110, section 10.2.3: seconds, or a date in any of the three forms of section 5.6.7. A date in the past, and a negative
    number, are 0. `now` is in seconds since the epoch.
    """
    value = value.strip()
    if _NUMBER.fullmatch(value):
        wait_s = float(value)
    else:
        try:
            moment = email.utils.parsedate_tz(value)
            if moment is None:
                return None
            wait_s = calendar.timegm(moment[:6]) - (moment[9] or 0) - now
        except (ValueError, OverflowError):  # a year beyond 9999
            return None
    return min(max(wait_s, 0.0), cap_s)


def longest_retry_after_s(headers: Iterable[tuple[bytes, bytes]], now: float, cap_s: float = MAX_RETRY_AFTER_S) -> float | None:
    """Return the seconds that a response asks for: the longest of its `Retry-After` headers, at most `cap_s`.

    None: the response has no readable `Retry-After`.
    """
    waits = [retry_after_s(value.decode("latin-1"), now, cap_s) for name, value in headers if name.lower() == b"retry-after"]
    return max((wait_s for wait_s in waits if wait_s is not None), default=None)
