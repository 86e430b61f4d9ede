"""Deliver records as they arrive during a long Spark task. The records of each second go to a DirectLane of their own, a slice.

A Spark task of the real-time lane lasts for minutes, but a DirectLane returns its offset receipts only at its end. An offset
receipt says which offsets of a partition were handled. Slices give receipts about once a second, or later if a slice takes long
to finish. A slice finishes while the next slice begins, and no record waits for the end of a slice (docs/adr/0040).

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
from delivery.webhooks.results.task_results import Results
from delivery.webhooks.routing import paused_partitions
from delivery.webhooks.routing.intake import Receipt

log = logging.getLogger(__name__)

SLICE_S = 1.0
"""Seconds after which a slice ends, unless an earlier slice is still finishing. `end_slice` ends a slice sooner. The receipts
follow when all records of the slice and of earlier slices have an outcome."""
CHECK_EVERY_S = 0.05
"""Seconds between two checks for results and for the end of a slice. Results are queued only at a check and at the end
of a slice. If each record's results were queued at once, the writer's thread would wake for each record, which took a tenth of
a worker's CPU at 1,000 events a second. Queued results are in Kafka some 10 ms later. A crash does not repeat a delivery whose
result is in Kafka."""
MAX_WAITING = 500
"""Number of records that may wait for the event loop. At this number the task's thread stops reading, and Spark's source then
stops too."""
MAX_UNWRITTEN = 200
"""Number of SliceResults (results of some 10 s) that may wait to be written to Kafka. At this number the task stops reading
records, because a crash would repeat the deliveries of unwritten results."""
UNFORESEEN = (
    "an unforeseen error in a task of lane realtime: the task fails, and the lane restarts its query. Nothing is lost. Send "
    "this traceback to the maintainers of the platform"
)
"""Log message when a task fails by a fault of the platform."""
Place = paused_partitions.Place


class Slice(NamedTuple):
    """The DirectLane that delivers the records of one second, and the drain gate that its requests pass."""

    lane: direct_lane.DirectLane
    gate: drain_gate.DrainGate


class SliceResults(NamedTuple):
    """Results of some records of one slice.

    The last SliceResults of a slice has offset receipts, which say which offsets the slice has handled. If the lane has failed,
    the last SliceResults has no receipts, and the records are read again.
    """

    results: Results
    receipts: Sequence[Receipt] = ()


@dataclass(slots=True, eq=False)
class _OpenSlice:
    """A slice that takes records or finishes, with its results that are not queued for the writer yet."""

    slice: Slice
    since: float
    """When the slice began, by the event loop's clock."""
    first_offsets: dict[Place, int] = field(default_factory=dict)
    """By partition, the offset at which the slice's receipt begins."""
    is_taking: bool = False
    """True while the slice takes records, which may wait for a schema or for the dispatcher. The slice must not end then."""
    unqueued: Results = field(default_factory=Results)
    """Outcomes, rejections and batch records that are not queued for the writer yet. The next check (CHECK_EVERY_S), or the end
    of the slice, queues them."""

    def add(self, results: Results) -> None:
        """Add outcomes, rejections and batch records to `unqueued`."""
        self.unqueued.outcomes += results.outcomes
        self.unqueued.rejections += results.rejections
        self.unqueued.batch_records += results.batch_records

    def take_unqueued(self) -> Results:
        """Return `unqueued`, and empty it."""
        results, self.unqueued = self.unqueued, Results()
        return results


class RealtimeSlices:
    """Take records from the task's thread, deliver them in the event loop `loop`, and queue the results for the writer.

    `begin` creates a slice, in the loop. `next_offsets` has the offset at which the task begins to read, for each partition
    where this offset is known. With this offset the first receipt also covers offsets without a record, such as the end of a
    transaction. `with_worker_state` adds the worker's own state to the results with which a slice's DirectLane finishes.

    A record whose schema cannot be read now pauses its partition. This record and all later records of the partition are
    dropped, and no receipt covers them, so the next query reads them again. All other partitions are delivered. `paused` keeps
    the paused partitions.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        begin: Callable[[], Slice],
        next_offsets: Mapping[Place, int],
        with_worker_state: Callable[[Results], Results],
        paused: paused_partitions.PausedPartitions,
        *,
        slice_s: float = SLICE_S,
    ) -> None:
        self._loop = loop
        self._begin = begin
        self._with_worker_state = with_worker_state
        self.paused = paused
        self._slice_s = slice_s
        self._next = dict(next_offsets)
        self._waiting: collections.deque[Record] = collections.deque()
        self._arrived = asyncio.Event()
        self._ended: queue.SimpleQueue[SliceResults | None] = queue.SimpleQueue()
        self._may_read = threading.Condition()
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
        """Queue records for the event loop. Wait while too many records or results are queued, or the lane is paused.

        Return False, and queue nothing, once `stop` or `close` was called. Raise the failure of a lane that has failed.
        """
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
        return not self._is_paused and len(self._waiting) < MAX_WAITING and self._ended.qsize() < MAX_UNWRITTEN

    # Called in any thread.

    @property
    def is_over(self) -> bool:
        """Return True if `stop` or `close` was called. Records may have been dropped, so their task must not succeed."""
        return self._is_over

    @property
    def failure(self) -> BaseException | None:
        """Return the error with which the lane failed, in the event loop or by a call of `fail`; None if it has not failed."""
        return self._failure

    def unchecked_s(self) -> float:
        """Return the seconds since the event loop last ran this lane's check, which is due each CHECK_EVERY_S.

        Many seconds mean that something blocks the event loop. After `finish` or `close` there is no check: return 0.
        """
        return 0.0 if self._checking.done() else self._loop.time() - self._checked_at

    def pause(self, *, is_paused: bool) -> None:
        """Let `feed` wait while `is_paused` is true. Records that are queued already are delivered."""
        if is_paused is not self._is_paused:
            self._is_paused = is_paused
            self._wake()

    def stop(self) -> None:
        """Take no further records from the queue. The records in the queue stay there, and no receipt covers them.

        Records that were taken before are delivered. The queue is not cleared, because `feed` may still append records. If
        these records were taken, their receipt would also cover the cleared records, and the cleared records would be lost.
        """
        self._is_over = True
        self._wake()

    def fail(self, failure: BaseException) -> None:
        """Let `feed` and `finish` raise `failure`, or an earlier failure if there was one. Queue no further offset receipt."""
        self._failure = self._failure or failure
        self._wake()

    def end_slice(self) -> None:
        """Ask for the end of the current slice, so that the next slice has a new registry. Does not wait.

        The slice ends at the next check: each CHECK_EVERY_S, and after each chunk of records. While the slice takes in a
        chunk, a check does not end it; the check after the chunk does. If there is no slice now, the next slice ends at its
        first check.
        """
        self._must_end_slice = True

    def next_results(self) -> SliceResults | None:
        """Wait for the next results and return them; None after the last. Called by one thread, the writer's."""
        ended = self._ended.get()
        self._wake()
        return ended

    def finish(self) -> None:
        """Wait until each record has its outcome and all results are queued; raise the failure of a lane that has failed.

        After `stop` or a failure, records that still wait for the event loop get no outcome. `next_results` returns None after
        the queued results. `feed` must not be called afterwards.
        """
        try:
            asyncio.run_coroutine_threadsafe(self._finish(), self._loop).result()
        finally:
            self._ended.put(None)

    def close(self, timeout_s: float) -> None:
        """End the lane of a task that failed: begin no more attempts, and queue the results of attempts in flight.

        Wait at most `timeout_s` for attempts in flight, then cancel those that the task still awaits. Background attempts
        continue. All records without a receipt are read again.
        """
        try:
            asyncio.run_coroutine_threadsafe(self._close(timeout_s), self._loop).result(timeout_s + 1)
        except concurrent.futures.TimeoutError:
            log.warning(
                "the event loop did not end a failed task of lane realtime within %.0f s: the records without a receipt are "
                "read again, and deliveries may be repeated, with the same webhook-id. There is nothing to do", timeout_s + 1,
            )  # fmt: skip
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
            log.exception(UNFORESEEN)
            self.fail(fault)

    async def _deliver_waiting(self) -> None:
        while self._waiting and not self._is_over:
            arrived = [self._waiting.popleft() for _ in range(min(len(self._waiting), direct_lane.RECORDS_BETWEEN_IO))]
            if chunk := self.paused.without(arrived):
                await self._take(chunk)
            if len(self._waiting) < MAX_WAITING:
                self._wake()

    async def _take(self, chunk: Sequence[Record]) -> None:
        current = self._current = self._current or _OpenSlice(self._begin(), self._loop.time())
        for record in chunk:
            place = (record.topic, record.partition)
            if place not in current.first_offsets:
                current.first_offsets[place] = self._next.get(place, record.offset)
            self._next[place] = record.offset + 1
        current.is_taking = True
        try:
            current.add(await current.slice.lane.submit(chunk))
        finally:
            current.is_taking = False
        self.paused.add(chunk, current.slice.lane.paused)
        self._end_slice_if_due()  # the only moment between two chunks, while records arrive without a pause

    async def _check(self) -> None:
        try:
            while True:
                await asyncio.sleep(CHECK_EVERY_S)
                self._checked_at = self._loop.time()
                self._drain()
                self._end_slice_if_due()
        except Exception as fault:
            log.exception(UNFORESEEN)
            self.fail(fault)

    def _drain(self) -> None:
        for opened in self._open_slices():
            opened.add(opened.slice.lane.drain())
            self._report(opened.take_unqueued())

    def _open_slices(self) -> list[_OpenSlice]:
        return [opened for opened in (*self._finishing.values(), self._current) if opened is not None]

    def _end_slice_if_due(self) -> None:
        """End the current slice if `end_slice` was called, or after `slice_s` if no earlier slice is still finishing.

        A slice does not end while it takes in a chunk of records, because the rest of the chunk would have no outcome. A later
        check ends the slice. Without `end_slice`, earlier slices finish first, because each slice counts only its own requests
        in flight. Several slices at once could together exceed the limits.
        """
        current = self._current
        if current is None or current.is_taking:
            return
        is_due = self._loop.time() - current.since >= self._slice_s and not self._finishing
        if is_due or self._must_end_slice:
            self._current, self._must_end_slice = None, False
            self._begin_to_finish(current)

    def _begin_to_finish(self, ending: _OpenSlice) -> asyncio.Task[None]:
        finishing = asyncio.ensure_future(self._finish_slice(ending, list(self._finishing)))
        self._finishing[finishing] = ending
        finishing.add_done_callback(self._has_finished)
        return finishing

    def _has_finished(self, finishing: asyncio.Task[None]) -> None:
        self._finishing.pop(finishing, None)
        if not finishing.cancelled() and (fault := finishing.exception()) is not None:
            self.fail(fault)

    async def _finish_slice(self, ending: _OpenSlice, before: Sequence[asyncio.Task[None]]) -> None:
        """Queue the remaining results of a slice. Queue its receipts when the tasks in `before`, of earlier slices, have ended.

        The receipts wait, because a restarted query continues at the first gap between receipts. Records behind the gap would
        be read again and have two receipts. A failed lane queues no receipts.
        """
        self._report(ending.take_unqueued())
        results = self._with_worker_state(await ending.slice.lane.finish())
        receipts, results.receipts = results.receipts, []
        for receipt in receipts:  # a receipt begins where the partition's previous receipt ended
            receipt.first_offset = ending.first_offsets[receipt.topic, receipt.partition]
        if before:
            self._queue(results)
            results = Results()
            await asyncio.wait(before)
        self._queue(results, receipts if self._failure is None else ())

    def _report(self, results: Results) -> None:
        """Queue `results` if they have outcomes, rejections or batch records."""
        if results.outcomes or results.rejections or results.batch_records:
            self._queue(results)

    def _queue(self, results: Results, receipts: Sequence[Receipt] = ()) -> None:
        self._ended.put(SliceResults(results, receipts))

    async def _finish(self) -> None:
        while self._has_records_to_take() and self._failure is None:  # noqa: ASYNC110  # once a task
            await asyncio.sleep(CHECK_EVERY_S / 10)
        if self._current is not None:
            current, self._current = self._current, None
            self._begin_to_finish(current)
        while self._finishing:
            await asyncio.wait(list(self._finishing))
        self._end()
        if self._failure is not None:
            raise self._failure

    def _has_records_to_take(self) -> bool:
        is_taking = self._current is not None and self._current.is_taking
        return is_taking or (bool(self._waiting) and not self._is_over)

    async def _close(self, timeout_s: float) -> None:
        self._is_over = True
        slices = [opened.slice for opened in self._open_slices()]
        in_flight = sum(await asyncio.gather(*(slice_.gate.close(timeout_s) for slice_ in slices)))
        if in_flight:
            log.warning(
                "a failed task of lane realtime has attempts in flight (%d) after %.0f s, and cancels those for which it still "
                "waits: records without a receipt are read again, and deliveries may be repeated, with the same webhook-id. "
                "There is nothing to do", in_flight, timeout_s,
            )  # fmt: skip
        self._drain()
        self._end()
        for finishing in list(self._finishing):
            finishing.cancel()
        for slice_ in slices:
            slice_.lane.abandon()

    def _end(self) -> None:
        self._running.cancel()
        self._checking.cancel()
        self.paused.close()
