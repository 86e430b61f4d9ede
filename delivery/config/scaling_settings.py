"""The settings by which the job scales its executors. See `delivery.config.settings`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from delivery.config.setting_types import Area, Seconds


class ScalingSettings(Area):
    """Bounds and times by which the job scales its executors with the lag (docs/operations.md#scale-executors)."""

    min_executors: Annotated[int, Field(gt=0)] = 1
    """Fewest executors, and the number at the start."""
    max_executors: Annotated[int, Field(ge=0)] = 0
    """Most executors; 0: the number is fixed. With scaling, a micro-batch has as many tasks as the executors have cores, not
    `spark.parallelism`. The limit of events in a micro-batch is multiplied by the number of executors. Scaling changes neither
    the number of tasks nor the limit of events of the real-time lane."""
    drain_within_s: Seconds = 60
    """The job adds executors when the lag of a lane would not drain within this time."""
    scale_in_after_s: Seconds = 60
    """The job removes executors when fewer executors would have sufficed for this time."""
    interval_s: Seconds = 5
    """Time between two decisions, each with a request to Kafka for the lag."""

    @property
    def is_on(self) -> bool:
        """Return True if the job changes the number of executors."""
        return self.max_executors > 0
