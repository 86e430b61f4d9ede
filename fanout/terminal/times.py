"""Parse durations and moments that a person types, such as `24h` or `2026-05-01T10:00Z`. Pure.

Runs in `fanout` commands.
"""

from __future__ import annotations

import datetime as dt
import re

from delivery import errors

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
        raise errors.SettingsError(f"{option} must be a number with s, m, h or d, such as 24h; {text!r} is not")
    return read.total_seconds()


def moment_ms(option: str, text: str, *, now_ms: int) -> int:
    """Return a moment in milliseconds since the epoch.

    `text` is a duration before `now_ms`, such as `24h`, or an ISO 8601 date or time, in UTC unless it names a zone. Raise
    SettingsError, which names the option, for another text.
    """
    ago = duration(text)
    if ago is not None:
        return now_ms - round(ago.total_seconds() * 1000)
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        raise errors.SettingsError(
            f"{option} must be a time ago, such as 24h, or a moment, such as 2026-05-01T10:00:00Z; {text!r} is neither"
        ) from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)).timestamp() * 1000)


def shown(epoch_ms: int) -> str:
    """Return a moment as text for a person: date and time in UTC, to the second."""
    return dt.datetime.fromtimestamp(epoch_ms / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
