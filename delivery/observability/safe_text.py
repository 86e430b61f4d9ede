"""Escape control characters in foreign text, such as answers of receivers, payloads and names.

Runs everywhere. Must not import pyspark or psycopg. Pure.

A control character can move a terminal's cursor, hide lines, or type input for the person at the terminal. A bidirectional
control or an invisible character makes text look different from its content. Here all three kinds are called control
characters, and each appears as a visible escape. Source: Unicode Technical Report 36, section 2.10; ECMA-48 for the control
characters.
"""

from __future__ import annotations

import re

_INVISIBLE = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters except tab and newline
    "\xad\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb"
    "\ud800-\udfff"  # surrogates: no encoding accepts them
    "\U000e0000-\U000e007f"  # tags
)
_IN_LINES = re.compile(f"[{_INVISIBLE}]")
_IN_A_LINE = re.compile(f"[{_INVISIBLE}\t\n]")


def text(foreign: str) -> str:
    """Return `foreign` with every control character escaped, except tabs and newlines."""
    return _IN_LINES.sub(_escaped, foreign)


def line(foreign: str) -> str:
    """Return `foreign` on one line, with every control character escaped, tabs and newlines included."""
    return _IN_A_LINE.sub(_escaped, foreign)


def json(document: str) -> str:
    """Return an equal JSON document whose strings contain control characters only as JSON escapes."""
    return _IN_LINES.sub(_json_escaped, document)


def _escaped(found: re.Match[str]) -> str:
    if found[0].isascii():
        return repr(found[0])[1:-1]  # \t, \n, \r, or \x and two digits
    return found[0].encode("ascii", "backslashreplace").decode()


def _json_escaped(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[place] << 8 | units[place + 1]:04x}" for place in range(0, len(units), 2))
