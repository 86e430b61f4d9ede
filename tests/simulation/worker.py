"""A simulated Python worker process of a lane, and the rows that the worker writes."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from typing import Any

from delivery.webhooks.clocks import driver_clock
from delivery.webhooks.dispatching import dispatch, endpoint_memory
from delivery.webhooks.events import parsing
from delivery.webhooks.http import guard
from delivery.webhooks.lanes import batch_lane, direct_lane, retry_lane
from delivery.webhooks.policy import backoff
from delivery.webhooks.results import completed_work, topic_rows
from delivery.webhooks.results.task_results import Results, background_results
from delivery.webhooks.retries import health_hints
from delivery.webhooks.routing import registries
from delivery.webhooks.scheduling import background_attempts, deferral, host_limits, limits
from delivery.webhooks.scheduling.unhealthy import Unhealthy
from delivery.webhooks.sending import sender
from tests.simulation.shards import POLICY
from tests.simulation.virtual import now_s
from tests.simulation.world import World

TOPICS = topic_rows.Topics(attempts="attempts", dead_letters="dead_letters", rejected="rejected", retries="retries")
LIMITS = limits.Limits(max_in_flight=32, max_in_flight_per_endpoint=4)
ATTEMPT_S = 2.0
CLOCKS = (0.0, 0.0, 0.0, 0.4, -0.4, 600.0, -600.0)
"""Seconds that a worker's clock may be ahead."""


class Worker:
    """The state that a Python worker process keeps between micro-batches, and loses when it dies."""

    def __init__(self, world: World, rng: random.Random, write: Callable[[list[topic_rows.TopicRow]], None]) -> None:
        loop = asyncio.get_running_loop()
        ahead_s = rng.choice(CLOCKS)
        self.now_s = driver_clock.DriverClock(lambda: now_s() + ahead_s)
        self.sender = sender.Sender(world, guard.Guard(), timeout_s=ATTEMPT_S, clock=self.now_s, monotonic=loop.time)
        self.memory = endpoint_memory.EndpointMemory(
            paces={}, hosts=host_limits.Hosts(LIMITS, loop.time), breakers={}, response_times={}
        )
        self.acceptances = health_hints.Acceptances(health_hints.report_interval_s(POLICY.disable_after_s), rng)
        self.rng = rng
        self.clock = loop.time
        self.late = background_attempts.BackgroundAttempts(ATTEMPT_S, LIMITS.max_in_flight, self._write_result)
        self.is_dead = False
        self._write = write
        self.retries = retry_lane.RetryLane(
            self.sender,
            LIMITS,
            paces=self.memory.paces,
            known_hosts=self.memory.hosts,
            clock=loop.time,
            now_s=self.now_s,
            rng=rng,
        )

    def _write_result(self, ended: background_attempts.BackgroundResult) -> None:
        """Write the result of a background attempt, as the worker does, with or without a task."""
        if not self.is_dead:
            self._write([*self.rows_of(background_results([ended])), *topic_rows.completion_rows([ended], TOPICS)])

    def begin_task(self) -> None:
        self.now_s.record_stamp(now_s())

    def rows_of(self, results: Results) -> list[topic_rows.TopicRow]:
        at_ms = round(self.now_s() * 1000)
        deferred = (
            topic_rows.deferral_rows(results, TOPICS, now_ms=at_ms),
            topic_rows.health_hint_rows(results, TOPICS, now_ms=at_ms),
        )
        return [*topic_rows.rows(results, TOPICS, now_ms=at_ms), *itertools.chain(*deferred)]

    def direct(
        self, registry: registries.Registry, unhealthy: Unhealthy, ended: completed_work.CompletedKeys
    ) -> direct_lane.DirectLane:
        self.begin_task()
        deferrals = self._begin(unhealthy)
        return direct_lane.DirectLane(registry, self._dispatcher(deferrals), deferrals, parsing.Layout(), ended)

    def batches(
        self, registry: registries.Registry, unhealthy: Unhealthy, ended: completed_work.CompletedKeys
    ) -> batch_lane.BatchLane:
        self.begin_task()
        deferrals = self._begin(unhealthy)
        return batch_lane.BatchLane(registry, self._dispatcher(deferrals), deferrals, ended)

    def _begin(self, unhealthy: Unhealthy) -> deferral.Deferrals:
        self.memory.expect_late(unhealthy.late)
        self.acceptances.watch(unhealthy.watched)
        return deferral.Deferrals(
            unhealthy.suppressed, self.memory.breakers, self.late, clock=self.clock, now_s=self.now_s, rng=self.rng
        )

    def _dispatcher(self, deferrals: deferral.Deferrals) -> dispatch.Dispatcher[Any]:
        return dispatch.Dispatcher(
            self.sender,
            LIMITS,
            backoff.QuickRetry(),
            deferrals,
            self.late,
            memory=self.memory,
            clock=self.clock,
            endpoint_time=self.clock,
        )
