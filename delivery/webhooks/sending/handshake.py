"""Build the request that asks a receiver for permission to send (the handshake), and read the receiver's response.

Source: HTTP 1.1 Web Hooks for Event Delivery, section 4 (CNCF). Pure. Runs in the API and in the commands. `limit_per_s` runs
where the registry is read.
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
"""Value of the reply headers that permits any origin, or any rate."""
MAX_PER_MINUTE = 6_000_000
"""Maximum of a permitted rate in requests a minute: as high as an endpoint's `max_per_second` may be. A higher rate counts as
MAX_PER_MINUTE."""
_ASK_AGAIN = "correct the receiver, then ask again"
_RATE = re.compile("[1-9][0-9]*")
_MINUTE_S = 60


class HandshakeState(enum.StrEnum):
    """The result of a handshake. A closed set."""

    PERMITTED = "permitted"
    ASKED = "asked"
    """The receiver's response neither permits nor refuses. The receiver may still permit deliveries by the callback."""
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The content of a handshake request, which asks a receiver for permission to send deliveries."""

    origin: str
    """The DNS name by which the platform identifies itself."""
    per_minute: int | None = None
    """Requested rate in requests a minute. None: no rate is requested."""
    callback: str | None = field(default=None, repr=False)
    """URL by which the receiver may respond later. The URL is a secret: any client that knows the URL may permit deliveries."""

    def headers(self) -> Iterator[tuple[str, str]]:
        """Yield the headers of the OPTIONS request."""
        yield REQUEST_ORIGIN, self.origin
        if self.callback is not None:
            yield REQUEST_CALLBACK, self.callback
        if self.per_minute is not None:
            yield REQUEST_RATE, str(self.per_minute)


class Reply(NamedTuple):
    """The receiver's response to the request for permission."""

    state: HandshakeState
    per_minute: int | None = None
    """Permitted rate in requests a minute. None: any rate, or deliveries are not permitted."""
    reason: str = ""
    """Reason for a person, if deliveries are not permitted. Quotes nothing of the response."""


def wished_per_minute(max_per_second: float | None) -> int | None:
    """Return the rate to request, in requests a minute, by the endpoint's own limit; None if the endpoint has no limit.

    The rate is rounded down, and is at least 1, as the specification of the header WebHook-Request-Rate demands.
    """
    return None if max_per_second is None else max(1, int(max_per_second * _MINUTE_S))


def parse_reply(question: Question, headers: Sequence[tuple[bytes, bytes]]) -> Reply:
    """Return the receiver's reply, by the headers of its response. The status does not count, as in the specification.

    1. The response names no allowed origin: ASKED if the question has a callback, otherwise REFUSED.
    2. The response allows neither the question's origin nor `*`, or has several headers WebHook-Allowed-Origin: REFUSED.
    3. The rate is invalid, or missing although a rate was requested (section 4.2.2 then requires it): REFUSED.
    4. Otherwise: PERMITTED.
    """
    origins, rates = _values(headers, ALLOWED_ORIGIN), _values(headers, ALLOWED_RATE)
    if not origins:
        if question.callback is not None:
            return Reply(HandshakeState.ASKED, reason="the receiver may permit deliveries by the callback")
        return Reply(HandshakeState.REFUSED, reason=f"the answer has no {ALLOWED_ORIGIN}: {_ASK_AGAIN}")
    if len(origins) > 1:
        return Reply(HandshakeState.REFUSED, reason=f"the answer has several {ALLOWED_ORIGIN}: {_ASK_AGAIN}")
    if origins[0].lower() not in {ANY, question.origin.lower()}:
        reason = f"{ALLOWED_ORIGIN} is neither our origin, {question.origin}, nor {ANY}: {_ASK_AGAIN}"
        return Reply(HandshakeState.REFUSED, reason=reason)
    if not rates:
        if question.per_minute is not None:
            reason = f"{REQUEST_RATE} was sent, and the answer has no {ALLOWED_RATE}: {_ASK_AGAIN}"
            return Reply(HandshakeState.REFUSED, reason=reason)
        return Reply(HandshakeState.PERMITTED)
    try:
        return Reply(HandshakeState.PERMITTED, per_minute(", ".join(rates)))
    except errors.RegistrationError as exc:
        return Reply(HandshakeState.REFUSED, reason=f"{exc}: {_ASK_AGAIN}")


def per_minute(rate: str) -> int | None:
    """Return the number in `WebHook-Allowed-Rate`, at most MAX_PER_MINUTE, or None for `*`: any rate.

    Raise RegistrationError for any other text.
    """
    if rate == ANY:
        return None
    if not _RATE.fullmatch(rate):
        raise errors.RegistrationError(
            ALLOWED_RATE, f"is neither a whole number above 0, of requests a minute, nor {ANY}, so no permission was recorded"
        )
    # Check the length first: Python parses no number of thousands of digits.
    return MAX_PER_MINUTE if len(rate) > len(str(MAX_PER_MINUTE)) else min(int(rate), MAX_PER_MINUTE)


def limit_per_s(own: float | None, permitted_per_minute: int | None) -> float | None:
    """Return the maximum of requests a second to an endpoint: the lower of its own limit and the receiver's.

    Return None if neither limit exists.
    """
    permitted = None if permitted_per_minute is None else permitted_per_minute / _MINUTE_S
    return min((bound for bound in (own, permitted) if bound is not None), default=None)


def _values(headers: Sequence[tuple[bytes, bytes]], name: str) -> list[str]:
    """Return all values of the header of this name."""
    wanted = name.lower().encode()
    return [value.decode("latin-1").strip(" \t") for key, value in headers if key.lower() == wanted]
