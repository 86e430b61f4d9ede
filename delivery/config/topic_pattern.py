"""Check topic patterns against the syntax that Java's and Python's regular expressions share.

Runs anywhere. Spark passes the pattern to Java; the job, the commands, the archive and the API match topics in Python. So a
pattern may contain only constructs that mean the same in both languages (docs/adr/0037). The meaning must be the same only for
the characters of Kafka's topic names: letters, digits, `.`, `_`, `-`.
"""

from __future__ import annotations

import functools
import re

ALLOWED = (
    r"literals, `.`, `\.`, `\d` `\w` `\s` and their capitals, `[…]`, `(…)`, `(?:…)`, `(?=…)`, `(?!…)`, `|`, `^`, `$`, "
    "`*`, `+`, `?` and `{n,m}`, each of these four also with `?`"
)
_GROUPS = ("(?:", "(?=", "(?!")
"""Allowed groups. Look-behind is not allowed: Java and Python limit its length by different rules."""
_CLASSES = frozenset("dDwWsS")
_QUANTIFIER = re.compile(r"[*+?]|\{\d{1,3}(,\d{0,3})?\}")
_IN_CLASS_TWICE = ("&&", "--", "~~", "||")
"""Set operations in a character class: Java's `&&`, and the others that Python reserves for a later version."""


def checked(pattern: str) -> str:
    """Return `pattern` if it is not empty and means the same in Java and Python; else raise ValueError with what is wrong."""
    if not pattern:
        raise ValueError("is empty, so no topic would be read: set a pattern such as `events\\..+`")
    if problem := _problem(pattern):
        raise ValueError(f"{problem}. Java and Python both read the pattern, so it may contain only: {ALLOWED}")
    try:
        re.compile(pattern)
    except re.error as exc:
        raise ValueError(f"is not a regular expression: {exc}; correct it") from None
    return pattern


@functools.lru_cache(maxsize=8)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def matches(pattern: str, topic: str) -> bool:
    """Return True if a checked pattern matches the whole name of a topic."""
    return _compiled(pattern).fullmatch(topic) is not None


def _problem(pattern: str) -> str:
    """Return what is wrong with the first construct that ALLOWED does not list, as a clause without a subject.

    Return an empty text if there is none.
    """
    if not pattern.isascii() or not pattern.isprintable():
        return "has a character that no topic's name has"
    at, can_repeat = 0, False
    while at < len(pattern):
        rest = pattern[at:]
        if quantifier := _QUANTIFIER.match(rest):
            length = quantifier.end()
            if not can_repeat:
                return f"repeats nothing by {quantifier[0]} at character {at + 1}"
            length += rest[length : length + 1] == "?"
            if rest[length : length + 1] and (rest[length] == "+" or _QUANTIFIER.match(rest[length:])):
                return f"has two quantifiers in a row, {rest[: length + 1]}, at character {at + 1}"
            can_repeat = False
        elif rest.startswith("{"):
            return f"has {{ at character {at + 1}, which is no {{n,m}}: write \\{{ for the character"
        else:
            length, problem = _atom(rest)
            if problem:
                return f"{problem} at character {at + 1}"
            can_repeat = rest[0] not in "^$|("
        at += length
    return ""


def _atom(rest: str) -> tuple[int, str]:
    """Return the length of the first construct of `rest`, without a quantifier, and its problem; empty: no problem.

    If a group comes first, the construct is only its opening, such as `(?:`.
    """
    if rest.startswith("(?"):
        found = next((group for group in _GROUPS if rest.startswith(group)), None)
        return (len(found), "") if found else (2, f"has {rest[:4]}")
    if rest.startswith("\\"):
        return _escape(rest)
    if rest.startswith("["):
        return _character_class(rest)
    return 1, ""


def _escape(rest: str) -> tuple[int, str]:
    escaped = rest[1:2]
    is_shared = bool(escaped) and (escaped in _CLASSES or not escaped.isalnum())
    return 2, "" if is_shared else f"has {rest[:2]}"


def _character_class(rest: str) -> tuple[int, str]:
    at = 2 if rest.startswith("[^") else 1
    first = at
    while at < len(rest):
        if rest[at] == "]":
            return at + 1, "has ] first in […] (write \\])" if at == first else ""
        if rest[at] == "[":
            return at, "has [ within […] (write \\[)"
        if rest[at : at + 2] in _IN_CLASS_TWICE:
            return at, f"has {rest[at : at + 2]} within […]"
        length, problem = _escape(rest[at:]) if rest[at] == "\\" else (1, "")
        if problem:
            return at, problem
        at += length
    return at, "has [ without ]"
