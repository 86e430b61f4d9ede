"""Check the time of an event, and write the time of a record in the same form, RFC 3339.

Runs wherever events are parsed. Pure.
"""

from __future__ import annotations

import calendar
import datetime as dt
import functools
import re
from typing import Any

from delivery import errors

_RFC_3339 = re.compile(
    r"\d{4}-(?:02-(?:0[1-9]|[12]\d)|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01]))"
    r"[Tt](?:[01]\d|2[0-3]):[0-5]\d:(?:[0-5]\d|60)(?:\.\d{1,18})?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)",
    re.ASCII,
)
"""RFC 3339, section 5.6, with the `T` that CloudEvents requires. February has 29 days here, whatever the year.
A second has at most 18 digits behind the point."""


def read(value: Any, *, passes_invalid: bool, path: tuple[str, ...] = ("time",)) -> str | None:
    """Return the time of an event if it is an RFC 3339 time. Return None if it is missing or empty.

    For any other value, of any type, return None if `passes_invalid` is true, and raise EventRejected if it is false. The
    error names the field by its `path`.
    """
    if value is None or value == "":
        return None
    if isinstance(value, str) and _RFC_3339.fullmatch(value) and (value[5:10] != "02-29" or calendar.isleap(int(value[:4]))):
        return value
    if passes_invalid:
        return None
    problem = f"{'.'.join(path)} is not an RFC 3339 time: write one such as 2026-05-01T10:00:00Z"
    raise errors.EventRejected("bad_attribute", problem)


def of_record(epoch_ms: int) -> str:
    """Return the time of a record, in milliseconds since the epoch, as RFC 3339 text in UTC.

    Raise EventRejected if the time is outside the years 1 to 9999.
    """
    seconds, milliseconds = divmod(epoch_ms, 1000)
    return f"{_second(seconds)}.{milliseconds:03d}Z"


@functools.lru_cache(maxsize=1024)
def _second(epoch_s: int) -> str:
    """Return seconds since the epoch as RFC 3339 text without a zone, or raise EventRejected as `of_record` does.

    Cached, because formatting takes as long as parsing an event.
    """
    try:
        return dt.datetime.fromtimestamp(epoch_s, dt.UTC).isoformat(timespec="seconds").removesuffix("+00:00")
    except (ValueError, OverflowError, OSError) as exc:
        # Producers may set any record time, for example in microseconds, which is in the year 55,000.
        raise errors.EventRejected(
            "bad_attribute",
            "the event has no valid time, and the record's time is outside the years 1 to 9999: add a `time` to the event, or "
            "set the record's time in milliseconds",
        ) from exc
