"""Define the types of settings: an area, and single values with their parsing and checks."""

from __future__ import annotations

import re
from typing import Annotated

import pydantic
from pydantic import Field

from delivery.config import topic_pattern

Seconds = Annotated[float, Field(gt=0, le=1e9)]
"""A number above 0, in seconds unless the setting's name says otherwise. At most 1e9, because Python cannot wait for more than
292 years."""
PerSecond = Annotated[float, Field(gt=0)]
"""A number above 0, for each second."""
TopicPattern = Annotated[str, pydantic.AfterValidator(topic_pattern.checked)]
"""A regular expression for topic names that means the same in Java and Python."""


def pattern_or_none(pattern: str) -> str:
    """Return `pattern` if it is empty or a valid topic pattern; else raise ValueError."""
    return topic_pattern.checked(pattern) if pattern else ""


def pairs(value: object) -> object:
    """Parse `name=value,name=value`, the form in an environment variable, into a dict.

    Empty parts are left out. Raise ValueError for a part without a name or without `=`. The message does not quote the part,
    which may be a secret. Any value that is not a text is returned unchanged.
    """
    if not isinstance(value, str):
        return value
    table = {}
    for number, part in enumerate(value.split(","), 1):
        if not part.strip():
            continue
        name, equals, content = part.strip().partition("=")
        if not name or not equals:
            raise ValueError(
                f"part {number} has no name or no `=`: write name=value,name=value. Values with commas need the settings file"
            )
        table[name] = content
    return table


def key_map(value: object) -> object:
    """Parse key ids and keys as `pairs` does. Raise ValueError for an id without a key. The message quotes neither.

    A key without its id looks like an id without a key, because base64 ends with `=`.
    """
    table = pairs(value)
    if isinstance(table, dict) and "" in table.values():
        raise ValueError("an entry has no key or no id: write each key as id1=base64. `fanout keys generate` prints no id")
    return table


class Matching(pydantic.AfterValidator):
    """Refuse a text that does not match `pattern` from its first to its last character. `problem` is the message."""

    def __init__(self, pattern: str, problem: str) -> None:
        def checked(text: str) -> str:
            if not re.fullmatch(pattern, text):
                raise ValueError(problem)
            return text

        super().__init__(checked)


def with_one_group(pattern: str) -> str:
    """Return `pattern` if it is empty or has exactly one group, the tenant's id; else raise ValueError."""
    try:
        groups = re.compile(pattern).groups
    except re.error as exc:
        raise ValueError(f"is not a regular expression: {exc}; correct it") from None
    if pattern and groups != 1:
        raise ValueError(
            f"has {groups} groups, and must have exactly one group: the tenant's id, as in `events\\.([^.]+)\\..+`. Write any "
            "other group as (?:…)"
        )
    return pattern


class Area(pydantic.BaseModel):
    """One group of settings, such as `[kafka]` in TOML: frozen, checked, without unknown names, and with finite numbers."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)
