"""Keep the state of one Python worker process from micro-batch to micro-batch: event loop, connections, endpoints, registry.

Runs in the executors. The state can neither be pickled nor survive a fork.
"""

from __future__ import annotations

import dataclasses
import time

import cachetools

from delivery.registry_model import Revision
from delivery.webhooks.clocks import driver_clock, own_delay
from delivery.webhooks.dispatching import endpoint_memory
from delivery.webhooks.http import transport
from delivery.webhooks.lanes import lane_driver, lane_factory, retry_lane, worker_plan
from delivery.webhooks.results import background_results
from delivery.webhooks.results.task_results import Results
from delivery.webhooks.retries import health_hints
from delivery.webhooks.routing import registries
from delivery.webhooks.scheduling import background_attempts, endpoint_clock, host_limits
from delivery.webhooks.sending import sender

MAX_PACES = 20_000
"""Most endpoints whose pace (token bucket) is remembered. The least recently used are forgotten."""
MAX_RESPONSE_TIMES = 20_000
"""Most endpoints whose response time is remembered. The least recently used are forgotten."""
MAX_BREAKERS = 20_000
"""Most endpoints whose circuit breaker is kept. The least recently used are forgotten."""


class WorkerState:
    """The parts of a worker that live as long as the process. The constructor creates all of these parts.

    The methods are called in the event loop, and lanes use the attributes there, unless a docstring says otherwise.
    """

    def __init__(self, plan: worker_plan.Plan) -> None:
        self._plan = plan
        self._registry: registries.Registry | None = None
        self._newest = Revision(0)
        self._acceptances = health_hints.Acceptances(plan.report_accepting_every_s)
        self.now_s = driver_clock.DriverClock()
        """The driver's clock. Used by any thread."""
        self.thread = lane_driver.LoopThread()
        """The event loop and its thread. Used by any thread."""
        clock = self.thread.loop.time
        self.memory = endpoint_memory.EndpointMemory(
            paces=cachetools.LRUCache(maxsize=MAX_PACES),
            hosts=host_limits.Hosts(plan.limits, clock),
            breakers=cachetools.LRUCache(maxsize=MAX_BREAKERS),
            response_times=cachetools.LRUCache(maxsize=MAX_RESPONSE_TIMES),
        )
        """Pace, circuit breaker and response times of each endpoint, and the load of each host, as the process measures it."""
        self._endpoint_clock, self._network = self.thread.run(self._open())
        attempts = sender.Sender(
            self._network,
            plan.guard,
            timeout_s=plan.attempt_timeout_s,
            clock=self.now_s,
            endpoint_time=self._endpoint_clock.time,
            max_retry_after_s=plan.max_retry_after_s,
            logged_response_bytes=plan.logged_response_bytes,
            logs_accepted=plan.logs_accepted,
        )
        self.retry = retry_lane.RetryLane(
            attempts,
            plan.limits,
            paces=self.memory.paces,
            known_hosts=self.memory.hosts,
            clock=clock,
            now_s=self.now_s,
            registry_max_age_s=plan.registry_max_age_s,
        )
        """The retry lane of this process, with its leases in flight."""
        self.background_results = background_results.BackgroundResults(lambda: self.revision)
        """Writes results of background attempts, on a thread of its own. Used by any thread."""
        self.background = background_attempts.BackgroundAttempts(
            plan.attempt_timeout_s, plan.limits.max_in_flight, self.background_results.put
        )
        """The background attempts."""
        self.background_results.start(self.background.settle)
        self.lanes = lane_factory.LaneFactory(
            plan,
            attempts,
            self.background,
            memory=self.memory,
            acceptances=self._acceptances,
            endpoint_time=self._endpoint_clock,
            clock=clock,
            now_s=self.now_s,
        )
        """Builds the lane of each task."""

    async def _open(self) -> tuple[endpoint_clock.EndpointClock, transport.Transport]:
        clock = endpoint_clock.EndpointClock(own_delay.OwnDelay())
        return clock, transport.Transport(
            self._plan.guard,
            max_connections=self._plan.max_connections,
            endpoint_time=clock.time,
            max_extension_s=self._plan.max_extension_s,
            soft_connection_limit=self.memory.hosts.soft_connection_limit,
        )

    def close(self) -> None:
        """Cancel the leases, close the connections and end the event loop. Called in another thread than the loop's."""
        self.thread.run(self.retry.close())
        self.thread.run(self._network.close())
        self.thread.close()
        self.background_results.close()

    @property
    def is_busy(self) -> bool:
        """Return True while a lease is in flight, or a background attempt runs or has a result to write. Thread-safe."""
        return not self.background.is_idle or self.retry.is_busy

    @property
    def revision(self) -> Revision:
        """Return the newest revision of the registry that a task used in this process; return 0 if no task has used a registry.

        Used by any thread.
        """
        if self._registry is not None:  # a task that Spark runs again may bring an older one
            self._newest = max(self._newest, self._registry.newest)
        return self._newest

    def registry_from(self, source: registries.RegistrySource) -> registries.Registry:
        """Return the registry for a task, and let the leases in flight follow this registry.

        `source` updates the registry that this process has, or makes a new registry if an update is impossible.
        """
        return self.follow(source.registry(self._registry))

    def follow(self, registry: registries.Registry) -> registries.Registry:
        """Make `registry` the current one of this process, and return it. Leases in flight are checked by it from now on."""
        self._registry = registry
        self.retry.follow(registry)
        return registry

    def set_workers(self, workers: int) -> None:
        """Divide the limits of hosts and endpoints by `workers`, the number of worker processes, from now on.

        Lanes and leases that exist keep their limits of endpoints.
        """
        limits = dataclasses.replace(self.lanes.limits, workers=workers)
        self.lanes.limits = limits
        self.memory.hosts.set_bounds(limits)
        self.retry.set_bounds(limits)

    def complete(self, results: Results) -> Results:
        """Add the worker's own state to results that come at the end of a task or slice, and return them.

        A slice is the records of one second in the real-time lane. Called in the event loop. The state has three parts:
        1. The own delay since the last call: the seconds in which this process waited for CPU or memory.
        2. The number of requests since the last call that waited for the limits of their host.
        3. The seconds by which this worker's clock is ahead of the driver's clock.
        `results.accepting` keeps only the endpoints that are to be reported to the retry lane now (health hints). If
        `results.reach` shows that our own network is broken, forget all circuit breakers.
        """
        results.accepting = self._acceptances.to_report(results.accepting, results.failed, time.monotonic())
        results.own_delay_s = self._endpoint_clock.own_delay_s()
        results.waited_for_hosts = self.memory.hosts.drain_delayed()
        results.clock_ahead_s = self.now_s.ahead_s
        if results.reach.is_broken():
            self.memory.breakers.clear()
        return results
