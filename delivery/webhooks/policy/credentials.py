"""Find texts that look like credentials: named secrets, schemes of HTTP authentication, URLs with a password, keys, JWTs. Pure.

A response may repeat the headers of the request, in any format: as HTTP, JSON, a form, XML, HTML, or the dump of a debugger.
"""

from __future__ import annotations

import re

_SCHEMES = ("basic", "bearer", "digest", "negotiate")
_SCHEME = rf"(?:{'|'.join(_SCHEMES)})"
_MARK = r"&(?:quot|apos|\#0?3[49]|\#x2[27]);"
"""A quotation mark in HTML."""
_NAME_END = rf"""(?:[\\"'\]]{{0,4}}+|{_MARK})"""
"""The text between a name and the sign that follows it: quotation marks, also those of JSON within JSON, or a bracket."""
_ASSIGNS = r"\s{0,4}+(?:=>|[=:]{1,2}+)\s{0,4}+"
_QUOTED = "|".join(
    (
        r'b?"[^"\\]*+(?:\\.[^"\\]*+)*"?',
        r'\\"[^"\\]*+(?:(?:\\\\(?:\\.|[^"\\])|\\[^"\\])[^"\\]*+)*(?:\\?")?',  # JSON within JSON
        r'\\{2,8}+"[^"]*+"?',  # JSON within JSON within JSON
        rf"{_MARK}[^&<]*+(?:(?!{_MARK})&[^&<]*+)*(?:{_MARK})?",
    )
)
_SINGLE_QUOTED = r"b?'[^'\\]*+(?:\\.[^'\\]*+)*'?|\\{1,8}+'[^']*+'?"
_LIST = rf"""\[\s{{0,64}}+(?:(?:(?:{_QUOTED}|{_SINGLE_QUOTED})\s{{0,64}}+,?\s{{0,64}}+)+|[^\]\r\n"']*+)\]?"""
_VALUE = rf"""{_LIST}|(?:{_SCHEME}\s{{1,4}}+)?(?:{_QUOTED}|{_SINGLE_QUOTED}|[^\s,;&}}<"']++)"""
_LINE = rf"""{_LIST}|{_QUOTED}|[^\r\n"]++(?:(?:(?<==)"[^"\r\n]*+"?|(?<=\\)")[^\r\n"]*+)*"""
"""The value of a header with credentials. A value without quotation marks goes to the end of the line, because it may have
blanks and semicolons."""


def _named(name: str, rest: str, value: str) -> re.Pattern[str]:
    """Compile a pattern that finds a secret by the end of the secret's name: the text `name`, then the pattern `rest`.

    The compiled pattern finds four forms. `value` is the pattern of the secret in forms 1 and 2:

    1. `"token": "…"`, `token=…`, `token => …`, and `{"key": "…", "value": "…"}`.
    2. `"name": "token", "value": "…"`.
    3. `["token", "…"]`.
    4. `<token>…</token>`.
    """
    follows = rf"\s{{0,4}}+,?\s{{0,4}}+{_NAME_END}values?{_NAME_END}{_ASSIGNS}"
    # In a list, and not the name of a field: {"error": "invalid_token", "code": 1}.
    item = rf"""({_QUOTED}|{_SINGLE_QUOTED})(?:(?<=["';])(?=\s{{0,4}}[,\])])|\Z)"""
    of_pair = rf"""(?:[\\"']{{1,4}}+|{_MARK})\s{{0,4}}+,\s{{0,4}}+{item}"""
    of_element = r"""(?:\s{1,4}+[\w:.-]{1,32}+=["'][^<>]{0,128}+|["'])?>([^<]++|<!\[cdata\[[^<]++)(?=</)"""
    return re.compile(
        rf"{name}{rest}(?:{_NAME_END}(?:{_ASSIGNS}({value})(?:{follows}({value}))?|{follows}({value}))|{of_pair}|{of_element})",
        re.ASCII | re.DOTALL,
    )


_PATTERNS = (
    {"cookie": _named("cookie", r"s?", _LINE), "authori": _named("authori", r"[sz]ation", _LINE)}
    | {name: _named(name, r"[\w-]{0,16}+", _VALUE) for name in ("passw", "secret", "token", "key", "signature", "session")}
    | {scheme: re.compile(rf"{scheme}(?<!\w{scheme})\s{{1,4}}+([^\s,;<>\"']++)", re.ASCII) for scheme in _SCHEMES}
    | {prefix: re.compile(rf"({prefix}(?<!\w{prefix})[\w+/=-]++)", re.ASCII) for prefix in ("whsec_", "whsk_", "fk_")}
    | {prefix: re.compile(rf"({prefix}(?<!\w{prefix})[a-z0-9+/=]{{16,}}+)", re.ASCII) for prefix in ("v1,", "v1a,")}
    | {
        "eyj": re.compile(r"(eyj(?<!\weyj)[\w-]{8,}+(?:\.[\w-]*+){0,4}+)", re.ASCII),  # a JWT
        "://": re.compile(r"://([^/\s@\"'<>]{1,256}+)(?=@)", re.ASCII),
    }
)
"""Patterns by the word with which each match begins, in lower case. Few bodies have such a word, and looking for it is cheap.

The groups of a match are the credentials. Repetitions are possessive or bounded, or no part after them can fail, so that no
body takes quadratic time. A repetition of a group is possessive only if nothing in the group backtracks: otherwise Python
before 3.11.5 continues at a wrong place (gh-106052)."""
MAX_WORDS = 32
"""Most occurrences of words of `_PATTERNS` in a text. A text with more occurrences counts as one credential. An ordinary error
page of 1 KiB has fewer than ten. Each word takes up to 2 µs."""


def places(lower: str) -> list[tuple[int, int]]:
    """Return the places of credentials in a text in lower case, each as start and end; they may overlap.

    A text with more than MAX_WORDS occurrences of words of `_PATTERNS` is one place as a whole.
    """
    found: list[tuple[int, int]] = []
    left = MAX_WORDS
    for word, pattern in _PATTERNS.items():
        at = lower.find(word) if word != "://" or "@" in lower else -1
        while at >= 0:
            left -= 1
            if left < 0:
                return [(0, len(lower))]
            match = pattern.match(lower, at)
            if match is not None:
                found += [match.span(group) for group in range(1, (match.lastindex or 0) + 1) if match[group]]
            at = lower.find(word, at + len(word) if match is None else match.end())
    return found
