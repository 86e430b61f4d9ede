"""Which dead letters of a customer somebody asks for. Pure."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What is None is not asked about."""

    endpoint_id: str | None = None
    event_type: str | None = None
    """An exact type, or a prefix wildcard such as `order.*`."""
    tenant_id: str | None = None
    reason: str | None = None
    since: dt.datetime | None = None
    """Given up at this time or later …"""
    until: dt.datetime | None = None
    """… and before this one."""

    def parameters(self) -> dict[str, Any]:
        """Return it as the statements have it."""
        return {
            "endpoint_id": self.endpoint_id,
            **of_type(self.event_type),
            "tenant_id": self.tenant_id,
            "reason": self.reason,
            "since": self.since,
            "until": self.until,
        }


def of_type(event_type: str | None) -> dict[str, str | None]:
    """Return what an event type asks for: all of the name, or its beginning."""
    is_prefix = event_type is not None and event_type.endswith("*")
    return {
        "event_type": None if is_prefix else event_type,
        "event_type_prefix": event_type.removesuffix("*") if event_type is not None and is_prefix else None,
    }
