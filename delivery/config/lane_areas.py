"""Define the settings that each lane with state has, and list the wake-up topics of these lanes.

Runs on the driver, in the commands, in `fanout archive` and in the API.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from delivery.config import settings


@runtime_checkable
class LaneArea(Protocol):
    """The settings area of a lane that keeps state, such as `settings.BatchSettings`. The area has the name of its lane."""

    @property
    def shards(self) -> int:
        """Return the number of parts of the lane's state."""

    @property
    def trigger_interval_s(self) -> float:
        """Return the seconds from the start of one micro-batch to the start of the next, unless a micro-batch takes longer."""

    @property
    def ticks_topic(self) -> str:
        """Return the name of the lane's wake-up topic."""


def wakeup_topics(config: settings.Settings) -> frozenset[str]:
    """Return the wake-up topics of all lanes that keep state. Records of these topics are not events."""
    areas = (getattr(config, name) for name in settings.Settings.model_fields)
    return frozenset(area.ticks_topic for area in areas if isinstance(area, LaneArea))
