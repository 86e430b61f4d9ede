"""Decide which delivery may be attempted next, so that no endpoint can make the others wait.

Runs in the executors, inside the worker's event loop. Must not import pyspark or psycopg.

Each endpoint has a queue of its own, a bound on what is under way to it and, if it asked for one, a pace; the endpoints take
turns for the worker's slots. A delivery that waits for its quick retry, or for its endpoint's pace, holds no slot. An endpoint
that has accepted nothing for a whole lane deadline is given up for this micro-batch: what waits for it ends, and with it the
micro-batch.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol

from delivery import errors
from delivery.model import Attempt, EndpointId, Outcome, OutcomeKind, Sendable, Sent
from delivery.webhooks import limits, retry

ENOUGH_IN_TURN, FEW_IN_TURN = 16, 8
"""With more endpoints than this waiting for a slot there is no need for more deliveries, until few are left: what is not made
yet takes no memory, and is in the processor's cache when it is sent."""


class Sender(Protocol):
    """What the dispatcher needs of the sender. See delivery.webhooks.sender.Sender."""

    async def attempt(self, delivery: Sendable, number: int) -> Attempt: ...


@dataclass(slots=True)
class _Pending(Generic[Sent]):
    delivery: Sent
    waiting_since: float
    attempts: tuple[Attempt, ...] = ()


@dataclass(slots=True)
class _Queue(Generic[Sent]):
    """What waits for one endpoint."""

    max_in_flight: int
    pace: limits.Pace | None
    waiting: collections.deque[_Pending[Sent]] = field(default_factory=collections.deque)
    in_flight: int = 0
    is_in_turn: bool = False
    """Whether it stands in line for a slot, or will when its pace allows."""
    accepted_at: float = float("-inf")
    refusing_since: float | None = None
    """Since when, for all that is known, it has accepted nothing; None when it has not failed since it last did."""


class Dispatcher(Generic[Sent]):
    """Carry the deliveries of one micro-batch partition to their outcomes. Used once; not safe between threads.

    `clock` is monotonic, in seconds. `paces` outlives the dispatcher: an endpoint's second does not end with a micro-batch.
    Guarantee: each submitted delivery ends in exactly one outcome, unless all are abandoned.
    """

    def __init__(
        self,
        sender: Sender,
        bounds: limits.Limits,
        quick_retry: retry.QuickRetry,
        *,
        paces: limits.Paces,
        clock: Callable[[], float],
    ) -> None:
        self._sender = sender
        self._bounds = bounds
        self._quick_retry = quick_retry
        self._paces = paces
        self._clock = clock
        self._queues: dict[EndpointId, _Queue[Sent]] = {}
        self._turns: collections.deque[_Queue[Sent]] = collections.deque()
        self._runners: set[asyncio.Task[None]] = set()
        self._in_flight = 0
        self._unsettled = 0
        self._enough_settled = 0
        self._ended: list[Outcome[Sent]] = []
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        self._is_abandoned = False
        self.most_in_flight = 0

    def submit(self, delivery: Sent) -> None:
        """Take a delivery; it is attempted when its endpoint's turn comes."""
        self._unsettled += 1
        self._enqueue(_Pending(delivery, self._clock()))

    def ended(self) -> list[Outcome[Sent]]:
        """Return the outcomes since the last call, in the order in which the deliveries ended."""
        ended, self._ended = self._ended, []
        return ended

    async def room(self) -> None:
        """Give the event loop its turn, and wait while there is enough to do."""
        await asyncio.sleep(0)
        await self._wait_while(lambda: len(self._turns) > ENOUGH_IN_TURN)

    async def finish(self) -> None:
        """Wait until every delivery has its outcome."""
        await self.down_to(0)

    async def down_to(self, unsettled: int) -> None:
        """Wait until no more than so many deliveries are without an outcome."""
        self._enough_settled = unsettled
        await self._wait_while(lambda: self._unsettled > unsettled)

    def abandon(self) -> None:
        """Stop sending. What is under way is broken off, what waits is dropped: the task was given up, and runs again whole."""
        self._is_abandoned = True
        self._turns.clear()
        for runner in self._runners:
            runner.cancel()

    async def _wait_while(self, is_so: Callable[[], bool]) -> None:
        while self._failure is None and is_so():
            self._changed.clear()
            await self._changed.wait()
        if self._failure is not None:
            raise self._failure  # a fault of ours: the task fails, and Spark runs it again

    def _enqueue(self, pending: _Pending[Sent]) -> None:
        if self._is_abandoned:
            return
        endpoint = pending.delivery.endpoint
        queue = self._queues.get(endpoint.endpoint_id)
        if queue is None:
            queue = self._queues[endpoint.endpoint_id] = _Queue(
                self._bounds.in_flight_to(endpoint), self._bounds.pace_to(endpoint, self._paces)
            )
        if not queue.waiting and not queue.in_flight:
            queue.refusing_since = None  # it had nothing to refuse meanwhile
        queue.waiting.append(pending)
        self._give_turn(queue)
        self._start_runner()

    def _give_turn(self, queue: _Queue[Sent]) -> None:
        if queue.waiting and not queue.is_in_turn and queue.in_flight < queue.max_in_flight:
            queue.is_in_turn = True
            self._turns.append(queue)

    def _resume(self, queue: _Queue[Sent]) -> None:
        """Put a queue in line again whose pace made it wait."""
        if not self._is_abandoned:
            self._turns.append(queue)
            self._start_runner()

    def _start_runner(self) -> None:
        """Use one more slot, if that helps. A runner takes delivery after delivery: a task is made for each slot only."""
        if self._turns and len(self._runners) < self._bounds.max_in_flight:
            runner = asyncio.create_task(self._run())
            self._runners.add(runner)
            runner.add_done_callback(self._runner_ended)

    async def _run(self) -> None:
        while self._turns:
            queue = self._turns.popleft()
            if len(self._turns) == FEW_IN_TURN:
                self._changed.set()
            now = self._clock()
            if not self._may_go(queue, now):
                continue
            pending = queue.waiting.popleft()
            queue.in_flight += 1
            queue.is_in_turn = False
            self._give_turn(queue)
            self._in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self._in_flight)
            if self._in_flight == len(self._runners):
                self._start_runner()  # all are busy, as after a pace has let a queue go that more than one could take from
            attempt = await self._sender.attempt(pending.delivery, len(pending.attempts) + 1)
            self._in_flight -= 1
            queue.in_flight -= 1
            pending.attempts += (attempt,)
            self._settle(queue, pending, attempt, now)
            self._give_turn(queue)

    def _may_go(self, queue: _Queue[Sent], now: float) -> bool:
        """Decide for the first in the queue.

        1. The endpoint has refused everything for the lane's deadline: all that waits ends.
        2. Its pace does not allow it yet: the queue stands in line again when it does, less those who would wait too long.
        3. Otherwise it goes.
        """
        if queue.refusing_since is not None and now - queue.refusing_since > self._bounds.lane_deadline_s:
            while queue.waiting:
                self._end(queue.waiting.popleft(), OutcomeKind.DEAD_LETTERED, retry.LANE_DEADLINE)
        elif queue.pace is not None:
            wait_s = queue.pace.wait_s(now)
            if not wait_s:
                queue.pace.take(now)
                return True
            while queue.waiting and now + wait_s - queue.waiting[0].waiting_since > self._bounds.rate_wait_s:
                self._end(queue.waiting.popleft(), OutcomeKind.DEAD_LETTERED, retry.RATE_LIMITED)
            if queue.waiting:
                asyncio.get_running_loop().call_later(wait_s, self._resume, queue)
                return False
        if not queue.waiting:
            queue.is_in_turn = False
            return False
        return True

    def _settle(self, queue: _Queue[Sent], pending: _Pending[Sent], attempt: Attempt, began_at: float) -> None:
        """Take the result of an attempt.

        1. Accepted: delivered, and the endpoint is alive.
        2. Failed in a way that often passes, attempts left: again after a wait, without a slot.
        3. Failed otherwise: dead-lettered.
        """
        if attempt.error_class is None:
            queue.accepted_at, queue.refusing_since = self._clock(), None
            self._end(pending, OutcomeKind.DELIVERED, None)
            return
        if attempt.error_class != errors.LocalFailure.error_class:  # else the endpoint was not asked
            queue.refusing_since = queue.refusing_since or max(began_at, queue.accepted_at)
        wait_s = self._quick_retry.wait_s(attempt.number, attempt.error_class, attempt.retry_after_s)
        if wait_s is None:
            self._end(pending, OutcomeKind.DEAD_LETTERED, attempt.error_class)
        else:
            asyncio.get_running_loop().call_later(wait_s, self._enqueue, pending)

    def _end(self, pending: _Pending[Sent], kind: OutcomeKind, reason: str | None) -> None:
        self._ended.append(Outcome(delivery=pending.delivery, kind=kind, attempts=pending.attempts, reason=reason))
        self._unsettled -= 1
        if self._unsettled <= self._enough_settled:
            self._changed.set()

    def _runner_ended(self, runner: asyncio.Task[None]) -> None:
        self._runners.discard(runner)
        if not runner.cancelled() and runner.exception() is not None:
            self._failure = runner.exception()
            self._changed.set()
