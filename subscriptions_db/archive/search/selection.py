"""Which dead letters of a customer somebody asks for, and what is asked of attempts alike. Pure."""

from __future__ import annotations

import dataclasses
import datetime as dt
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What both are asked. What is None is not asked about."""

    endpoint_id: str | None = None
    event_type: str | None = None
    """An exact type, or a prefix wildcard such as `order.*`. An attempt of a batch has no type."""
    tenant_id: str | None = None
    since: dt.datetime | None = None
    """Given up, or begun, at this time or later …"""
    until: dt.datetime | None = None
    """… and before this one."""

    def parameters(self) -> dict[str, Any]:
        """Return what is asked for as the statements have it: an event type by all of its name, or by its beginning."""
        event_type = self.event_type
        is_prefix = event_type is not None and event_type.endswith("*")
        return dataclasses.asdict(self) | {
            "event_type": None if is_prefix else event_type,
            "event_type_prefix": event_type.removesuffix("*") if event_type is not None and is_prefix else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection(Asked):
    """Which dead letters."""

    reason: str | None = None
