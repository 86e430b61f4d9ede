"""Define the search criteria for dead letters, attempts and deliveries. Pure.

Runs in the API, and in `fanout` commands that list consumers.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchFilter:
    """Criteria that all searches of the archive share. A criterion that is None matches everything."""

    endpoint_id: str | None = None
    event_type: str | None = None
    """An exact type, or a prefix wildcard such as `order.*`. An attempt of a batch has no type."""
    tenant_id: str | None = None
    since: dt.datetime | None = None
    """Matches dead letters whose `dead_lettered_at`, and attempts whose `started_at`, is this time or later."""
    until: dt.datetime | None = None
    """Matches dead letters whose `dead_lettered_at`, and attempts whose `started_at`, is before this time."""
    url: str | None = None
    """A text in the present URL of the endpoint. Upper and lower case are equal."""
    text: str | None = None
    """A text in the event's id, in the `webhook-id`, or in the further fields that the subclass names. Upper and lower case are
    equal."""

    def parameters(self) -> dict[str, Any]:
        """Return the criteria as parameters of SQL statements. A wildcard event type becomes `event_type_prefix`."""
        event_type = self.event_type
        is_prefix = event_type is not None and event_type.endswith("*")
        return dataclasses.asdict(self) | {
            "event_type": None if is_prefix else event_type,
            "event_type_prefix": event_type.removesuffix("*") if event_type is not None and is_prefix else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterSearch(SearchFilter):
    """Search criteria for dead letters. `text` is also searched in the event type."""

    reason: str | None = None
