"""Find the bytes of the value of one member in a JSON object. Pure. Runs wherever records are parsed."""

from __future__ import annotations

import json
import re
from json.decoder import scanstring  # type: ignore[attr-defined]  # CPython's string scanner; typeshed leaves it out

from delivery import errors

_SPACE = re.compile(r"[ \t\n\r]*")
_SCAN_VALUE = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # set by its __init__; typeshed leaves it out


def of(value: bytes, name: str) -> bytes:
    """Return the value of the top-level member `name` of a valid JSON object, as its unchanged bytes.

    If the object has several members of this name, the last counts. Raise EventRejected if the object lacks the member, or is
    nested too deeply. This search is needed because the JSON libraries in use return no positions of values. Writing the parsed
    value again would change its bytes.
    """
    text = value.decode()
    try:
        position = _SPACE.match(text, _SPACE.match(text, 0).end() + 1).end()  # type: ignore[union-attr]  # `[ ]*` always matches
        found: str | None = None
        while text[position] != "}":
            key, position = scanstring(text, position + 1)
            position = _SPACE.match(text, text.index(":", position) + 1).end()  # type: ignore[union-attr]
            start = position
            _, position = _SCAN_VALUE(text, start)
            if key == name:
                found = text[start:position]  # the last of duplicate keys, like the parser
            position = _SPACE.match(text, position).end()  # type: ignore[union-attr]
            if text[position] == ",":
                position = _SPACE.match(text, position + 1).end()  # type: ignore[union-attr]
    except RecursionError as exc:
        raise errors.EventRejected("not_json", "the record's JSON is nested too deeply: use fewer levels") from exc
    if found is None:
        raise errors.EventRejected("not_json", f"the record has no member {name}: add it")
    return found.encode()
