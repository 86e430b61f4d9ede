"""Deliver leases through a retry lane with a fake sender, in one micro-batch."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
from collections.abc import Callable
from typing import Any

from delivery.model import Attempt
from delivery.webhooks.lanes import retry_lane
from delivery.webhooks.leases import memory_budget
from delivery.webhooks.retries import retry_messages
from delivery.webhooks.routing import registries
from delivery.webhooks.routing.registry_snapshot import Snapshot
from delivery.webhooks.scheduling import host_limits, limits
from tests.support import fakes
from tests.support.leases import NOW_MS


class Sender:
    """A sender that ends each attempt as `answer(delivery)` says: an error class, None, or an event to wait for first."""

    def __init__(self, answer: Callable[[Any], Any] = lambda _: None) -> None:
        self.sent: list[tuple[Any, int, float | None]] = []
        self.in_flight: collections.Counter[str] = collections.Counter()
        self.most: collections.Counter[str] = collections.Counter()
        self._answer = answer

    async def attempt(self, delivery: Any, number: int, timeout_s: float | None = None) -> Attempt:
        endpoint_id = delivery.endpoint.endpoint_id
        self.sent.append((delivery, number, timeout_s))
        self.in_flight[endpoint_id] += 1
        self.most[endpoint_id] = max(self.most[endpoint_id], self.in_flight[endpoint_id])
        await asyncio.sleep(0)
        error_class = self._answer(delivery)
        if isinstance(error_class, asyncio.Event):
            await error_class.wait()
            error_class = None
        self.in_flight[endpoint_id] -= 1
        return Attempt(number, NOW_MS, 5.0, None, error_class)

    def ids(self) -> list[str]:
        return [delivery.event.event_id for delivery, _, _ in self.sent]


def lane_of(
    sender: Any,
    clock: fakes.Clock | None = None,
    max_in_flight_bytes: int = memory_budget.MAX_IN_FLIGHT_BYTES,
    **bounds: int,
) -> retry_lane.RetryLane:
    clock = clock or fakes.Clock(NOW_MS / 1000)
    chosen = limits.Limits(**bounds)
    return retry_lane.RetryLane(
        sender,
        chosen,
        paces={},
        known_hosts=host_limits.Hosts(chosen, clock),
        clock=clock,
        now_s=clock,
        max_in_flight_bytes=max_in_flight_bytes,
    )


def deliver(registry: Snapshot, *leases: retry_messages.Lease, sender: Any = None, **bounds: int) -> retry_lane.LeaseResults:
    """Deliver leases in one micro-batch; return their results."""

    async def main() -> retry_lane.LeaseResults:
        lane = lane_of(sender, **bounds)
        first = await lane.start(map(retry_messages.encoded, leases), registries.WholeRegistry("base", registry), 10)
        return together(first, await lane.finish_task(10))

    sender = sender or Sender()
    return asyncio.run(main())


def together(*ended: retry_lane.LeaseResults) -> retry_lane.LeaseResults:
    """Return the results of several calls as one value."""
    results = dataclasses.replace(ended[-1].results, outcomes=[], batches=[], rejections=[])
    for drained in ended:
        results.outcomes += drained.results.outcomes
        results.batches += drained.results.batches
        results.rejections += drained.results.rejections
    return retry_lane.LeaseResults(results, [report for drained in ended for report in drained.reports])
