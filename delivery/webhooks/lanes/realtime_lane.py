"""Deliver records as they come, for as long as a task lasts: the direct lane in slices. Without Spark.

Runs in the executors. Must not import pyspark or psycopg. A task of the real-time lane lasts for minutes, and `DirectLane`
tells its receipts and what it has learned at its end. So the records of each second go to a `DirectLane` of their own, a slice.
A slice ends while the next one begins, as a micro-batch would, but nothing waits for it (docs/adr/0040).

    task's thread ── feed ─► waiting ─► slice ─► slice that ends ─► results ── take ─► writer's thread
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
from delivery.webhooks.lanes import direct_lane
from delivery.webhooks.results.results import Results
from delivery.webhooks.routing.intake import Receipt
from delivery.webhooks.scheduling import drain

log = logging.getLogger(__name__)

SLICE_S = 1.0
"""Seconds until a slice ends. Its receipts tell a second later what was handled."""
LOOK_S = 0.05
"""Seconds between two looks at what has ended. Results that have left are in Kafka some 10 ms later, and are not repeated."""
MAX_WAITING = 500
"""Records that wait for the event loop. With more, the task's thread stops reading, and Spark's source after it."""
MAX_UNWRITTEN = 200
"""Results that wait for Kafka, some 10 s of them. With more, nothing more is read: it would be repeated after a crash."""
Place = tuple[str, int]
"""A topic and a partition."""


class Slice(NamedTuple):
    """One second of the lane."""

    lane: direct_lane.DirectLane
    gate: drain.Gate


class Ended(NamedTuple):
    """What came of some records. With receipts it is the last of its slice."""

    results: Results
    receipts: Sequence[Receipt] = ()


@dataclass(slots=True, eq=False)
class _Begun:
    """A slice that has records."""

    slice: Slice
    since: float
    first_offsets: dict[Place, int] = field(default_factory=dict)


class RealtimeLane:
    """Take records from the task's thread, deliver them in the event loop `loop`, and queue what came of them.

    `begin` makes a slice, in the loop. `next_offsets` are those of the records that the lane is to have next, where known: by
    them a slice's receipt also covers offsets of which Kafka has no record, such as those of a transaction's end.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        begin: Callable[[], Slice],
        next_offsets: Mapping[Place, int],
        learned: Callable[[Results], Results],
        *,
        slice_s: float = SLICE_S,
    ) -> None:
        self._loop = loop
        self._begin = begin
        self._learned = learned
        self._slice_s = slice_s
        self._next = dict(next_offsets)
        self._waiting: collections.deque[Record] = collections.deque()
        self._came = asyncio.Event()
        self._ended: queue.SimpleQueue[Ended | None] = queue.SimpleQueue()
        self._may_read = threading.Condition()
        self._unwritten = 0
        self._is_paused = self._is_over = False
        self._failure: BaseException | None = None
        self._finishing: dict[asyncio.Task[None], _Begun] = {}
        self._looked_at = loop.time()
        self._current: _Begun | None = None
        self._must_turn = False
        self._running = asyncio.run_coroutine_threadsafe(self._run(), loop)
        self._looking = asyncio.run_coroutine_threadsafe(self._look(), loop)

    # In the task's thread.

    def feed(self, records: Sequence[Record]) -> bool:
        """Hand records over. Wait while too many are on their way; return False when nothing more is begun."""
        with self._may_read:
            self._may_read.wait_for(self._is_open)
        if self._failure is not None:
            raise self._failure
        if self._is_over:
            return False
        self._waiting.extend(records)
        self._loop.call_soon_threadsafe(self._came.set)
        return True

    def _is_open(self) -> bool:
        if self._is_over or self._failure is not None:
            return True
        return not self._is_paused and len(self._waiting) < MAX_WAITING and self._unwritten < MAX_UNWRITTEN

    # In any thread.

    @property
    def is_over(self) -> bool:
        """Return whether nothing more is begun. Records may have been dropped, and their task must not end well."""
        return self._is_over

    @property
    def failure(self) -> BaseException | None:
        """Return the fault of ours by which nothing is delivered any more."""
        return self._failure

    def looked_ago_s(self) -> float:
        """Return for how many seconds the event loop has not looked at this lane."""
        return self._loop.time() - self._looked_at

    def pause(self, *, is_paused: bool) -> None:
        """Begin nothing more until it is called again with False."""
        if is_paused is not self._is_paused:
            self._is_paused = is_paused
            self._wake()

    def stop(self) -> None:
        """Begin nothing more at all. What waits for the loop stays there: no receipt covers it.

        It is not cleared: `feed` may be adding what comes behind it, whose receipt would then cover what was dropped.
        """
        self._is_over = True
        self._wake()

    def fail(self, failure: BaseException) -> None:
        """Begin nothing more: the task is to fail."""
        self._failure = self._failure or failure
        self._wake()

    def turn(self) -> None:
        """End the current slice, for another registry is to be in effect at once."""
        self._must_turn = True

    def take(self) -> Ended | None:
        """Return what has ended, waiting for it; None: all is told. For one thread."""
        ended = self._ended.get()
        if ended is not None:
            self._unwritten -= 1
            self._wake()
        return ended

    def finish(self) -> None:
        """Wait until each record has its outcome, and all is told. Nothing is fed any more."""
        try:
            asyncio.run_coroutine_threadsafe(self._finish(), self._loop).result()
        finally:
            self._ended.put(None)

    def close(self, within_s: float) -> None:
        """Begin no attempt any more; wait for those under way, and tell of them. For a task that was given up."""
        try:
            asyncio.run_coroutine_threadsafe(self._close(within_s), self._loop).result(within_s + 1)
        except concurrent.futures.TimeoutError:
            log.warning("the event loop did not end its slices in time")
        finally:
            self._ended.put(None)

    def _wake(self) -> None:
        with self._may_read:
            self._may_read.notify_all()

    # In the event loop.

    async def _run(self) -> None:
        try:
            while True:
                await self._came.wait()
                self._came.clear()
                await self._deliver_waiting()
        except Exception as fault:  # a fault of ours: the task fails, and the query starts again
            log.exception("the real-time lane failed in an unforeseen way")
            self.fail(fault)

    async def _deliver_waiting(self) -> None:
        while self._waiting and not self._is_over:
            some = [self._waiting.popleft() for _ in range(min(len(self._waiting), direct_lane.RECORDS_BETWEEN_IO))]
            current = self._current = self._current or _Begun(self._begin(), self._loop.time())
            for record in some:
                place = (record.topic, record.partition)
                if place not in current.first_offsets:
                    current.first_offsets[place] = self._next.get(place, record.offset)
                self._next[place] = record.offset + 1
            self._tell(await current.slice.lane.take(some))
            if len(self._waiting) < MAX_WAITING:
                self._wake()

    async def _look(self) -> None:
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                self._looked_at = self._loop.time()
                await self._drain()
                self._end_slice()
        except Exception as fault:
            log.exception("the real-time lane failed in an unforeseen way")
            self.fail(fault)

    async def _drain(self) -> None:
        for one in self._slices():
            self._tell(await one.lane.take(()))

    def _slices(self) -> list[Slice]:
        return [one.slice for one in (*self._finishing.values(), self._current) if one is not None]

    def _end_slice(self) -> None:
        """End the current slice when it is old enough, and only one at a time, or each would have its bounds once more."""
        current = self._current
        if current is None:
            return
        is_due = self._loop.time() - current.since >= self._slice_s and not self._finishing
        if is_due or self._must_turn:
            self._current, self._must_turn = None, False
            self._begin_to_finish(current)

    def _begin_to_finish(self, one: _Begun) -> asyncio.Task[None]:
        finishing = asyncio.ensure_future(self._finish_slice(one, list(self._finishing)))
        self._finishing[finishing] = one
        finishing.add_done_callback(self._has_finished)
        return finishing

    def _has_finished(self, finishing: asyncio.Task[None]) -> None:
        self._finishing.pop(finishing, None)
        if not finishing.cancelled() and (fault := finishing.exception()) is not None:
            self.fail(fault)

    async def _finish_slice(self, one: _Begun, before: Sequence[asyncio.Task[None]]) -> None:
        """Tell what is left of a slice, and then its receipts, behind those of the slices `before` it.

        A query goes on where the receipts have a gap. What it would read again behind the gap would have two receipts.
        """
        results = self._learned(await one.slice.lane.finish())
        receipts, results.receipts = results.receipts, []
        for receipt in receipts:  # each begins where the one before has ended
            receipt.first_offset = one.first_offsets[receipt.topic, receipt.partition]
        if before:
            self._tell(results)
            results = Results()
            await asyncio.wait(before)
        self._tell(results, receipts if self._failure is None else ())

    def _tell(self, results: Results, receipts: Sequence[Receipt] = ()) -> None:
        if results.outcomes or results.rejections or receipts:
            self._unwritten += 1
            self._ended.put(Ended(results, receipts))

    async def _finish(self) -> None:
        while self._waiting and not self._is_over and self._failure is None:  # noqa: ASYNC110  # once a task
            await asyncio.sleep(LOOK_S / 10)
        if self._current is not None:
            current, self._current = self._current, None
            self._begin_to_finish(current)
        while self._finishing:
            await asyncio.wait(list(self._finishing))
        self._end()
        if self._failure is not None:
            raise self._failure

    async def _close(self, within_s: float) -> None:
        self._is_over = True
        slices = self._slices()
        await asyncio.gather(*(one.gate.close(within_s) for one in slices))
        await self._drain()
        self._end()
        for finishing in list(self._finishing):
            finishing.cancel()
        for one in slices:
            one.lane.abandon()

    def _end(self) -> None:
        self._running.cancel()
        self._looking.cancel()
