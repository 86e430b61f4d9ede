"""Build the lane of each task of the direct and batch lanes, and of each slice (a second) of the real-time lane.

Each lane is built from the state that the worker process keeps between tasks. The process's RetryLane is part of that state,
and is not built here. Runs in the executors, in the worker's event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from delivery.model import Record
from delivery.webhooks.clocks import driver_clock
from delivery.webhooks.dispatching import dispatch, endpoint_memory
from delivery.webhooks.formats import decoder
from delivery.webhooks.lanes import batch_collect, batch_lane, direct_lane, drain_gate, worker_plan
from delivery.webhooks.results import completed_work
from delivery.webhooks.retries import health_hints
from delivery.webhooks.routing import registries, seen_ids
from delivery.webhooks.scheduling import background_attempts, deferral, endpoint_clock
from delivery.webhooks.scheduling.unhealthy import Unhealthy
from delivery.webhooks.sending import sender


class LaneFactory:
    """Build a lane for each task, with the connections, breakers, clocks and seen ids of the worker. Called in the loop."""

    def __init__(
        self,
        plan: worker_plan.Plan,
        attempts: sender.Sender,
        background: background_attempts.BackgroundAttempts,
        *,
        memory: endpoint_memory.EndpointMemory,
        acceptances: health_hints.Acceptances,
        endpoint_time: endpoint_clock.EndpointClock,
        clock: Callable[[], float],
        now_s: driver_clock.DriverClock,
    ) -> None:
        self._plan = plan
        self._sender = attempts
        self._background = background
        self._memory = memory
        self._acceptances = acceptances
        self._endpoint_time = endpoint_time
        self._clock = clock
        self._now_s = now_s
        self._formats = decoder.decoder_of(plan.formats, plan.layout)
        self._seen_direct, self._seen_batch = seen_ids.SeenIds(), seen_ids.SeenIds()
        self.limits = plan.limits
        """The limits of endpoints and hosts for lanes that are built from now on. Existing lanes keep the limits with which
        they were built."""
        self.gate = drain_gate.DrainGate(attempts)
        """The gate of the newest lane that sends requests."""

    def direct(
        self, registry: registries.Registry, unhealthy: Unhealthy, ended: completed_work.CompletedKeys
    ) -> direct_lane.DirectLane:
        """Return a DirectLane for one task, or for one slice of the real-time lane."""
        deferrals = self._begin(unhealthy)
        return direct_lane.DirectLane(
            registry,
            self._dispatcher_of(deferrals),
            deferrals,
            self._plan.layout,
            ended,
            seen=self._seen_direct,
            formats=self._formats,
        )

    async def can_read(self, record: Record) -> bool:
        """Return False if the schema of a record cannot be read now, else True. Raises nothing."""
        return self._formats is None or await self._formats.can_read(record)

    def batch(
        self, registry: registries.Registry, unhealthy: Unhealthy, ended: completed_work.CompletedKeys
    ) -> batch_lane.BatchLane:
        """Return a BatchLane for one task."""
        deferrals = self._begin(unhealthy)
        return batch_lane.BatchLane(registry, self._dispatcher_of(deferrals), deferrals, ended)

    def collector(self, registry: registries.Registry, *, shards: int, immediate_flush_s: float) -> batch_collect.Collector:
        """Return a Collector for one task of the batch lane."""
        return batch_collect.Collector(
            registry,
            self._plan.layout,
            shards=shards,
            now_ms=int(self._now_s() * 1000),
            immediate_flush_s=immediate_flush_s,
            seen=self._seen_batch,
            formats=self._formats,
        )

    def _begin(self, unhealthy: Unhealthy) -> deferral.Deferrals:
        """Apply the driver's lists of late and watched endpoints to this worker; return the Deferrals for a new lane."""
        self._memory.expect_late(unhealthy.late)
        self._acceptances.watch(unhealthy.watched)
        return deferral.Deferrals(
            unhealthy.suppressed, self._memory.breakers, self._background, clock=self._clock, now_s=self._now_s
        )

    def _dispatcher_of(self, deferrals: deferral.Deferrals) -> dispatch.Dispatcher[Any]:
        self.gate = drain_gate.DrainGate(self._sender)
        return dispatch.Dispatcher(
            self.gate,
            self.limits,
            self._plan.quick_retry,
            deferrals,
            self._background,
            memory=self._memory,
            clock=self._clock,
            endpoint_time=self._endpoint_time.time,
        )
