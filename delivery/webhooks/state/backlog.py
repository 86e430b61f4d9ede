"""Sum up the backlog of a lane's shards for the driver.

Runs in the executors and on the driver. A shard is one key of Spark's state. Each shard of the batch lane and of the retry lane
reports its backlog in each micro-batch with input partitions: Kafka partitions with new records. The driver adds the reports:
their sum is the lane's backlog.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from delivery.registry_model import EndpointId


class Failing(NamedTuple):
    """An endpoint that has accepted nothing for so long that the driver may disable it. Times are in ms since the epoch.

    Before the driver disables the endpoint, it subtracts the time of local outages. The driver disables no endpoint that was
    enabled too recently.
    """

    endpoint_id: EndpointId
    since_ms: int
    """Time of the first failure after which no request was accepted."""
    failed_ms: int
    """Time of the last failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardBacklog:
    """The backlog of one shard or of several: the events that wait. `a + b` is the backlog of both."""

    shards: int = 0
    """Number of shards."""
    events: int = 0
    """Events that wait."""
    size: int = 0
    """Bytes of the waiting events: in the batch lane their bytes in a request, in the retry lane their bytes in the state."""
    oldest_ms: int | None = None
    """When the oldest waiting event arrived. None: there is no backlog."""
    due_ms: int | None = None
    """Time in ms since the epoch. The driver wakes the lane one look-ahead (the lane's trigger interval) before this time.

    1. Batch lane: the time at which the next batch is due.
    2. Retry lane: one look-ahead after the time at which the next entry is due. So the lane wakes when the entry is due.
    3. If a micro-batch had no room for all due events, the time is so early that the driver wakes the lane at once.

    None: no event waits."""
    suppressed: frozenset[EndpointId] = frozenset()
    """Suppressed endpoints: they fail or do not answer, so other lanes give their events to the retry lane without an attempt.
    Only the retry lane reports suppressed endpoints."""
    failing: frozenset[Failing] = frozenset()
    """Endpoints to disable, because they have accepted nothing for too long. Only the retry lane reports them."""
    watched: frozenset[EndpointId] = frozenset()
    """Endpoints that have accepted no request since their last failure, as far as the retry lane knows. A worker reports when
    such an endpoint accepts a request (`retries.health_hints`). Only the retry lane reports watched endpoints."""

    def __add__(self, other: ShardBacklog) -> ShardBacklog:
        return ShardBacklog(
            shards=self.shards + other.shards,
            events=self.events + other.events,
            size=self.size + other.size,
            oldest_ms=_earlier(self.oldest_ms, other.oldest_ms),
            due_ms=_earlier(self.due_ms, other.due_ms),
            suppressed=self.suppressed | other.suppressed,
            failing=self.failing | other.failing,
            watched=self.watched | other.watched,
        )


def _earlier(first_ms: int | None, second_ms: int | None) -> int | None:
    return min((at_ms for at_ms in (first_ms, second_ms) if at_ms is not None), default=None)
