"""Choose the headers of a response that an attempt keeps, for the customer who looks for the cause of a failure. Pure.

Failed attempts keep headers, and accepted attempts too if the settings say so. Only headers of a fixed list are kept: no
cookies, no authentication, no unknown headers. A receiver may repeat the request in a value, so a value that looks like a
credential is replaced.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from delivery.model import Attempt

ALLOWED = frozenset({
    b"allow", b"cf-ray", b"content-length", b"content-type", b"date", b"ratelimit-limit", b"ratelimit-remaining",
    b"ratelimit-reset", b"request-id", b"retry-after", b"server", b"via", b"x-amzn-requestid", b"x-correlation-id",
    b"x-ratelimit-limit", b"x-ratelimit-remaining", b"x-ratelimit-reset", b"x-request-id",
})  # fmt: skip
"""Names of the kept headers, in lower case. None of them carries a credential by its definition."""
MAX_VALUE_BYTES = 128
"""Most bytes of one value. The rest is cut off."""
MAX_BYTES = 1024
"""Most characters of all names and values of one attempt. The first header with which the sum exceeds MAX_BYTES, and all later
headers, are left out."""
REDACTED = "***"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_CREDENTIAL = re.compile(
    rb"basic\s|bearer\s|digest\s|negotiate\s|whsec_|whsk_|fk_|eyj[\w-]{8}|"
    rb"(?:passw|secret|token|key|signature)\w{0,16}\s{0,4}[=:]|://[^/\s]*@"
)
"""Matches a value that shows a credential: a scheme of HTTP authentication, a key of this platform, a JWT, a named secret, or
a URL with a password. The value must be in lower case. Repetitions are bounded, so that no value takes quadratic time."""


class AttemptWithResponse(Attempt):
    """An attempt with headers of its response and the beginning of the response's body, without credentials.

    Headers and body are attributes of the object, not elements of the tuple. The retry lane stores the elements only, because
    an older version of the platform refuses to read a longer tuple.
    """

    headers: Mapping[str, str] = MappingProxyType({})
    body: str = ""


def attach(attempt: Attempt, headers: Mapping[str, str], body: str = "") -> Attempt:
    """Return the attempt with headers and body of its response. If both are empty, return the attempt itself."""
    if not headers and not body:
        return attempt
    made = AttemptWithResponse(*attempt)
    made.headers, made.body = headers, body
    return made


def of(attempt: Attempt) -> dict[str, str]:
    """Return the headers that `attach` gave to an attempt; an empty dictionary if the attempt has none.

    An attempt of an earlier lane or lease has none, because the retry lane stores attempts without headers.
    """
    return dict(getattr(attempt, "headers", ()))


def body_of(attempt: Attempt) -> str:
    """Return the body that `attach` gave to an attempt; an empty text if the attempt has none.

    An attempt of an earlier lane or lease has none, because the retry lane stores attempts without this body.
    """
    return getattr(attempt, "body", "")


def kept(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the headers of a response that are in ALLOWED, by name in lower case, in their order, up to MAX_BYTES.

    If a header is repeated, the first counts. A value that looks like a credential becomes `***`. Any other value is cut to
    MAX_VALUE_BYTES.
    """
    found: dict[str, str] = {}
    size = 0
    for raw_name, raw_value in headers:
        lower = raw_name.lower()
        if lower not in ALLOWED or (name := lower.decode("ascii")) in found:
            continue
        # The whole value is searched: a cut could hide the end of a credential's form.
        value = REDACTED if _CREDENTIAL.search(raw_value.lower()) else _text(raw_value)
        size += len(lower) + len(value)
        if size > MAX_BYTES:
            break
        found[name] = value
    return found


def _text(value: bytes) -> str:
    """Return the beginning of a value as text, with control characters replaced, because Postgres stores no NUL in JSON."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", value[:MAX_VALUE_BYTES].strip().decode("latin-1"))
