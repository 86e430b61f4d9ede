"""Choose the beginning of a response's body that an attempt keeps, for the customer who looks for the cause of a failure. Pure.

A receiver may repeat the request in its response. So secrets of the endpoint and texts that look like credentials are replaced.
The code runs on the event loop that all customers of a worker share: `python -m tests.benchmarks.response_bodies` measures it.
"""

from __future__ import annotations

import bisect
import functools
import html
import itertools
import json
import re
from collections.abc import Iterable, Sequence
from urllib import parse

from delivery.model import KEPT_RESPONSE_BYTES
from delivery.webhooks.policy import credentials

MAX_BYTES = KEPT_RESPONSE_BYTES
"""Most bytes of a body that are kept, as many as in a dead letter. Default and maximum of `delivery.logged_response_bytes`."""
MIN_SECRET_CHARS = 4
"""Shortest text that is replaced as a secret of the endpoint. Replacing shorter texts would leave nothing to read."""
MAX_PLACES = 256
"""Most findings of secrets that are replaced one by one. A finding is one form of one secret at one place. If a body has more
findings, the whole text becomes `***`, because each finding takes about 2 µs on the event loop."""
REDACTED = "***"
_HEAD_CHARS = 64
"""Number of a secret's first characters that are looked for. The rest may be behind the bytes that are searched."""
_AHEAD_BYTES = 4 * _HEAD_CHARS
"""Number of bytes behind the kept bytes that are searched too, so that a secret that begins in the kept bytes is found."""
_ESCAPED_HEAD_CHARS = 32
"""Number of a secret's first characters that are looked for after the escapes of a text were decoded. An escape has up to 8
bytes, so these characters are within _AHEAD_BYTES."""
_ESCAPES = {
    spelling: chr(code).lower()
    for code in range(0x20, 0x7F)
    for spelling in (
        f"\\u{code:04x}",
        *(f"&#{zeros}{code};" for zeros in ("", "0")),
        *(f"&#x{zeros}{code:x};" for zeros in ("", "0", "00")),
    )
}
"""Escapes of printable ASCII characters in JSON and HTML, in lower case, each with its character in lower case."""
_JSON_ESCAPE = r"\\u00[2-7][0-9a-f]"
_HTML_ESCAPE = r"&#(?:0?[0-9]{2,3}|x0{0,2}[2-7][0-9a-f]);"
_ESCAPE_PATTERNS = {
    (True, False): re.compile(f"({_JSON_ESCAPE})"),
    (False, True): re.compile(f"({_HTML_ESCAPE})"),
    (True, True): re.compile(f"({_JSON_ESCAPE}|{_HTML_ESCAPE})"),  # takes 20 times as long, because it begins with no literal
}
"""Patterns that find _ESCAPES in a text, by two booleans: the text may have escapes of JSON, and it may have escapes of
HTML."""
_CONTROLS = {*range(32), 127} - {*b"\t\n\r"}
_CONTROL_TO_INVALID = bytes(0xFF if byte in _CONTROLS else byte for byte in range(256))
"""Replaces ASCII control characters, except tab, LF and CR, by a byte that is never UTF-8, so that decoding replaces them."""
_C1 = re.compile(r"[\x80-\x9f]")
"""The control characters of Unicode that are not ASCII."""


def kept(body: bytes, headers: Iterable[tuple[bytes, bytes]], secrets: Iterable[str], max_bytes: int) -> str:
    """Return the beginning of a body as text of at most `max_bytes`, with `***` in place of credentials.

    Empty: there is no body, `max_bytes` is 0, or the body has a content encoding, although requests ask for no encoding.
    `secrets` are the secrets of the endpoint and its request (`sending.request.secrets`), and the endpoint's access token.
    Secrets of MIN_SECRET_CHARS or more are replaced, with ASCII letters in either case, and as they are written in JSON, URLs
    and HTML. If secrets are found more than MAX_PLACES times, in all their forms together, the text is `***`. Invalid UTF-8,
    and control characters except tab, LF and CR, become U+FFFD.
    """
    if not body or not max_bytes or _is_encoded(headers):
        return ""
    read = body[: max_bytes + _AHEAD_BYTES]
    # A place in `lower` is the same place in the text: bytes.lower() changes ASCII letters only.
    lower = read.lower().decode(errors="replace")
    places = _known_places(lower, secrets, max_bytes)
    if len(places) > MAX_PLACES:
        return REDACTED[:max_bytes]
    places += credentials.places(lower)
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


def _known_places(lower: str, secrets: Iterable[str], max_bytes: int) -> list[tuple[int, int]]:
    r"""Return the places of `secrets` in `lower`, a text in lower case, each as start and end.

    A secret is looked for as it is, in JSON, in a URL and in HTML (`_forms`). If the text has escapes such as `\u002b` or
    `&#43;`, each secret is also looked for in the text without them: libraries differ in the characters that they escape.
    Secrets shorter than MIN_SECRET_CHARS are left out. Only the first `max_bytes` + _AHEAD_BYTES characters of each secret
    count. If a text has more than MAX_PLACES places, more than MAX_PLACES of them are returned, but perhaps not all.
    """
    longest = max_bytes + _AHEAD_BYTES
    forms = [form for secret in secrets if len(secret) >= MIN_SECRET_CHARS for form in _forms(secret[:longest])]
    if not forms:
        return []
    places = _form_places(lower, forms, _HEAD_CHARS)
    has_escapes = ("\\u00" in lower, "&#" in lower)
    if any(has_escapes):
        parts = _ESCAPE_PATTERNS[has_escapes].split(lower)
        plain = [_ESCAPES.get(part, part) for part in parts]
        if found := _form_places("".join(plain), forms, _ESCAPED_HEAD_CHARS):
            starts, plain_starts = _starts(parts), _starts(plain)
            places += [(_moved(start, plain_starts, starts), _moved(end, plain_starts, starts)) for start, end in found]
    return places


def _form_places(text: str, forms: Iterable[str], head_chars: int) -> list[tuple[int, int]]:
    """Return the places of `forms` in a text, each as start and end, at most MAX_PLACES + 1.

    A place at which several forms are found is returned for each of them.

    A place begins with the first `head_chars` characters of a form, and ends where the text differs from the form.
    """
    places: list[tuple[int, int]] = []
    for form in forms:
        head = form[:head_chars]
        start = text.find(head)
        while start >= 0 and len(places) <= MAX_PLACES:
            end = start + _common_chars(text[start : start + len(form)], form)
            places.append((start, end))
            start = text.find(head, end)
    return places


def _starts(parts: Iterable[str]) -> list[int]:
    """Return the place at which each of `parts` begins in the joined text, and behind them the length of that text."""
    return list(itertools.accumulate(map(len, parts), initial=0))


def _moved(position: int, starts: Sequence[int], new_starts: Sequence[int]) -> int:
    """Convert a position in one text to a position in another text, which has the same parts in other spellings.

    The parts of the first text begin at `starts`, the parts of the other text at `new_starts`.
    """
    part = bisect.bisect_right(starts, position) - 1
    return new_starts[part] + position - starts[part]


@functools.lru_cache(maxsize=1024)
def _forms(secret: str) -> tuple[str, ...]:
    """Return a secret as receivers may write it, in lower case: as it is, in JSON, in a URL, in HTML."""
    in_json = {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    in_json.add(secret.replace("\\", "\\\\"))  # where the quotes are `\u0022`
    in_json |= {form.replace("/", "\\/") for form in in_json}
    in_json |= {form.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026") for form in in_json}
    in_html = html.escape(secret)
    others = {in_html, in_html.replace("&quot;", "&#34;").replace("&#x27;", "&#39;"), html.escape(secret, quote=False)}
    others.add(in_html.replace("&#x27;", "'"))  # as Handlebars writes it, without its other escapes
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
