"""Tell how much waits in a lane's state, and until when, in a form that merges: what the shards tell the driver.

Runs in the executors, merged on the driver. Must not import pyspark or psycopg. Every shard tells in every micro-batch, so that
the sum of one micro-batch is all that waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from delivery.model import EndpointId


class Failing(NamedTuple):
    """An endpoint that accepts nothing. Times are in ms since the epoch."""

    endpoint_id: EndpointId
    since_ms: int
    """When it first accepted something not, since when it has accepted nothing."""
    failed_ms: int
    """When it did so last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """What waits. `a + b` is what waits in both."""

    shards: int = 0
    """How many have told."""
    events: int = 0
    size: int = 0
    """Bytes, as they count for a batch's bound."""
    oldest_ms: int | None = None
    """When the first of all arrived; None when nothing waits."""
    due_ms: int | None = None
    """When the first of it must have left; in the past when a decision had no room for all; None when nothing waits."""
    held: frozenset[EndpointId] = frozenset()
    """Endpoints whose events go to the retry lane at once, because it is holding them back. Told by the retry lane."""
    failing: frozenset[Failing] = frozenset()
    """Endpoints that have accepted nothing for so long that they are to be disabled. Told by the retry lane."""

    def __add__(self, other: Pending) -> Pending:
        return Pending(
            shards=self.shards + other.shards,
            events=self.events + other.events,
            size=self.size + other.size,
            oldest_ms=_earlier(self.oldest_ms, other.oldest_ms),
            due_ms=_earlier(self.due_ms, other.due_ms),
            held=self.held | other.held,
            failing=self.failing | other.failing,
        )


def _earlier(one: int | None, other: int | None) -> int | None:
    return min((at for at in (one, other) if at is not None), default=None)
