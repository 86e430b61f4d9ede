"""Mark operations, parameters and fields as deprecated, and build the headers that tell clients (RFC 9745, RFC 8594). Pure.

Runs in the API, and in `fanout` commands for the OpenAPI document. docs/api.md has the policy.

An operation has its deprecation as `Route.deprecation`. A parameter or a field has its deprecation as an annotation:
`Annotated[str, Deprecation(…)]`. The API does not validate published events by the types of publishing/publish_route.py, so
no header tells of a deprecated field in an event.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection
from dataclasses import dataclass
from email import utils
from typing import Any

import pydantic
from pydantic_core import core_schema

MIN_NOTICE = dt.timedelta(days=184)
"""Least time from a deprecation to the removal: six months, which have at most 184 days."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deprecation:
    """The deprecation of an operation, a parameter or a field. Raises ValueError if the removal follows too soon.

    As an annotation, it sets `deprecated` in the JSON Schema of the field. Whenever a request has the field, pydantic's
    validation adds the deprecation to the validation context, a set.
    """

    since: dt.date
    """The first day, in UTC, on which clients should no longer use the deprecated thing."""
    sunset: dt.date
    """The earliest day of the removal, in UTC."""
    link: str
    """URL of the page that says what to use in place of the deprecated thing."""

    def __post_init__(self) -> None:
        """Raise ValueError if the removal is less than MIN_NOTICE after the deprecation."""
        if self.sunset - self.since < MIN_NOTICE:
            raise ValueError(f"sunset must be at least {MIN_NOTICE.days} days after since: clients have six months to change")

    def __get_pydantic_core_schema__(self, source: Any, handler: pydantic.GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.with_info_after_validator_function(self._note, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: pydantic.GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return handler(schema) | {"deprecated": True}

    def _note(self, value: Any, info: core_schema.ValidationInfo) -> Any:
        if info.context is not None:
            info.context.add(self)
        return value

    def __str__(self) -> str:
        return f"Deprecated since {self.since}, and removed on {self.sunset} at the earliest: {self.link}"


def headers(found: Collection[Deprecation]) -> dict[str, str]:
    """Return the headers of an answer to a request that used something deprecated; empty if it used nothing deprecated.

    The header `deprecation` has the earliest `since` in `found`, and the header `sunset` the earliest `sunset`. The header
    `link` has the links of all deprecations in `found`.
    """
    if not found:
        return {}
    links = sorted({f'<{each.link}>; rel="deprecation"; type="text/html"' for each in found})
    return {
        "deprecation": f"@{int(_midnight(min(each.since for each in found)).timestamp())}",
        "sunset": utils.format_datetime(_midnight(min(each.sunset for each in found)), usegmt=True),
        "link": ", ".join(links),
    }


def _midnight(day: dt.date) -> dt.datetime:
    return dt.datetime.combine(day, dt.time(), dt.UTC)
