"""Sum up the backlog of a lane's shards for the driver.

Runs in the executors, merged on the driver. Each shard reports its backlog in each micro-batch. The sum of a micro-batch is the
whole backlog of the lane.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from delivery.model import EndpointId


class Failing(NamedTuple):
    """An endpoint that accepts nothing and is to be disabled. Times are in ms since the epoch."""

    endpoint_id: EndpointId
    since_ms: int
    """First failure after which no request was accepted."""
    failed_ms: int
    """Last failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """The backlog of some shards. `a + b` is the backlog of both."""

    shards: int = 0
    """Number of shards."""
    events: int = 0
    size: int = 0
    """Bytes, as they count for the bound of a batch."""
    oldest_ms: int | None = None
    """When the oldest event arrived. None: there is no backlog."""
    due_ms: int | None = None
    """When the first event is due; in the past where a decision had no room for all. None: there is no backlog."""
    suppressed: frozenset[EndpointId] = frozenset()
    """Suppressed endpoints: the fast lanes defer their events to the retry lane at once. Reported by the retry lane."""
    failing: frozenset[Failing] = frozenset()
    """Endpoints to disable, because they have accepted nothing for too long. Reported by the retry lane."""

    def __add__(self, other: Pending) -> Pending:
        return Pending(
            shards=self.shards + other.shards,
            events=self.events + other.events,
            size=self.size + other.size,
            oldest_ms=_earlier(self.oldest_ms, other.oldest_ms),
            due_ms=_earlier(self.due_ms, other.due_ms),
            suppressed=self.suppressed | other.suppressed,
            failing=self.failing | other.failing,
        )


def _earlier(one: int | None, other: int | None) -> int | None:
    return min((at for at in (one, other) if at is not None), default=None)
