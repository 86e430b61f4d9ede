"""What one Python worker process keeps from micro-batch to micro-batch: event loop, connections, routing index.

Runs in the executors. Must not import pyspark or psycopg. Made lazily in the process that uses it: nothing here can be
pickled or survives a fork. Spark starts one worker per core, forks it once and reuses it (`spark.python.worker.reuse`).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

import cachetools
import uvloop

from delivery import errors
from delivery.model import Record, Revision
from delivery.webhooks.clocks import driver_clock, own_delay
from delivery.webhooks.http import transport
from delivery.webhooks.lanes import batch_collect, batch_lane, direct_lane, gc_tuning, realtime_lane, retry_lane, worker_plan
from delivery.webhooks.results import background_results, completed_work
from delivery.webhooks.results.results import Results
from delivery.webhooks.retries import health_hints
from delivery.webhooks.routing import registries
from delivery.webhooks.scheduling import (
    background_attempts,
    deferral,
    dispatch,
    drain,
    endpoint_clock,
    endpoint_queue,
    host_limits,
)
from delivery.webhooks.sending import sender
from delivery.webhooks.state import chunking

log = logging.getLogger(__name__)

MAX_PACES = 20_000
"""Endpoints whose pace is remembered; more than have one."""
MAX_ANSWER_TIMES = 20_000
"""Endpoints whose usual time to answer is remembered, those that were asked last."""
MAX_CIRCUITS = 20_000
"""Endpoints whose failures are remembered, those that failed last."""
BATCH_BYTES_AT_ONCE = 1024 * 1024
"""Batches of so many bytes are read before the results of those that have ended are written; one that is larger alone. By their
number, 16, small ones had their results written each 7 ms, which was a quarter of the work on them (docs/benchmarks/)."""
TURNS_AT_ONCE = 16
"""So many turns are read before the results of those that have ended are written."""
RESULTS_EVERY_S = 0.05
"""So often results leave while their task goes on. What has left is in Kafka some 10 ms later, and is not made again when this
process is killed."""
LAST_S = 1.0
"""So long a task that fails waits for what is under way: what ends by then is told, and is not made again."""
RESTS_S = 0.02
"""So often a worker that is to end looks whether anything goes on in it."""
Returned = TypeVar("Returned")


class _Begun(Protocol):
    """A lane's part of one task."""

    async def take(self, some: Iterable[Any], /) -> Results: ...
    async def finish(self) -> Results: ...
    def abandon(self) -> None: ...


class Worker:
    """One event loop on a thread of its own, and what lives in it."""

    def __init__(self, plan: worker_plan.Plan) -> None:
        self._garbage = gc_tuning.Garbage(time.monotonic)
        self._plan = plan
        self._limits = plan.limits
        self._registry: registries.Registry | None = None
        self._newest = Revision(0)
        self.now_s = driver_clock.DriverClock()
        self._acceptances = health_hints.Acceptances(plan.tell_accepted_every_s)
        # A thread, so that idle connections are closed and kept alive between micro-batches. Nothing competes for the
        # interpreter: while the loop works, the task's thread only waits.
        self._loop = uvloop.new_event_loop()
        self._memory = endpoint_queue.Memory(
            paces=cachetools.LRUCache(maxsize=MAX_PACES),
            hosts=host_limits.Hosts(plan.limits, self._loop.time),
            circuits=cachetools.LRUCache(maxsize=MAX_CIRCUITS),
            answer_times=cachetools.LRUCache(maxsize=MAX_ANSWER_TIMES),
        )
        self._thread = threading.Thread(target=self._loop.run_forever, name="deliveries", daemon=True)
        self._thread.start()
        self._judging, self._network = self._wait_for(self._open())
        self._sender = sender.Sender(
            self._network,
            self._plan.guard,
            timeout_s=self._plan.attempt_timeout_s,
            clock=self.now_s,
            judging=self._judging.time,
            max_retry_after_s=self._plan.max_retry_after_s,
        )
        self._gate = drain.Gate(self._sender)
        """Of the task that runs."""
        self._is_orphan = False
        self._retries: retry_lane.RetryLane | None = None
        self._late_results = background_results.BackgroundResults(lambda: self.revision)
        self._late = background_attempts.Late(
            self._plan.attempt_timeout_s, self._plan.limits.max_in_flight, self._late_results.put
        )
        self._late_results.start(self._late.forget)

    async def _open(self) -> tuple[endpoint_clock.EndpointClock, transport.Transport]:
        judging = endpoint_clock.EndpointClock(own_delay.OwnDelay())
        most = self._plan.max_connections
        return judging, transport.Transport(
            self._plan.guard, max_connections=most, judging=judging.time, most_to=self._memory.hosts.most_connections
        )

    def close(self) -> None:
        """Close the connections and end the loop. For whoever outlives its worker; Spark's processes do not."""
        if self._retries is not None:
            self._wait_for(self._retries.close())
        self._wait_for(self._network.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._late_results.close()
        self._loop.close()

    @property
    def revision(self) -> Revision:
        """No change of the registry after this revision has been known here."""
        if self._registry is not None:  # which may be an older one again, in a task that Spark runs again
            self._newest = max(self._newest, self._registry.newest)
        return self._newest

    def begin_task(self, driver_s: float | None, workers: int | None = None) -> None:
        """Record that a task begins, which the driver made at `driver_s` for so many `workers`. Called before anything else."""
        self._garbage.put_aside()
        if driver_s is not None:
            self.now_s.stamped(driver_s)
        if workers is not None and workers != self._limits.workers:
            self._wait_for(self._share_with(workers))

    async def _share_with(self, workers: int) -> None:
        self._limits = dataclasses.replace(self._limits, workers=workers)
        self._memory.hosts.share(self._limits)
        if self._retries is not None:
            self._retries.share(self._limits)

    def deliver(
        self,
        batches: Iterable[Iterable[Record]],
        source: registries.Source,
        held: deferral.Held = deferral.NOBODY_HELD,
        ended: completed_work.CompletedKeys = frozenset(),
    ) -> Iterator[Results]:
        """Deliver the records of a task by the registry in `source`; yield what has come of them, until each has its outcome.

        What is due to `held` goes to the retry lane. Called from the task's thread, by one task at a time. While it reads the
        next batch, what was begun goes on.
        """
        yield from self._carried(self._wait_for(self._begin(source, held, ended)), batches)

    def realtime(
        self,
        registry: Callable[[], registries.Registry],
        held: deferral.Held,
        ended: completed_work.CompletedKeys,
        next_offsets: Mapping[realtime_lane.Place, int],
    ) -> realtime_lane.RealtimeLane:
        """Return a lane for a task that lasts. `registry` and `held` are asked in the loop, where they may change meanwhile."""

        def begin() -> realtime_lane.Slice:
            self._registry = registry()
            hand_over = self._handover(held)
            dispatcher = self._dispatcher(hand_over)
            lane = direct_lane.DirectLane(self._registry, dispatcher, hand_over, self._plan.layout, ended)
            return realtime_lane.Slice(lane, self._gate)

        return realtime_lane.RealtimeLane(self._loop, begin, next_offsets, self._learned_from)

    def in_loop(self, change: Callable[[], None]) -> None:
        """Have `change` called in the event loop, soon."""
        self._loop.call_soon_threadsafe(change)

    def collect(
        self, batches: Iterable[Iterable[Record]], source: registries.Source, *, shards: int, pass_through_s: float
    ) -> Iterator[batch_collect.Collected]:
        """Collect, by the registry in `source`, what a task's records bring to endpoints in batch mode. Called as `deliver`."""
        begun = self._wait_for(self._begin_collecting(source, shards, pass_through_s))
        for records in batches:
            yield self._wait_for(begun.take(records))
        yield begun.finish()

    def deliver_batches(
        self,
        batches: Iterable[bytes],
        source: registries.Source,
        held: deferral.Held = deferral.NOBODY_HELD,
        ended: completed_work.CompletedKeys = frozenset(),
    ) -> Iterator[Results]:
        """Deliver batches that have left their shards, by the registry in `source`. Called as `deliver` is."""
        some = chunking.chunks(batches, len, BATCH_BYTES_AT_ONCE)
        yield from self._carried(self._wait_for(self._begin_batches(source, held, ended)), some)

    @property
    def is_orphan(self) -> bool:
        """Whether the JVM is gone."""
        return self._is_orphan

    def orphaned(self) -> None:
        """Take note, in the task's thread, that the JVM is gone. The task fails when what is under way has ended."""
        self._is_orphan = True

    def retry(
        self,
        turns: Iterable[bytes],
        source: registries.Source,
        settle_s: float,
        ended: completed_work.CompletedKeys = frozenset(),
    ) -> Iterator[retry_lane.Ended]:
        """Deliver turns that have left their shards, by the registry in `source`; yield what has ended.

        Called as `deliver` is, but what has not ended after `settle_s` goes on, and is yielded by a later call. A task that
        fails takes with it what it was given: the shards let those turns leave again.
        """
        retries, registry = self._wait_for(self._retrying(source))
        written = iter(turns)
        while some := list(itertools.islice(written, TURNS_AT_ONCE)):
            yield self._wait_for(retries.take(some, registry, settle_s, ended))
        deadline = time.monotonic() + settle_s
        while not self._wait_for(retries.wait(RESULTS_EVERY_S)) and time.monotonic() < deadline:
            if (some_ended := self.ended_turns()) is not None:
                yield some_ended
        last = self._wait_for(retries.settle(0.0))
        self._learned_from(last.results)
        yield last

    def ended_turns(self) -> retry_lane.Ended | None:
        """Return what has come of turns of earlier `retry` calls that have ended by now; None: there is none. Does not wait.

        For tasks of the other lanes: this process may get none of the retry lane's for long, and a turn that is not reported
        within `away_s` leaves again and repeats. Called as `deliver` is. What is returned is told here only: the task writes
        its rows and reports as one of the retry lane does; nothing of it is handed over by `rows.postponed`, since the reports
        say what comes back.
        """
        return None if self._retries is None else self._wait_for(self._ended_turns(self._retries))

    async def _ended_turns(self, retries: retry_lane.RetryLane) -> retry_lane.Ended | None:
        return retries.ended()

    def rest(self, within_s: float) -> None:
        """Wait until nothing goes on beside the task, and all is written but for turns; no longer than `within_s`.

        Of turns nothing more is begun: what is left of them comes back, as their reports say.
        """
        if self._retries is not None:
            self._loop.call_soon_threadsafe(self._retries.stop)
        deadline = time.monotonic() + within_s
        while self._goes_on() and time.monotonic() < deadline and not self._is_orphan:
            time.sleep(RESTS_S)

    def _goes_on(self) -> bool:
        return not self._late.is_over or (self._retries is not None and self._retries.is_busy)

    def write_late_by(self, write: background_results.Write) -> None:
        """Have `write` called with the results of attempts that outlived their task, on a thread of its own."""
        self._late_results.write = write

    def written_late(self) -> list[Results]:
        """Return what came of attempts that had gone on alone and is written, for a task to take note of it."""
        return self._late_results.written()

    def _carried(self, begun: _Begun, given: Iterable[Iterable[Any]]) -> Iterator[Results]:
        """Yield what comes of all that is given. Where that fails, what is under way and ends soon comes before the failure."""
        try:
            for some in given:
                self._require_jvm()
                yield from self._results_of(begun.take(some), begun)
            yield from map(self._learned_from, self._results_of(begun.finish(), begun))
        except Exception:  # the JVM is gone, which its pipe may tell before the signal does; or a fault of ours
            yield from self._last_results_of(begun)
            raise  # never as if it had ended well: a JVM that still listens would commit what was not begun
        finally:  # done, or nobody reads the results any more
            self._loop.call_soon_threadsafe(begun.abandon)

    def _results_of(self, work: Coroutine[Any, Any, Results], begun: _Begun) -> Iterator[Results]:
        """Yield what `work` returns; while it lasts, each RESULTS_EVERY_S what has come by then."""
        told: queue.SimpleQueue[Results | None] = queue.SimpleQueue()
        running = asyncio.run_coroutine_threadsafe(self._tell(work, begun, told.put), self._loop)
        running.add_done_callback(lambda _: told.put(None))
        try:
            yield from iter(told.get, None)
            yield running.result()
        finally:  # nobody reads the results any more
            running.cancel()

    async def _tell(self, work: Coroutine[Any, Any, Results], begun: _Begun, tell: Callable[[Results], None]) -> Results:
        """Return what `work` returns; while it lasts, tell each RESULTS_EVERY_S what has come by then.

        In the loop, which is busy: were the task's thread to ask for it, it would wait as long again for the loop to answer.
        """
        running = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait([running], timeout=RESULTS_EVERY_S))[0]:
                some = await begun.take(())
                if some.outcomes or some.batches:
                    tell(some)
                self._require_jvm()
            return running.result()
        finally:
            running.cancel()

    def _require_jvm(self) -> None:
        if self._is_orphan:
            raise errors.Orphaned

    def _last_results_of(self, begun: _Begun) -> Iterator[Results]:
        """Begin nothing more; yield what comes of what is under way, for LAST_S at most."""
        closing = asyncio.run_coroutine_threadsafe(self._gate.close(LAST_S), self._loop)
        while not concurrent.futures.wait([closing], RESULTS_EVERY_S).done:
            yield self._wait_for(begun.take(()))
        yield self._wait_for(begun.take(()))

    def _wait_for(self, work: Coroutine[Any, Any, Returned]) -> Returned:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _learned_from(self, results: Results) -> Results:
        """Take note of a task's last results. Forget what the circuits know, if it was our own network that failed."""
        results.accepting = self._acceptances.to_report(results.accepting, time.monotonic())
        results.own_delay_s = self._judging.own_delay_s()
        results.waited_for_hosts = self._memory.hosts.waited()
        results.clock_ahead_s = self.now_s.ahead_s
        if results.reach.is_broken():
            self._memory.circuits.clear()
        return results

    async def _begin(
        self, source: registries.Source, held: deferral.Held, ended: completed_work.CompletedKeys
    ) -> direct_lane.DirectLane:
        hand_over = self._handover(held)
        return direct_lane.DirectLane(self._by(source), self._dispatcher(hand_over), hand_over, self._plan.layout, ended)

    async def _begin_batches(
        self, source: registries.Source, held: deferral.Held, ended: completed_work.CompletedKeys
    ) -> batch_lane.BatchLane:
        hand_over = self._handover(held)
        return batch_lane.BatchLane(self._by(source), self._dispatcher(hand_over), hand_over, ended)

    async def _retrying(self, source: registries.Source) -> tuple[retry_lane.RetryLane, registries.Registry]:
        if self._retries is None:
            self._retries = retry_lane.RetryLane(
                self._sender,
                self._limits,
                paces=self._memory.paces,
                known_hosts=self._memory.hosts,
                clock=asyncio.get_running_loop().time,
                now_s=self.now_s,
                registry_max_age_s=self._plan.registry_max_age_s,
            )
        return self._retries, self._by(source)

    async def _begin_collecting(self, source: registries.Source, shards: int, pass_through_s: float) -> batch_collect.Collector:
        now_ms = int(self.now_s() * 1000)
        return batch_collect.Collector(
            self._by(source), self._plan.layout, shards=shards, now_ms=now_ms, pass_through_s=pass_through_s
        )

    def _by(self, source: registries.Source) -> registries.Registry:
        self._registry = source.registry(self._registry)
        return self._registry

    def _handover(self, held: deferral.Held) -> deferral.Handover:
        return deferral.Handover(held, self._memory.circuits, self._late, clock=self._loop.time, now_s=self.now_s)

    def _dispatcher(self, hand_over: deferral.Handover) -> dispatch.Dispatcher[Any]:
        self._gate = drain.Gate(self._sender)
        return dispatch.Dispatcher(
            self._gate,
            self._limits,
            self._plan.quick_retry,
            hand_over,
            self._late,
            memory=self._memory,
            clock=self._loop.time,
            judging=self._judging.time,
        )


_workers: dict[worker_plan.Plan, Worker] = {}


def of(plan: worker_plan.Plan) -> Worker:
    """Return this process's worker for `plan`, made on first use."""
    worker = _workers.get(plan)
    if worker is None:
        worker = _workers[plan] = Worker(plan)
    return worker
