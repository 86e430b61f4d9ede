"""Ask a receiver whether it wants deliveries, and read what it says: HTTP 1.1 Web Hooks for Event Delivery, section 4 (CNCF).

Runs in the API, in the command, and where the registry is read. Must not import pyspark or psycopg. Pure.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from delivery import errors

REQUEST_ORIGIN, REQUEST_CALLBACK, REQUEST_RATE = "WebHook-Request-Origin", "WebHook-Request-Callback", "WebHook-Request-Rate"
ALLOWED_ORIGIN, ALLOWED_RATE = "WebHook-Allowed-Origin", "WebHook-Allowed-Rate"
ANY = "*"
MAX_PER_MINUTE = 6_000_000
"""The most that `max_per_second` can say. A receiver that permits more permits this."""
_RATE = re.compile("[1-9][0-9]*")
_MINUTE_S = 60


class State(enum.StrEnum):
    """What came of the question. A closed set."""

    PERMITTED = "permitted"
    ASKED = "asked"
    """The receiver may still permit it, by the callback."""
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a receiver is asked."""

    origin: str
    """As whom the platform sends: a DNS name."""
    per_minute: int | None = None
    """How many requests a minute it would like to send; None: it does not say."""
    callback: str | None = field(default=None, repr=False)
    """The URL by which the receiver may answer later. Who knows it may permit."""

    def headers(self) -> Iterator[tuple[str, str]]:
        """Yield what the OPTIONS request says."""
        yield REQUEST_ORIGIN, self.origin
        if self.callback is not None:
            yield REQUEST_CALLBACK, self.callback
        if self.per_minute is not None:
            yield REQUEST_RATE, str(self.per_minute)


class Reply(NamedTuple):
    """What the receiver said."""

    state: State
    per_minute: int | None = None
    """How many requests a minute it permits; None: as many as we like."""
    reason: str = ""
    """For a person, when it is not permitted. Quotes nothing of the answer."""


def wished_per_minute(max_per_second: float | None) -> int | None:
    """Return the rate to ask for, by the endpoint's own bound. At least one: the header has no other numbers."""
    return None if max_per_second is None else max(1, int(max_per_second * _MINUTE_S))


def read(question: Question, headers: Sequence[tuple[bytes, bytes]]) -> Reply:
    """Return what an answer says, whatever its status: the specification relies on none.

    1. No origin is allowed: not yet, if there is a callback; else never.
    2. Another origin is allowed.
    3. The rate makes no sense, or is missing though one was asked for (section 4.2.2: it must be there then).
    4. It is permitted.
    """
    origins, rates = _values(headers, ALLOWED_ORIGIN), _values(headers, ALLOWED_RATE)
    if not origins:
        if question.callback is not None:
            return Reply(State.ASKED, reason="the receiver may permit it by the callback")
        return Reply(State.REFUSED, reason=f"the answer has no {ALLOWED_ORIGIN}")
    if len(origins) > 1 or origins[0].lower() not in {ANY, question.origin.lower()}:
        return Reply(State.REFUSED, reason=f"{ALLOWED_ORIGIN} is neither our origin, {question.origin}, nor {ANY}")
    if not rates:
        if question.per_minute is not None:
            return Reply(State.REFUSED, reason=f"{REQUEST_RATE} was sent, and the answer has no {ALLOWED_RATE}")
        return Reply(State.PERMITTED)
    try:
        return Reply(State.PERMITTED, per_minute(", ".join(rates)))
    except errors.RegistrationError as exc:
        return Reply(State.REFUSED, reason=str(exc))


def per_minute(rate: str) -> int | None:
    """Return what `WebHook-Allowed-Rate` permits, None for any number; raise RegistrationError when it is neither."""
    if rate == ANY:
        return None
    if not _RATE.fullmatch(rate):
        raise errors.RegistrationError(ALLOWED_RATE, f"is neither a whole number above 0, of requests a minute, nor {ANY}")
    # By its length first: Python reads no number of thousands of digits.
    return MAX_PER_MINUTE if len(rate) > len(str(MAX_PER_MINUTE)) else min(int(rate), MAX_PER_MINUTE)


def limit_per_s(own: float | None, permitted_per_minute: int | None) -> float | None:
    """Return how many requests a second may go to an endpoint: the lower of its own bound and its receiver's."""
    permitted = None if permitted_per_minute is None else permitted_per_minute / _MINUTE_S
    return min((bound for bound in (own, permitted) if bound is not None), default=None)


def _values(headers: Sequence[tuple[bytes, bytes]], name: str) -> list[str]:
    """Return what stands in the header of that name, a value for each time that it occurs."""
    wanted = name.lower().encode()
    return [value.decode("latin-1").strip(" \t") for key, value in headers if key.lower() == wanted]
