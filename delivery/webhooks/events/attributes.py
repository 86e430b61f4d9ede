"""Read the further attributes of a CloudEvent: `subject`, `dataschema` and extensions, which have no field in `Event`.

Runs in the executors, the archive, the API and the commands. Pure.

Source: CloudEvents 1.0.2, "Attribute Naming Convention" and "Type System"; "JSON Event Format", sections 2.2 and 2.4. A
producer chooses names and values. A name becomes part of a header to the receiver, so an event with an invalid name is
rejected.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from delivery import errors
from delivery.model import Attribute, Attributes

MAX_ATTRIBUTES = 32
"""Most further attributes of one event; as many as an endpoint may have headers."""
MAX_BYTES = 8 * 1024
"""Most bytes of the names and values of one event's further attributes, in UTF-8. The bytes travel through state and topics."""
NAMED = frozenset({"specversion", "id", "source", "type", "time", "datacontenttype", "tenantid", "subtenantid"})
"""Names that no further attribute may have. `Event` has a field for such an attribute, or the attribute says how to read the
event."""
JSON_MEMBERS = NAMED | {"data", "data_base64"}
"""Names of members of a structured event that are not further attributes."""

_NAME = re.compile(r"[a-z0-9]+")
_NONCHARACTERS = "".join(f"{chr(plane << 16 | 0xFFFE)}{chr(plane << 16 | 0xFFFF)}" for plane in range(17))
_NOT_IN_TEXT = re.compile(f"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef{_NONCHARACTERS}]")
"""Characters that the type String of CloudEvents excludes: control characters (CR and LF too), surrogates, noncharacters."""
_NEVER_EMPTY = frozenset({"subject", "dataschema"})
"""Further attributes that count as missing when they are empty, as the attributes in NAMED do."""
_MIN_INTEGER, _MAX_INTEGER = -(2**31), 2**31 - 1
_FURTHER = "attributes besides those that every event has (id, source, type, time, …): leave some out, or move them into `data`"
"""End of two texts of EventRejected. The texts do not say "further attributes", because producers do not know this term."""


def require_utf8(headers: Iterable[str]) -> None:
    """Raise EventRejected if a header's name was not UTF-8: Kafka's clients put U+FFFD in place of each invalid byte."""
    if any("\ufffd" in name for name in headers):
        raise errors.EventRejected("bad_attribute", "the name of a header is not UTF-8: encode it in UTF-8")


def further_attributes(attributes: Mapping[str, Any], named: frozenset[str]) -> Attributes:
    """Return the attributes whose names are not in `named`, in their order, as pairs of a name and a value.

    Leave out null values, and an empty `subject` or `dataschema`. Raise EventRejected for an invalid name or value, and for
    more than MAX_ATTRIBUTES or MAX_BYTES. Called for each CloudEvent. For an event without further attributes, the call costs
    one comparison.
    """
    return () if named.issuperset(attributes) else _checked(attributes, named)


def is_name(name: str) -> bool:
    """Return True if a further attribute may have this name: letters a to z and digits, and not in JSON_MEMBERS."""
    return _NAME.fullmatch(name) is not None and name not in JSON_MEMBERS


def as_text(value: Attribute) -> str:
    """Return the canonical string of an attribute's value, for its `ce-` header."""
    if isinstance(value, str):
        return value
    return str(value).lower()  # true, false; digits


def _checked(attributes: Mapping[str, Any], named: frozenset[str]) -> Attributes:
    found: list[tuple[str, Attribute]] = []
    size = 0
    for name, value in attributes.items():
        if name in named or value is None or (value == "" and name in _NEVER_EMPTY):
            continue
        if not is_name(name):
            raise _rejected(
                f"{name[:40]!a} is not a valid name of an attribute: use letters a to z and digits, and no name with another "
                "meaning in CloudEvents, such as `data`"
            )
        if not _is_value(value) or (name in _NEVER_EMPTY and not isinstance(value, str)):
            kinds = "" if name in _NEVER_EMPTY else "a boolean, an integer of 32 bits, or "
            text = "text without control characters, surrogates and noncharacters of Unicode"
            raise _rejected(f"the value of {name[:40]} is not valid: use {kinds}{text}")
        size += len(name) + len(as_text(value).encode())
        found.append((name, value))
        if len(found) > MAX_ATTRIBUTES:
            raise _rejected(f"the event has more than {MAX_ATTRIBUTES} {_FURTHER}")
        if size > MAX_BYTES:
            raise _rejected(f"the event has more than {MAX_BYTES} bytes of {_FURTHER}")
    return tuple(found)


def _is_value(value: Any) -> bool:
    if isinstance(value, str):
        return _NOT_IN_TEXT.search(value) is None
    return isinstance(value, bool) or (isinstance(value, int) and _MIN_INTEGER <= value <= _MAX_INTEGER)


def _rejected(detail: str) -> errors.EventRejected:
    return errors.EventRejected("bad_attribute", detail)
