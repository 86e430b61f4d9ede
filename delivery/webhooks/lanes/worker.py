"""Run the tasks of all lanes in one Python worker process.

A Worker is created lazily in the process that uses it, because its state can neither be pickled nor survive a fork. Spark forks
at most two worker processes for each task slot, and reuses them for later tasks (`spark.python.worker.reuse`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from delivery import errors
from delivery.model import Record
from delivery.registry_model import EndpointId, Revision
from delivery.webhooks.lanes import (
    batch_collect,
    gc_tuning,
    lane_driver,
    realtime_lane,
    retry_lane,
    worker_plan,
    worker_state,
)
from delivery.webhooks.results import background_results, completed_work
from delivery.webhooks.results.task_results import Results
from delivery.webhooks.routing import paused_partitions, registries
from delivery.webhooks.scheduling.unhealthy import NONE_UNHEALTHY, Unhealthy
from delivery.webhooks.state import chunking

BATCH_BYTES_AT_ONCE = 1024 * 1024
"""Most bytes of batches that are read before the results so far are written. A larger batch is read alone. With a bound of 16
batches instead, results of small batches were written each 7 ms, which took a quarter of the work on these batches
(docs/benchmarks/)."""
IDLE_CHECK_S = 0.02
"""Seconds between two checks of an ending worker for attempts in flight."""


class Worker:
    """Run the tasks of all lanes in one worker process. Most methods are called in the thread of a task.

    `worker_state` keeps the parts that outlive a task. `lane_driver` runs a lane while its task reads and writes.
    `lane_factory` builds the lane of each task.
    """

    def __init__(self, plan: worker_plan.Plan) -> None:
        self._collector = gc_tuning.GarbageCollector(time.monotonic)
        self._state = worker_state.WorkerState(plan)
        self._thread, self._lanes, self._retry = self._state.thread, self._state.lanes, self._state.retry
        self._leases = lane_driver.LeaseDriver(self._thread, self._retry, self._state.complete)
        self._is_orphan = False
        self.now_s = self._state.now_s
        """The driver's clock."""

    def close(self) -> None:
        """Cancel the leases, close the connections and end the event loop. For tests: Spark ends a worker's process instead."""
        self._state.close()

    @property
    def revision(self) -> Revision:
        """Return the newest revision of the registry that a task used in this process; return 0 if no task has used any."""
        return self._state.revision

    def begin_task(self, driver_s: float | None, workers: int | None = None) -> None:
        """Prepare for a task: freeze live objects, sometimes after a garbage collection (`gc_tuning`); apply the parameters.

        Called before any other method of the task. `driver_s` is the driver's time when the driver created the task, in seconds
        since the epoch. A task that serves several micro-batches has no such time: `driver_s` is None, and the clock `now_s` is
        not corrected. `workers` is the number of workers that share the limits of hosts and endpoints. If `workers` is None,
        the number stays unchanged.
        """
        self._collector.freeze()
        if driver_s is not None:
            self.now_s.record_stamp(driver_s)
        if workers is not None and workers != self._lanes.limits.workers:
            self._thread.call(lambda: self._state.set_workers(workers))

    def deliver(
        self,
        batches: Iterable[Iterable[Record]],
        source: registries.RegistrySource,
        unhealthy: Unhealthy = NONE_UNHEALTHY,
        ended: completed_work.CompletedKeys = frozenset(),
    ) -> Iterator[Results]:
        """Deliver the records of a task of the direct lane by the registry in `source`; yield their results.

        Deliveries to suppressed endpoints are deferred to the retry lane. Deliveries in `ended` were completed by an earlier
        run of the micro-batch, and are left out. Called in the task's thread, by one task at a time. Attempts continue while
        the task reads the next records.
        """
        lane = self._thread.call(lambda: self._lanes.direct(self._state.registry_from(source), unhealthy, ended))
        yield from self._driver(lane).results(batches)

    def realtime(
        self,
        registry: Callable[[], registries.Registry],
        suppressed: Mapping[EndpointId, str],
        ended: completed_work.CompletedKeys,
        next_offsets: Mapping[realtime_lane.Place, int],
    ) -> realtime_lane.RealtimeSlices:
        """Return a real-time lane for a long task.

        A slice is the records of about one second. `registry` is called in the event loop when a slice begins. `suppressed` is
        read in the loop for each delivery, and may be changed there. The driver's list of late endpoints is not used: it
        shortens waits at a task's end, and here no record waits for the end of a slice. Deliveries in `ended` were completed by
        an earlier run of the query, and are left out. `next_offsets` has, by topic and partition, the offset at which the task
        begins to read, where this offset is known.
        """

        def begin() -> realtime_lane.Slice:
            lane = self._lanes.direct(self._state.follow(registry()), Unhealthy(suppressed, {}), ended)
            return realtime_lane.Slice(lane, self._lanes.gate)

        paused = paused_partitions.PausedPartitions(self._lanes.can_read)
        return realtime_lane.RealtimeSlices(self._thread.loop, begin, next_offsets, self._state.complete, paused)

    def call_in_loop(self, change: Callable[[], None]) -> None:
        """Schedule a call of `change` in the event loop. Called in any thread."""
        self._thread.call_soon(change)

    def collect(
        self, batches: Iterable[Iterable[Record]], source: registries.RegistrySource, *, shards: int, immediate_flush_s: float
    ) -> Iterator[batch_collect.Collected]:
        """Collect the records of a task of the batch lane into segments, each for one shard, by the registry in `source`.

        Yield the segments, with the skips and rejections. The last Collected also has the offset receipts: the handled offsets.

        `shards` is the number of the lane's shards. Events of endpoints with a `max_wait_s` of at most `immediate_flush_s` are
        sent without a wait.
        Called in the task's thread, by one task at a time.
        """
        collector = self._thread.call(
            lambda: self._lanes.collector(self._state.registry_from(source), shards=shards, immediate_flush_s=immediate_flush_s)
        )
        for records in batches:
            yield self._thread.run(collector.add(records))
        yield collector.finish()

    def deliver_batches(
        self,
        batches: Iterable[bytes],
        source: registries.RegistrySource,
        unhealthy: Unhealthy = NONE_UNHEALTHY,
        ended: completed_work.CompletedKeys = frozenset(),
    ) -> Iterator[Results]:
        """Deliver batches that shards of the batch lane have sent, by the registry in `source`; yield the results.

        Batches to suppressed endpoints are deferred to the retry lane. Events in `ended`, which an earlier run completed, are
        left out. Called in the task's thread, by one task at a time.
        """
        chunks = chunking.chunks(batches, len, BATCH_BYTES_AT_ONCE)
        lane = self._thread.call(lambda: self._lanes.batch(self._state.registry_from(source), unhealthy, ended))
        yield from self._driver(lane).results(chunks)

    @property
    def is_orphan(self) -> bool:
        """Return True if the JVM of this worker is gone."""
        return self._is_orphan

    def mark_orphaned(self) -> None:
        """Record that the JVM of this worker is gone. Called in the task's thread, by the handler of a signal.

        A delivering task of the direct, batch or real-time lane then begins no further attempt, waits at most
        `lane_driver.DRAIN_S` for its attempts in flight, and fails. A task of the retry lane begins no further attempt, and
        reports its other entries as requeued.
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

        Called in the task's thread, by one task at a time. Leases and deliveries in `ended` were completed by an earlier run of
        the micro-batch, and are left out. The call waits at most `settle_s` after it has begun the last lease. A lease that is
        still in flight then continues after the task: a later call, or `drain_leases`, returns its other results. If the task
        fails, results that were not written to Kafka are lost. Their leases expire, and the shards lease the entries again.
        """
        registry = self._thread.call(lambda: self._state.registry_from(source))
        yield from self._leases.results(leases, registry, settle_s, ended)

    def drain_leases(self) -> retry_lane.LeaseResults | None:
        """Return the results of leases that neither `retry` nor this method has returned yet, or None if there are none.

        Does not wait. A lease in flight gives only its accepted deliveries, and the endpoints that responded 410 Gone. Its
        other results come when the lease has ended.

        Called in the thread of a task of any lane, because this process may get no task of the retry lane for long. A lease
        whose report stays away for `ShardPolicy.lease_timeout_s` expires, and its entries are leased again. Each result is
        returned once, so the calling task must write the results and reports to Kafka. The task must not hand these deliveries
        over to the retry lane again, because the reports already say which entries are requeued.
        """
        return self._leases.drain()

    def wait_until_idle(self, within_s: float) -> None:
        """Wait at most `within_s` until no background attempt and no lease is in flight. Called before the worker's end.

        The wait includes the writing of the results of background attempts, and ends early if the JVM is gone. No further
        attempt of a lease begins: the report of the lease requeues the remaining entries.
        """
        self._thread.call_soon(self._retry.stop)
        deadline = time.monotonic() + within_s
        while self._state.is_busy and time.monotonic() < deadline and not self._is_orphan:
            time.sleep(IDLE_CHECK_S)

    def write_background_results_by(self, write: background_results.Write) -> None:
        """Set the function that writes results of background attempts. The function is called on a thread of its own."""
        self._state.background_results.write = write

    def written_background_results(self) -> list[Results]:
        """Return the results of background attempts that were written since the last call, for a task to count."""
        return self._state.background_results.written()

    def _driver(self, lane: lane_driver.DrivenLane) -> lane_driver.LaneDriver:
        return lane_driver.LaneDriver(self._thread, lane, self._lanes.gate, self._require_jvm, self._state.complete)

    def _require_jvm(self) -> None:
        if self._is_orphan:
            raise errors.Orphaned
