"""Parse durations and moments that a person types, such as `24h` or `2026-05-01T10:00Z`, and show moments as text. Pure.

Runs in `fanout` commands.
"""

from __future__ import annotations

import datetime as dt
import re

from delivery import errors

LAST_MS = 253_402_300_799_000
"""Last second of the year 9999, in milliseconds since the epoch."""
_DURATION = re.compile(r"(?P<number>[0-9]{1,7})(?P<unit>[smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def duration(text: str) -> dt.timedelta | None:
    """Return the duration of a text such as `24h`; None if the text is not a duration."""
    parts = _DURATION.fullmatch(text)
    return dt.timedelta(**{_UNITS[parts["unit"]]: int(parts["number"])}) if parts else None


def seconds(option: str, text: str) -> float:
    """Return a duration such as `24h` in seconds; raise SettingsError, which names the option, for another text."""
    read = duration(text)
    if read is None:
        raise errors.SettingsError(
            f"{option} must be a whole number of at most 7 digits with s, m, h or d, such as 24h; {text!r} is not, so nothing "
            "was done"
        )
    return read.total_seconds()


def moment_ms(option: str, text: str, *, now_ms: int, is_ahead: bool = False) -> int:
    """Return a moment in milliseconds since the epoch.

    `text` is a duration, such as `24h`, or an ISO 8601 date or time, in UTC unless it names a zone. A duration is counted
    back from `now_ms`, or ahead with `is_ahead`. Raise SettingsError, which names the option, for another text, and for a
    moment outside of the years 1970 to 9999.
    """
    span = duration(text)
    try:
        if span is None:
            moment = dt.datetime.fromisoformat(text)
            moment_ms = round((moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)).timestamp() * 1000)
        else:
            moment_ms = now_ms + round(span.total_seconds() * 1000) * (1 if is_ahead else -1)
    except ValueError:
        distance = "from now" if is_ahead else "ago"
        raise errors.SettingsError(
            f"{option} must be a time {distance}, such as 24h, or a moment, such as 2026-05-01T10:00:00Z; {text!r} is neither, "
            "so nothing was done"
        ) from None
    if not 0 <= moment_ms <= LAST_MS:
        raise errors.SettingsError(f"{option} must be a moment of the years 1970 to 9999; {text!r} is not, so nothing was done")
    return moment_ms


def shown(epoch_ms: int) -> str:
    """Return a moment as text for a person: date and time in UTC, to the second.

    A producer may set any time of a record. A moment outside of the years 1970 to 9999 is shown as `… ms since 1970`.
    """
    if not 0 <= epoch_ms <= LAST_MS:
        return f"{epoch_ms} ms since 1970"
    return dt.datetime.fromtimestamp(epoch_ms / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
