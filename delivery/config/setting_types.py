"""Define the types of settings: an area, and single values with their parsing and checks."""

from __future__ import annotations

import re
from typing import Annotated

import pydantic
from pydantic import Field

from delivery.config import topic_pattern

Seconds = Annotated[float, Field(gt=0)]
TopicPattern = Annotated[str, pydantic.AfterValidator(topic_pattern.checked)]


def pattern_or_none(pattern: str) -> str:
    """Return a checked topic pattern, or the empty string; raise ValueError."""
    return topic_pattern.checked(pattern) if pattern else ""


def pairs(value: object) -> object:
    """Parse a table from the environment's `name=value,name=value`."""
    if not isinstance(value, str):
        return value
    return dict(part.strip().split("=", 1) for part in value.split(",") if "=" in part)


def with_one_group(pattern: str) -> str:
    """Return a pattern that is empty or has exactly one group; raise ValueError."""
    try:
        groups = re.compile(pattern).groups
    except re.error as exc:
        raise ValueError(f"is not a regular expression: {exc}") from None
    if pattern and groups != 1:
        raise ValueError("must have exactly one group: the tenant's id")
    return pattern


class Area(pydantic.BaseModel):
    """One group of settings: frozen and checked. It refuses unknown names."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
