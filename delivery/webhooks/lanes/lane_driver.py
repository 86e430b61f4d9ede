"""Run the coroutines of a lane from the thread of a Spark task, and yield the results while the coroutines run.

Two threads of a worker process take part. Tasks run in Spark's thread. The thread of the event loop delivers.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import queue
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, Protocol, TypeVar

import uvloop

from delivery.webhooks.lanes import drain_gate, retry_lane
from delivery.webhooks.results import completed_work
from delivery.webhooks.results.task_results import Results
from delivery.webhooks.routing import registries

RESULTS_EVERY_S = 0.05
"""Seconds between two sets of results of a running task. Yielded results are in Kafka some 10 ms later. Deliveries with these
results are not repeated if this process is killed."""
DRAIN_S = 2.5
"""Most seconds for which a failing task waits for attempts in flight. Deliveries whose results arrive in time are not
repeated."""
LEASES_AT_ONCE = 16
"""Most leases (sets of retry entries) that are read before the results so far are written."""
Returned = TypeVar("Returned")


class LoopThread:
    """An event loop on a thread of its own.

    The loop runs between micro-batches too, so it closes idle connections in time and keeps other connections alive. The thread
    of a Spark task gives coroutines to the loop. While the coroutines run, the task's thread waits for results, writes them to
    Kafka, and reads the next records.
    """

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="deliveries", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Returned]) -> Returned:
        """Run `work` in the loop, wait for its end, and return its result or raise its error. Not called in the loop."""
        return self.begin(work).result()

    def call(self, function: Callable[[], Returned]) -> Returned:
        """Call `function` in the loop, and return its result or raise its error. Not called in the loop."""

        async def called() -> Returned:
            return function()

        return self.run(called())

    def begin(self, work: Coroutine[Any, Any, Returned]) -> concurrent.futures.Future[Returned]:
        """Begin `work` in the loop; return the future of its result at once."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def call_soon(self, function: Callable[[], object]) -> None:
        """Schedule a call of `function` in the loop."""
        self.loop.call_soon_threadsafe(function)

    def close(self) -> None:
        """Stop the loop, and wait for the end of its thread."""
        self.call_soon(self.loop.stop)
        self._thread.join()
        self.loop.close()


def _unchanged(results: Results) -> Results:
    return results


class DrivenLane(Protocol):
    """A lane in one Spark task, such as DirectLane or BatchLane. `submit`, `drain` and `finish` return each result once."""

    async def submit(self, chunk: Iterable[Any], /) -> Results:
        """Begin to deliver some records or batches; return the results that are ready, also of earlier records or batches."""

    async def finish(self) -> Results:
        """Wait until all deliveries have an outcome; return the remaining results."""

    def drain(self) -> Results:
        """Return the outcomes since the last call of `submit`, `drain` or `finish`. Does not wait."""

    def abandon(self) -> None:
        """Send nothing more, and cancel the attempts that the task awaits. Called at the end of each task."""


class LaneDriver:
    """Run one lane for one Spark task. `results` is called in the task's thread.

    `gate` is the drain gate through which the lane sends. `require_jvm` raises errors.Orphaned if the JVM is gone. `complete`
    adds the worker's own state, such as its own delay, to a Results. `complete` is called for each Results that is yielded
    while `DrivenLane.finish` runs, and for the last Results. Results after a failure are yielded without this state. `complete`
    is called in the event loop, because attempts and other tasks change the worker's state there.
    """

    def __init__(
        self,
        thread: LoopThread,
        lane: DrivenLane,
        gate: drain_gate.DrainGate,
        require_jvm: Callable[[], None],
        complete: Callable[[Results], Results],
    ) -> None:
        self._thread = thread
        self._lane = lane
        self._gate = gate
        self._require_jvm = require_jvm
        self._complete = complete

    def results(self, chunks: Iterable[Iterable[Any]]) -> Iterator[Results]:
        """Yield the results of all `chunks` of records or batches.

        After a failure, begin no attempt, yield the results of attempts that end within DRAIN_S, and raise the failure.
        """
        try:
            for chunk in chunks:
                self._require_jvm()
                yield from self._results_of(self._lane.submit(chunk))
            yield from self._results_of(self._lane.finish(), self._complete)
        except Exception:  # a fault of ours, or the JVM is gone: its closed pipe may be seen before the signal arrives
            yield from self._last_results()
            raise  # if the task succeeded, a JVM that still listens would commit records that were not begun
        finally:  # done, or the task no longer reads the results
            self._thread.call_soon(self._lane.abandon)

    def _results_of(
        self, work: Coroutine[Any, Any, Results], complete: Callable[[Results], Results] = _unchanged
    ) -> Iterator[Results]:
        """Yield new outcomes, if there are any, each RESULTS_EVERY_S while `work` runs, then the result of `work`.

        `complete` is called in the loop with each Results, and returns the Results that is yielded.
        """
        ready: queue.SimpleQueue[Results | None] = queue.SimpleQueue()
        running = self._thread.begin(self._run(work, ready.put, complete))
        running.add_done_callback(lambda _: ready.put(None))
        try:
            yield from iter(ready.get, None)
            yield running.result()
        finally:  # the task no longer reads the results
            running.cancel()

    async def _run(
        self,
        work: Coroutine[Any, Any, Results],
        report: Callable[[Results], None],
        complete: Callable[[Results], Results],
    ) -> Results:
        """Await `work` in the event loop, and return `complete(results)` with the results of `work`.

        While `work` runs, drain the lane's new outcomes each RESULTS_EVERY_S. If there are any, call
        `report(complete(outcomes))`. This check runs in the event loop: a call from the task's thread would wait while the loop
        is busy. If the JVM is gone, cancel `work` and raise errors.Orphaned.
        """
        running = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait([running], timeout=RESULTS_EVERY_S))[0]:
                ended = self._lane.drain()
                if ended.outcomes or ended.batches:
                    report(complete(ended))
                self._require_jvm()
            return complete(running.result())
        finally:
            running.cancel()

    def _last_results(self) -> Iterator[Results]:
        """Begin no further attempt. Wait at most DRAIN_S for attempts in flight, and yield their results."""
        closing = self._thread.begin(self._gate.close(DRAIN_S))
        while not concurrent.futures.wait([closing], RESULTS_EVERY_S).done:
            yield self._thread.call(self._lane.drain)
        yield self._thread.call(self._lane.drain)


class LeaseDriver:
    """Start the leases of each task of the retry lane, and yield their results. Called in the thread of a task.

    `complete` adds the state of the worker to the last results of a task. `complete` is called in the event loop.
    """

    def __init__(self, thread: LoopThread, retry: retry_lane.RetryLane, complete: Callable[[Results], Results]) -> None:
        self._thread = thread
        self._retry = retry
        self._complete = complete

    def results(
        self,
        leases: Iterable[bytes],
        registry: registries.Registry,
        settle_s: float,
        ended: completed_work.CompletedKeys,
    ) -> Iterator[retry_lane.LeaseResults]:
        """Start the leases of one task, and yield results until all have ended, or until `settle_s` after the last start.

        Leases and deliveries whose keys are in `ended` were completed by an earlier run of the micro-batch, and are left out.
        """
        written = iter(leases)
        while chunk := list(itertools.islice(written, LEASES_AT_ONCE)):
            yield self._thread.run(self._retry.start(chunk, registry, settle_s, ended))
        deadline = time.monotonic() + settle_s
        while not self._thread.run(self._retry.wait_for_leases(RESULTS_EVERY_S)) and time.monotonic() < deadline:
            if (ended_now := self.drain()) is not None:
                yield ended_now
        yield self._thread.run(self._finish_task())

    def drain(self) -> retry_lane.LeaseResults | None:
        """Return the results that were neither returned nor yielded before; return None if there are none. Does not wait.

        A lease in flight gives only its accepted deliveries, and the endpoints that responded 410 Gone. All its other results
        come when the lease has ended.
        """
        return self._thread.call(self._retry.drain)

    async def _finish_task(self) -> retry_lane.LeaseResults:
        last = await self._retry.finish_task(0.0)
        self._complete(last.results)
        return last
