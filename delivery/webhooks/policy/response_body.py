"""Choose the beginning of a response's body that an attempt keeps, for the customer who looks for the cause of a failure. Pure.

A receiver may repeat the request in its response. So secrets of the endpoint and texts that look like credentials are replaced.
The code runs on the event loop that all customers of a worker share: `python -m tests.benchmarks.response_bodies` measures it.
"""

from __future__ import annotations

import functools
import html
import json
import re
from collections.abc import Iterable, Iterator
from urllib import parse

from delivery.model import KEPT_RESPONSE_BYTES
from delivery.webhooks.policy import credentials

MAX_BYTES = KEPT_RESPONSE_BYTES
"""Most bytes of a body that are kept, as many as in a dead letter. Default and maximum of `delivery.logged_response_bytes`."""
MIN_SECRET_CHARS = 4
"""Shortest text that is replaced as a secret of the endpoint. Replacing shorter texts would leave nothing to read."""
REDACTED = "***"
_HEAD_CHARS = 64
"""Number of a secret's first characters that are looked for. The rest may be behind the bytes that are searched."""
_AHEAD_BYTES = 4 * _HEAD_CHARS
"""Number of bytes behind the kept bytes that are searched too, so that a secret that begins in the kept bytes is found."""
_CONTROLS = {*range(32), 127} - {*b"\t\n\r"}
_CONTROL_TO_INVALID = bytes(0xFF if byte in _CONTROLS else byte for byte in range(256))
"""Replaces ASCII control characters, except tab, LF and CR, by a byte that is never UTF-8, so that decoding replaces them."""
_C1 = re.compile(r"[\x80-\x9f]")
"""The control characters of Unicode that are not ASCII."""


def kept(body: bytes, headers: Iterable[tuple[bytes, bytes]], secrets: Iterable[str], max_bytes: int) -> str:
    """Return the beginning of a body as text of at most `max_bytes`, with `***` in place of credentials.

    Empty: there is no body, `max_bytes` is 0, or the body has a content encoding, although requests ask for no encoding.
    `secrets` are the credentials of the endpoint, its access token, and the values of its own headers. Secrets of
    MIN_SECRET_CHARS or more are replaced, with ASCII letters in either case, and as they are written in JSON, URLs and HTML.
    Invalid UTF-8, and control characters except tab, LF and CR, become U+FFFD.
    """
    if not body or not max_bytes or _is_encoded(headers):
        return ""
    read = body[: max_bytes + _AHEAD_BYTES]
    # A place in `lower` is the same place in the text: bytes.lower() changes ASCII letters only.
    lower = read.lower().decode(errors="replace")
    places = [*_known_places(lower, secrets, max_bytes), *credentials.places(lower)]
    text = body[:max_bytes].translate(_CONTROL_TO_INVALID).decode(errors="replace")
    if places:
        text = _redacted(text, places)
    if text.isascii():
        return text[:max_bytes]
    text = _C1.sub("\N{REPLACEMENT CHARACTER}", text)
    return text.encode()[:max_bytes].decode(errors="ignore")


def _is_encoded(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(
        name.lower() == b"content-encoding" and value.strip().lower() not in {b"", b"identity"} for name, value in headers
    )


def _known_places(lower: str, secrets: Iterable[str], max_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the places of `secrets` in `lower`, a text in lower case, each as start and end.

    A secret is looked for as it is, in JSON, in a URL and in HTML (`_forms`). A place begins with the first _HEAD_CHARS
    characters of such a form, and ends where the text differs from the form. Secrets shorter than MIN_SECRET_CHARS are left
    out. Of each secret, the first `max_bytes` + _AHEAD_BYTES characters count.
    """
    for secret in secrets:
        if len(secret) < MIN_SECRET_CHARS:
            continue
        for form in _forms(secret[: max_bytes + _AHEAD_BYTES]):
            head = form[:_HEAD_CHARS]
            start = lower.find(head)
            while start >= 0:
                end = start + _common_chars(lower[start : start + len(form)], form)
                yield start, end
                start = lower.find(head, end)


@functools.lru_cache(maxsize=1024)
def _forms(secret: str) -> tuple[str, ...]:
    """Return a secret as receivers may write it, in lower case: as it is, in JSON, in a URL, in HTML."""
    in_json = {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    in_json |= {form.replace("/", "\\/") for form in in_json}
    in_json |= {form.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026") for form in in_json}
    in_html = html.escape(secret)
    others = {in_html, in_html.replace("&quot;", "&#34;").replace("&#x27;", "&#39;"), html.escape(secret, quote=False)}
    others |= {parse.quote(secret, safe=""), parse.quote(secret), parse.quote_plus(secret)}
    return tuple({form.encode().lower().decode() for form in in_json | others})


def _common_chars(text: str, other: str) -> int:
    """Return the number of characters with which both texts begin."""
    if other.startswith(text):
        return len(text)
    low, high = 0, len(text)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if other.startswith(text[:middle]) else (low, middle)
    return low


def _redacted(text: str, places: Iterable[tuple[int, int]]) -> str:
    """Return a text with each of `places` replaced by REDACTED. Places that overlap or adjoin are replaced together.

    Places behind the end of the text are left out.
    """
    parts = []
    until = -1
    for start, end in sorted(places):
        if until < start < len(text):
            parts += [text[max(until, 0) : start], REDACTED]
        until = max(until, end)
    return "".join(parts) + text[max(until, 0) :]
