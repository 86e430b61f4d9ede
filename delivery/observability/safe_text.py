"""Show foreign text without what it would do to a terminal or a log: answers of receivers, payloads, names.

Runs everywhere. Must not import pyspark or psycopg. Pure.

A control character that reaches a terminal moves the cursor, hides lines or answers for the person who looks. A bidirectional
control shows another text than is there. Each appears as a visible escape. Source: Unicode Technical Report 36, section 2.10;
ECMA-48 for the control characters.
"""

from __future__ import annotations

import re

_INVISIBLE = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and newline
    "\xad\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb"
    "\ud800-\udfff"  # surrogates: no encoding takes them
    "\U000e0000-\U000e007f"  # tags
)
_IN_LINES = re.compile(f"[{_INVISIBLE}]")
_IN_A_LINE = re.compile(f"[{_INVISIBLE}\t\n]")


def text(foreign: str) -> str:
    """Return text of several lines in which every control is a visible escape, but tabs and newlines."""
    return _IN_LINES.sub(_escaped, foreign)


def line(foreign: str) -> str:
    """Return text in one line: tabs and newlines are escapes, too."""
    return _IN_A_LINE.sub(_escaped, foreign)


def json(document: str) -> str:
    """Return a JSON document that says the same: what would be a control stands in its strings as JSON's own escape."""
    return _IN_LINES.sub(_json_escaped, document)


def _escaped(found: re.Match[str]) -> str:
    if found[0].isascii():
        return repr(found[0])[1:-1]  # \t, \n, \r, or \x and two digits
    return found[0].encode("ascii", "backslashreplace").decode()


def _json_escaped(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[place] << 8 | units[place + 1]:04x}" for place in range(0, len(units), 2))
