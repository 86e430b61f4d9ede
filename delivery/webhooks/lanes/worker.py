"""Keep the state of one Python worker process from micro-batch to micro-batch: event loop, connections, routing index.

A Worker is created lazily in the process that uses it, because its state can neither be pickled nor survive a fork. Spark forks
at most two worker processes for each task slot, and reuses them for later tasks (`spark.python.worker.reuse`).
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

import cachetools

from delivery import errors
from delivery.model import Record
from delivery.registry_model import Revision
from delivery.webhooks.clocks import driver_clock, own_delay
from delivery.webhooks.dispatching import endpoint_queue
from delivery.webhooks.http import transport
from delivery.webhooks.lanes import (
    batch_collect,
    batch_lane,
    direct_lane,
    gc_tuning,
    lane_driver,
    lane_factory,
    realtime_lane,
    retry_lane,
    worker_plan,
)
from delivery.webhooks.results import background_results, completed_work
from delivery.webhooks.results.task_results import Results
from delivery.webhooks.retries import health_hints
from delivery.webhooks.routing import registries
from delivery.webhooks.scheduling import background_attempts, deferral, endpoint_clock, host_limits
from delivery.webhooks.sending import sender
from delivery.webhooks.state import chunking

log = logging.getLogger(__name__)

MAX_PACES = 20_000
"""Most endpoints whose pace is remembered. The least recently used are forgotten."""
MAX_RESPONSE_TIMES = 20_000
"""Most endpoints whose response time is remembered. The least recently used are forgotten."""
MAX_BREAKERS = 20_000
"""Most endpoints whose circuit breaker is kept. The least recently used are forgotten."""
BATCH_BYTES_AT_ONCE = 1024 * 1024
"""Most bytes of batches that are read before the results so far are written. A larger batch is read alone. With a bound of 16
batches instead, results of small batches were written each 7 ms: a quarter of the work on these batches (docs/benchmarks/)."""
LEASES_AT_ONCE = 16
"""Most leases that are read before the results so far are written."""
IDLE_CHECK_S = 0.02
"""Seconds between two checks of an ending worker for attempts in flight."""


class Worker:
    """Run the tasks of all lanes in one worker process: an event loop on its own thread, and its state between tasks."""

    def __init__(self, plan: worker_plan.Plan) -> None:
        self._collector = gc_tuning.GarbageCollector(time.monotonic)
        self._plan = plan
        self._registry: registries.Registry | None = None
        self._newest = Revision(0)
        self.now_s = driver_clock.DriverClock()
        self._acceptances = health_hints.Acceptances(plan.report_accepting_every_s)
        self._thread = lane_driver.LoopThread()
        self._clock = self._thread.loop.time
        self._memory = endpoint_queue.EndpointMemory(
            paces=cachetools.LRUCache(maxsize=MAX_PACES),
            hosts=host_limits.Hosts(plan.limits, self._clock),
            breakers=cachetools.LRUCache(maxsize=MAX_BREAKERS),
            response_times=cachetools.LRUCache(maxsize=MAX_RESPONSE_TIMES),
        )
        self._endpoint_clock, self._network = self._thread.run(self._open())
        self._sender = sender.Sender(
            self._network,
            self._plan.guard,
            timeout_s=self._plan.attempt_timeout_s,
            clock=self.now_s,
            endpoint_time=self._endpoint_clock.time,
            max_retry_after_s=self._plan.max_retry_after_s,
            logged_response_bytes=self._plan.logged_response_bytes,
            logs_accepted=self._plan.logs_accepted,
        )
        self._is_orphan = False
        self._retry = retry_lane.RetryLane(
            self._sender,
            plan.limits,
            paces=self._memory.paces,
            known_hosts=self._memory.hosts,
            clock=self._clock,
            now_s=self.now_s,
            registry_max_age_s=plan.registry_max_age_s,
        )
        self._background_results = background_results.BackgroundResults(lambda: self.revision)
        self._background = background_attempts.BackgroundAttempts(
            self._plan.attempt_timeout_s, self._plan.limits.max_in_flight, self._background_results.put
        )
        self._background_results.start(self._background.settle)
        self._lanes = lane_factory.LaneFactory(
            plan,
            self._sender,
            self._background,
            memory=self._memory,
            endpoint_time=self._endpoint_clock,
            clock=self._clock,
            now_s=self.now_s,
        )

    async def _open(self) -> tuple[endpoint_clock.EndpointClock, transport.Transport]:
        clock = endpoint_clock.EndpointClock(own_delay.OwnDelay())
        return clock, transport.Transport(
            self._plan.guard,
            max_connections=self._plan.max_connections,
            endpoint_time=clock.time,
            max_extension_s=self._plan.max_extension_s,
            soft_connection_limit=self._memory.hosts.soft_connection_limit,
        )

    def close(self) -> None:
        """Cancel the leases, close the connections and end the event loop. For tests: Spark ends a worker's process instead."""
        self._thread.run(self._retry.close())
        self._thread.run(self._network.close())
        self._thread.close()
        self._background_results.close()

    @property
    def revision(self) -> Revision:
        """Return the newest revision of the registry that a task used in this process. 0: none has used a registry."""
        if self._registry is not None:  # a task that Spark runs again may bring an older one
            self._newest = max(self._newest, self._registry.newest)
        return self._newest

    def begin_task(self, driver_s: float | None, workers: int | None = None) -> None:
        """Prepare for a task. Called before any other method of the task.

        `driver_s` is the driver's time when it created the task, in seconds since the epoch. None: unknown. `workers` is the
        number of workers that share the limits of hosts and endpoints. None: unchanged.
        """
        self._collector.freeze()
        if driver_s is not None:
            self.now_s.record_stamp(driver_s)
        if workers is not None and workers != self._lanes.limits.workers:
            self._thread.run(self._set_workers(workers))

    async def _set_workers(self, workers: int) -> None:
        limits = dataclasses.replace(self._lanes.limits, workers=workers)
        self._lanes.limits = limits
        self._memory.hosts.set_bounds(limits)
        self._retry.set_bounds(limits)

    def deliver(
        self,
        batches: Iterable[Iterable[Record]],
        source: registries.RegistrySource,
        suppressed: deferral.SuppressedEndpoints = deferral.NONE_SUPPRESSED,
        ended: completed_work.CompletedKeys = frozenset(),
    ) -> Iterator[Results]:
        """Deliver the records of a task of the direct lane by the registry in `source`; yield their results.

        Deliveries to `suppressed` endpoints are deferred to the retry lane. Deliveries in `ended` were completed by an earlier
        run of the micro-batch, and are left out. Called in the task's thread, by one task at a time. Attempts continue while
        the task reads the next records.
        """
        lane = self._thread.run(self._begin_direct_lane(source, suppressed, ended))
        yield from self._driver(lane).results(batches)

    def realtime(
        self,
        registry: Callable[[], registries.Registry],
        suppressed: deferral.SuppressedEndpoints,
        ended: completed_work.CompletedKeys,
        next_offsets: Mapping[realtime_lane.Place, int],
    ) -> realtime_lane.RealtimeSlices:
        """Return a real-time lane for a long task.

        `registry` is called in the event loop each time a slice begins. `suppressed` is read in the loop for each delivery, and
        may be changed there. Deliveries in `ended` are left out. `next_offsets` has the known offsets at which the task begins.
        """

        def begin() -> realtime_lane.Slice:
            lane = self._lanes.direct(self._follow(registry()), suppressed, ended)
            return realtime_lane.Slice(lane, self._lanes.gate)

        return realtime_lane.RealtimeSlices(self._thread.loop, begin, next_offsets, self._with_worker_state)

    def call_in_loop(self, change: Callable[[], None]) -> None:
        """Schedule a call of `change` in the event loop. Called in any thread."""
        self._thread.call_soon(change)

    def collect(
        self, batches: Iterable[Iterable[Record]], source: registries.RegistrySource, *, shards: int, immediate_flush_s: float
    ) -> Iterator[batch_collect.Collected]:
        """Collect the records of a task of the batch lane into segments, by the registry in `source`.

        Yield the segments, with the skips and rejections. The last Collected also has the offset receipts.

        `shards` is the number of shards. Events of endpoints with a `max_wait_s` of at most `immediate_flush_s` do not wait.
        Called in the task's thread, by one task at a time.
        """
        collector = self._thread.run(self._begin_collecting(source, shards, immediate_flush_s))
        for records in batches:
            yield self._thread.run(collector.add(records))
        yield collector.finish()

    def deliver_batches(
        self,
        batches: Iterable[bytes],
        source: registries.RegistrySource,
        suppressed: deferral.SuppressedEndpoints = deferral.NONE_SUPPRESSED,
        ended: completed_work.CompletedKeys = frozenset(),
    ) -> Iterator[Results]:
        """Deliver batches that shards of the batch lane have sent, by the registry in `source`; yield the results.

        Batches to `suppressed` endpoints are deferred to the retry lane. Events in `ended`, which an earlier run completed, are
        left out. Called in the task's thread, by one task at a time.
        """
        chunks = chunking.chunks(batches, len, BATCH_BYTES_AT_ONCE)
        lane = self._thread.run(self._begin_batch_lane(source, suppressed, ended))
        yield from self._driver(lane).results(chunks)

    @property
    def is_orphan(self) -> bool:
        """Return True if the JVM of this worker is gone."""
        return self._is_orphan

    def mark_orphaned(self) -> None:
        """Record that the JVM of this worker is gone. Called in the task's thread, by the handler of a signal.

        A delivering task of a fast lane then begins no further attempt, lets its attempts in flight end, and fails. A task of
        the retry lane begins no further attempt, and reports its other entries as requeued.
        """
        self._is_orphan = True
        self._thread.call_soon(self._retry.stop)

    def retry(
        self,
        leases: Iterable[bytes],
        source: registries.RegistrySource,
        settle_s: float,
        ended: completed_work.CompletedKeys = frozenset(),
    ) -> Iterator[retry_lane.LeaseResults]:
        """Attempt the entries of leases that shards of the retry lane have given out; yield the results.

        Called in the task's thread, by one task at a time. Attempts that take longer than `settle_s` continue after the task. A
        later call, or `drain_leases`, returns their results. If the task fails, unwritten results are lost: the leases expire.
        """
        registry = self._thread.run(self._registry_for_leases(source))
        written = iter(leases)
        while chunk := list(itertools.islice(written, LEASES_AT_ONCE)):
            yield self._thread.run(self._retry.start(chunk, registry, settle_s, ended))
        deadline = time.monotonic() + settle_s
        while not self._thread.run(self._retry.wait_for_leases(lane_driver.RESULTS_EVERY_S)) and time.monotonic() < deadline:
            if (ended_now := self.drain_leases()) is not None:
                yield ended_now
        yield self._thread.run(self._finish_retry_task())

    async def _finish_retry_task(self) -> retry_lane.LeaseResults:
        last = await self._retry.finish_task(0.0)
        self._with_worker_state(last.results)
        return last

    def drain_leases(self) -> retry_lane.LeaseResults | None:
        """Return the results so far of all leases that `retry` got, without waiting. None: there are none.

        Called in the thread of a task of any lane. This process may get no task of the retry lane for long. A lease that is not
        reported within `lease_timeout_s` expires and repeats. Each result is returned once, and the calling task must write its
        rows and reports. The task must not defer these deliveries: the reports say which entries are requeued.
        """
        return self._thread.run(self._drain_retry_lane())

    async def _drain_retry_lane(self) -> retry_lane.LeaseResults | None:
        return self._retry.drain()

    def wait_until_idle(self, within_s: float) -> None:
        """Wait at most `within_s` until no background attempt and no lease is in flight. Called when the job stops the worker.

        The wait includes the writing of the results of background attempts, and ends early if the JVM is gone. No further
        attempt of a lease begins: the report of the lease requeues the remaining entries.
        """
        self._thread.call_soon(self._retry.stop)
        deadline = time.monotonic() + within_s
        while self._is_busy() and time.monotonic() < deadline and not self._is_orphan:
            time.sleep(IDLE_CHECK_S)

    def _is_busy(self) -> bool:
        return not self._background.is_idle or self._retry.is_busy

    def write_background_results_by(self, write: background_results.Write) -> None:
        """Set the function that writes results of background attempts. The function is called on a thread of its own."""
        self._background_results.write = write

    def written_background_results(self) -> list[Results]:
        """Return the results of background attempts that were written since the last call, for a task to count."""
        return self._background_results.written()

    def _driver(self, lane: lane_driver.DrivenLane) -> lane_driver.LaneDriver:
        return lane_driver.LaneDriver(self._thread, lane, self._lanes.gate, self._require_jvm, self._with_worker_state)

    def _require_jvm(self) -> None:
        if self._is_orphan:
            raise errors.Orphaned

    def _with_worker_state(self, results: Results) -> Results:
        """Add the worker's own state to results from the end of a task or slice, and return these results. Called in the loop.

        The state: accepting endpoints to report, seconds of own delay, requests that waited for hosts, difference of the
        clocks. If our own network is broken, forget all circuit breakers.
        """
        results.accepting = self._acceptances.to_report(results.accepting, time.monotonic())
        results.own_delay_s = self._endpoint_clock.own_delay_s()
        results.waited_for_hosts = self._memory.hosts.drain_delayed()
        results.clock_ahead_s = self.now_s.ahead_s
        if results.reach.is_broken():
            self._memory.breakers.clear()
        return results

    async def _begin_direct_lane(
        self, source: registries.RegistrySource, suppressed: deferral.SuppressedEndpoints, ended: completed_work.CompletedKeys
    ) -> direct_lane.DirectLane:
        return self._lanes.direct(self._registry_from(source), suppressed, ended, pauses_partitions=True)

    async def _begin_batch_lane(
        self, source: registries.RegistrySource, suppressed: deferral.SuppressedEndpoints, ended: completed_work.CompletedKeys
    ) -> batch_lane.BatchLane:
        return self._lanes.batch(self._registry_from(source), suppressed, ended)

    async def _begin_collecting(
        self, source: registries.RegistrySource, shards: int, immediate_flush_s: float
    ) -> batch_collect.Collector:
        return self._lanes.collector(self._registry_from(source), shards=shards, immediate_flush_s=immediate_flush_s)

    async def _registry_for_leases(self, source: registries.RegistrySource) -> registries.Registry:
        return self._registry_from(source)

    def _registry_from(self, source: registries.RegistrySource) -> registries.Registry:
        return self._follow(source.registry(self._registry))

    def _follow(self, registry: registries.Registry) -> registries.Registry:
        self._registry = registry
        self._retry.follow(registry)
        return registry
