"""Choose the beginning of a response's body that a failed attempt keeps, for the customer who looks for the cause. Pure.

A receiver may repeat what the request sent. So secrets of the endpoint and texts that look like credentials are replaced.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

MAX_BYTES = 1024
"""Most bytes of a body that are kept, and the default of `delivery.logged_response_bytes`. A dead letter keeps as many."""
MIN_SECRET_CHARS = 4
"""Shortest text that is replaced as a secret of the endpoint. Replacing shorter texts would leave nothing to read."""
REDACTED = "***"
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_HINTS = ("authori", "basic", "bearer", "cookie", "digest", "eyj", "fk_", "key", "negotiate", "passw", "secret", "session",
          "signature", "token", "v1,", "v1a,", "whs", "://")  # fmt: skip
"""Every match of _CREDENTIAL has one of these, in lower case. Few bodies do. Looking for them takes a tenth of the time."""
_CREDENTIAL = re.compile(
    r"""
      (?P<line>(?:set-cookie|cookie|authori[sz]ation)["'\\]{0,2}\s{0,4}[=:]\s{0,4})(?:\\?"[^"]*"?|[^\r\n"]+)
    | (?P<named>(?:passw|secret|token|api.?key|key|signature|session)\w{0,16}["'\\]{0,2}\s{0,4}[=:]\s{0,4})
      (?:\\?"[^"]*"?|'[^']*'?|(?:(?:basic|bearer|digest|negotiate)\s{1,4})?[^\s,;&}<"']+)
    | (?P<scheme>\b(?:basic|bearer|digest|negotiate)\s{1,4})[^\s,;<>"']+
    | (?P<url>://)[^/\s@"'<>]{1,256}(?=@)
    | \b(?:whsec_|whsk_|fk_)[\w+/=-]+
    | \beyj[\w-]{8,}(?:\.[\w-]*){0,4}
    | \bv1a?,[A-Za-z0-9+/=]{16,}
    """,
    re.ASCII | re.IGNORECASE | re.VERBOSE,
)
"""Matches a text that shows a credential: a header with credentials, a named secret, a scheme of HTTP authentication, a URL
with a password, a key of this platform, a JWT, a signature. Repetitions that can fail are bounded, so that no body takes
quadratic time."""


def kept(body: bytes, headers: Iterable[tuple[bytes, bytes]], secrets: Iterable[str], max_bytes: int) -> str:
    """Return the beginning of a body as text of at most `max_bytes`, with `***` in place of credentials.

    Empty: there is no body, or none is to be kept. `secrets` are secret texts that the request sent, which are replaced too. A
    body with a content encoding is not kept, because requests ask for none.
    """
    if not body or not max_bytes or _is_encoded(headers):
        return ""
    known = sorted((secret for secret in secrets if len(secret) >= MIN_SECRET_CHARS), key=len, reverse=True)
    # A secret that the end of the text would cut in half is replaced too.
    text = body[: max_bytes + (len(known[0]) if known else 0)].decode(errors="replace")
    for secret in known:
        text = text.replace(secret, REDACTED)
    lower = text.lower()
    if any(hint in lower for hint in _HINTS):
        text = _CREDENTIAL.sub(_redacted, text)
    text = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)
    return text.encode()[:max_bytes].decode(errors="ignore")


def _is_encoded(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(
        name.lower() == b"content-encoding" and value.strip().lower() not in {b"", b"identity"} for name, value in headers
    )


def _redacted(found: re.Match[str]) -> str:
    """Return the name or the scheme in front of a credential, and REDACTED."""
    return (found[found.lastgroup] if found.lastgroup else "") + REDACTED
