"""Deliver records as they arrive during a long task: the direct lane in slices, without Spark.

A task of the real-time lane lasts for minutes, but `DirectLane` returns its receipts and observations only at its end. So each
second's records go to a `DirectLane` of their own, a slice. A slice finishes while the next one begins, and no record waits for
that (docs/adr/0040).

    task's thread ── feed ─► waiting ─► slice ─► finishing slice ─► results ── next_results ─► writer's thread
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from delivery.model import Record
from delivery.webhooks.lanes import direct_lane, drain_gate
from delivery.webhooks.results.results import Results
from delivery.webhooks.routing.intake import Receipt

log = logging.getLogger(__name__)

SLICE_S = 1.0
"""Seconds until a slice ends. Its receipts report a second later which records were handled."""
CHECK_EVERY_S = 0.05
"""Seconds between two checks for results. Results that leave are in Kafka some 10 ms later, and are not repeated after a
crash."""
MAX_WAITING = 500
"""Records that wait for the event loop. Beyond this bound the task's thread stops reading, and so does Spark's source."""
MAX_UNWRITTEN = 200
"""Results that wait for Kafka: some 10 s of them. Beyond this bound nothing more is read, because a crash would repeat it."""
Place = tuple[str, int]
"""A topic and a partition."""


class Slice(NamedTuple):
    """One second of the lane."""

    lane: direct_lane.DirectLane
    gate: drain_gate.DrainGate


class SliceResults(NamedTuple):
    """Results of some records. With receipts, they are the last of their slice."""

    results: Results
    receipts: Sequence[Receipt] = ()


@dataclass(slots=True, eq=False)
class _OpenSlice:
    """A slice that has records."""

    slice: Slice
    since: float
    first_offsets: dict[Place, int] = field(default_factory=dict)


class RealtimeLane:
    """Deliver records from the task's thread in the event loop `loop`, and queue the results.

    `begin` creates a slice, in the loop. `next_offsets` has, where known, the offset of the next record of a partition. With it
    a slice's receipt also covers offsets without a record, such as the end of a transaction. `with_worker_state` completes the
    last results of a slice.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        begin: Callable[[], Slice],
        next_offsets: Mapping[Place, int],
        with_worker_state: Callable[[Results], Results],
        *,
        slice_s: float = SLICE_S,
    ) -> None:
        self._loop = loop
        self._begin = begin
        self._with_worker_state = with_worker_state
        self._slice_s = slice_s
        self._next = dict(next_offsets)
        self._waiting: collections.deque[Record] = collections.deque()
        self._arrived = asyncio.Event()
        self._ended: queue.SimpleQueue[SliceResults | None] = queue.SimpleQueue()
        self._may_read = threading.Condition()
        self._unwritten = 0
        self._is_paused = self._is_over = False
        self._failure: BaseException | None = None
        self._finishing: dict[asyncio.Task[None], _OpenSlice] = {}
        self._checked_at = loop.time()
        self._current: _OpenSlice | None = None
        self._must_end_slice = False
        self._running = asyncio.run_coroutine_threadsafe(self._run(), loop)
        self._checking = asyncio.run_coroutine_threadsafe(self._check(), loop)

    # Called in the task's thread.

    def feed(self, records: Sequence[Record]) -> bool:
        """Queue records for the event loop, waiting while too many are queued. Return False once the lane is stopped."""
        with self._may_read:
            self._may_read.wait_for(self._is_open)
        if self._failure is not None:
            raise self._failure
        if self._is_over:
            return False
        self._waiting.extend(records)
        self._loop.call_soon_threadsafe(self._arrived.set)
        return True

    def _is_open(self) -> bool:
        if self._is_over or self._failure is not None:
            return True
        return not self._is_paused and len(self._waiting) < MAX_WAITING and self._unwritten < MAX_UNWRITTEN

    # Called in any thread.

    @property
    def is_over(self) -> bool:
        """Return True if the lane is stopped. Records may have been dropped, so their task must not succeed."""
        return self._is_over

    @property
    def failure(self) -> BaseException | None:
        """Return our own fault that has ended the delivery, or None."""
        return self._failure

    def idle_s(self) -> float:
        """Return the seconds since the event loop last checked this lane."""
        return self._loop.time() - self._checked_at

    def pause(self, *, is_paused: bool) -> None:
        """Begin no further attempts until called with False."""
        if is_paused is not self._is_paused:
            self._is_paused = is_paused
            self._wake()

    def stop(self) -> None:
        """Begin nothing more for good. Records that wait for the loop stay in the queue: no receipt covers them.

        The queue is not cleared: `feed` may append later records, whose receipt would then cover the dropped ones.
        """
        self._is_over = True
        self._wake()

    def fail(self, failure: BaseException) -> None:
        """Begin nothing more, and let the task fail."""
        self._failure = self._failure or failure
        self._wake()

    def end_slice(self) -> None:
        """End the current slice at once, so that a new registry takes effect."""
        self._must_end_slice = True

    def next_results(self) -> SliceResults | None:
        """Return the next results, or None after the last. Blocks; for one thread."""
        ended = self._ended.get()
        if ended is not None:
            self._unwritten -= 1
            self._wake()
        return ended

    def finish(self) -> None:
        """Wait until each record has its outcome and all results are queued. Nothing may be fed afterwards."""
        try:
            asyncio.run_coroutine_threadsafe(self._finish(), self._loop).result()
        finally:
            self._ended.put(None)

    def close(self, timeout_s: float) -> None:
        """Begin no further attempts, wait for those in flight, and queue their results. For a task that failed."""
        try:
            asyncio.run_coroutine_threadsafe(self._close(timeout_s), self._loop).result(timeout_s + 1)
        except concurrent.futures.TimeoutError:
            log.warning("the slices of a failed real-time task did not end in time; their records are read again")
        finally:
            self._ended.put(None)

    def _wake(self) -> None:
        with self._may_read:
            self._may_read.notify_all()

    # Called in the event loop.

    async def _run(self) -> None:
        try:
            while True:
                await self._arrived.wait()
                self._arrived.clear()
                await self._deliver_waiting()
        except Exception as fault:  # a fault of ours: the task fails, and the query starts again
            log.exception("an unforeseen error in the real-time lane; its task fails, and the query starts again")
            self.fail(fault)

    async def _deliver_waiting(self) -> None:
        while self._waiting and not self._is_over:
            chunk = [self._waiting.popleft() for _ in range(min(len(self._waiting), direct_lane.RECORDS_BETWEEN_IO))]
            current = self._current = self._current or _OpenSlice(self._begin(), self._loop.time())
            for record in chunk:
                place = (record.topic, record.partition)
                if place not in current.first_offsets:
                    current.first_offsets[place] = self._next.get(place, record.offset)
                self._next[place] = record.offset + 1
            self._report(await current.slice.lane.submit(chunk))
            if len(self._waiting) < MAX_WAITING:
                self._wake()

    async def _check(self) -> None:
        try:
            while True:
                await asyncio.sleep(CHECK_EVERY_S)
                self._checked_at = self._loop.time()
                self._drain()
                self._end_slice_if_due()
        except Exception as fault:
            log.exception("an unforeseen error in the real-time lane; its task fails, and the query starts again")
            self.fail(fault)

    def _drain(self) -> None:
        for one in self._slices():
            self._report(one.lane.drain())

    def _slices(self) -> list[Slice]:
        return [one.slice for one in (*self._finishing.values(), self._current) if one is not None]

    def _end_slice_if_due(self) -> None:
        """End the current slice if it is due. Slices end one at a time, because each one has its own limits."""
        current = self._current
        if current is None:
            return
        is_due = self._loop.time() - current.since >= self._slice_s and not self._finishing
        if is_due or self._must_end_slice:
            self._current, self._must_end_slice = None, False
            self._begin_to_finish(current)

    def _begin_to_finish(self, one: _OpenSlice) -> asyncio.Task[None]:
        finishing = asyncio.ensure_future(self._finish_slice(one, list(self._finishing)))
        self._finishing[finishing] = one
        finishing.add_done_callback(self._has_finished)
        return finishing

    def _has_finished(self, finishing: asyncio.Task[None]) -> None:
        self._finishing.pop(finishing, None)
        if not finishing.cancelled() and (fault := finishing.exception()) is not None:
            self.fail(fault)

    async def _finish_slice(self, one: _OpenSlice, before: Sequence[asyncio.Task[None]]) -> None:
        """Queue the remaining results of a slice, then its receipts after those of the slices `before` it.

        A restarted query continues at the first gap between receipts. Records behind the gap would be read again and have two
        receipts.
        """
        results = self._with_worker_state(await one.slice.lane.finish())
        receipts, results.receipts = results.receipts, []
        for receipt in receipts:  # each begins where the one before ended
            receipt.first_offset = one.first_offsets[receipt.topic, receipt.partition]
        if before:
            self._report(results)
            results = Results()
            await asyncio.wait(before)
        self._report(results, receipts if self._failure is None else ())

    def _report(self, results: Results, receipts: Sequence[Receipt] = ()) -> None:
        if results.outcomes or results.rejections or receipts:
            self._unwritten += 1
            self._ended.put(SliceResults(results, receipts))

    async def _finish(self) -> None:
        while self._waiting and not self._is_over and self._failure is None:  # noqa: ASYNC110  # once a task
            await asyncio.sleep(CHECK_EVERY_S / 10)
        if self._current is not None:
            current, self._current = self._current, None
            self._begin_to_finish(current)
        while self._finishing:
            await asyncio.wait(list(self._finishing))
        self._end()
        if self._failure is not None:
            raise self._failure

    async def _close(self, timeout_s: float) -> None:
        self._is_over = True
        slices = self._slices()
        await asyncio.gather(*(one.gate.close(timeout_s) for one in slices))
        self._drain()
        self._end()
        for finishing in list(self._finishing):
            finishing.cancel()
        for one in slices:
            one.lane.abandon()

    def _end(self) -> None:
        self._running.cancel()
        self._checking.cancel()
