"""Decide which delivery may be attempted next, so that no endpoint can make the others wait.

Runs in the executors, inside the worker's event loop. Must not import pyspark or psycopg.

Each endpoint has a queue of its own and a bound on what is under way to it; the endpoints take turns for the worker's slots. A
delivery that waits for its quick retry holds no slot. An endpoint that has accepted nothing for a whole lane deadline is given
up for this micro-batch: what waits for it ends, and with it the micro-batch.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from delivery import errors
from delivery.model import Attempt, Delivery, EndpointId, Outcome, OutcomeKind
from delivery.webhooks import retry


class Sender(Protocol):
    """What the dispatcher needs of the sender. See delivery.webhooks.sender.Sender."""

    async def attempt(self, delivery: Delivery, number: int) -> Attempt: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much may be under way in one worker process, and for how long."""

    max_in_flight: int = 256
    max_in_flight_per_endpoint: int = 16
    lane_deadline_s: float = 3.0


@dataclass(slots=True)
class _Pending:
    delivery: Delivery
    attempts: tuple[Attempt, ...] = ()


@dataclass(slots=True)
class _Queue:
    """What waits for one endpoint."""

    waiting: collections.deque[_Pending] = field(default_factory=collections.deque)
    in_flight: int = 0
    is_in_turn: bool = False
    accepting_since: float | None = None
    """When the endpoint last accepted something; before that, when it was first tried."""

    def is_stalled(self, now: float, lane_deadline_s: float) -> bool:
        return self.accepting_since is not None and now - self.accepting_since > lane_deadline_s


class Dispatcher:
    """Carry the deliveries of one micro-batch partition to their outcomes. Used once; not safe between threads.

    `clock` is monotonic, in seconds. Guarantee: each submitted delivery ends in exactly one outcome.
    """

    def __init__(self, sender: Sender, limits: Limits, quick_retry: retry.QuickRetry, *, clock: Callable[[], float]) -> None:
        self._sender = sender
        self._limits = limits
        self._quick_retry = quick_retry
        self._clock = clock
        self._queues: collections.defaultdict[EndpointId, _Queue] = collections.defaultdict(_Queue)
        self._turns: collections.deque[_Queue] = collections.deque()
        self._runners: set[asyncio.Task[None]] = set()
        self._unsettled = 0
        self._outcomes: list[Outcome] = []
        self._settled = asyncio.Event()
        self._failure: BaseException | None = None
        self.most_in_flight = 0

    def submit(self, delivery: Delivery) -> None:
        """Take a delivery; it is attempted when its endpoint's turn comes."""
        self._unsettled += 1
        self._enqueue(_Pending(delivery))

    async def finish(self) -> list[Outcome]:
        """Wait until every delivery has its outcome and return them all, in the order in which they ended."""
        while self._unsettled and self._failure is None:
            self._settled.clear()
            await self._settled.wait()
        if self._failure is not None:
            raise self._failure  # a fault of ours: the task fails, and Spark runs it again
        return self._outcomes

    def _enqueue(self, pending: _Pending) -> None:
        queue = self._queues[pending.delivery.endpoint.endpoint_id]
        if not queue.waiting and not queue.in_flight:
            queue.accepting_since = None  # it had nothing to accept meanwhile
        queue.waiting.append(pending)
        self._give_turn(queue)
        # A runner takes one delivery after another, so a task is made per slot, not per delivery.
        if self._turns and len(self._runners) < self._limits.max_in_flight:
            runner = asyncio.create_task(self._run())
            self._runners.add(runner)
            self.most_in_flight = max(self.most_in_flight, len(self._runners))
            runner.add_done_callback(self._runner_ended)

    def _give_turn(self, queue: _Queue) -> None:
        if queue.waiting and not queue.is_in_turn and queue.in_flight < self._limits.max_in_flight_per_endpoint:
            queue.is_in_turn = True
            self._turns.append(queue)

    async def _run(self) -> None:
        while self._turns:
            queue = self._turns.popleft()
            queue.is_in_turn = False
            if queue.is_stalled(self._clock(), self._limits.lane_deadline_s):
                self._give_up(queue)
                continue
            pending = queue.waiting.popleft()
            queue.in_flight += 1
            self._give_turn(queue)
            started_at = self._clock()
            attempt = await self._sender.attempt(pending.delivery, len(pending.attempts) + 1)
            queue.in_flight -= 1
            if attempt.error_class != errors.LocalFailure.error_class:  # else the endpoint was not asked
                queue.accepting_since = queue.accepting_since or started_at
            self._settle(queue, _Pending(pending.delivery, (*pending.attempts, attempt)), attempt)
            self._give_turn(queue)

    def _settle(self, queue: _Queue, pending: _Pending, attempt: Attempt) -> None:
        """Take the result of an attempt.

        1. Accepted: delivered, and the endpoint is alive.
        2. Failed in a way that often passes, attempts left: again after a wait, without a slot.
        3. Failed otherwise: dead-lettered.
        """
        if attempt.error_class is None:
            queue.accepting_since = self._clock()
            self._end(pending, OutcomeKind.DELIVERED, None)
            return
        wait_s = self._quick_retry.wait_s(attempt.number, attempt.error_class, attempt.retry_after_s)
        if wait_s is None:
            self._end(pending, OutcomeKind.DEAD_LETTERED, attempt.error_class)
        else:
            asyncio.get_running_loop().call_later(wait_s, self._enqueue, pending)

    def _give_up(self, queue: _Queue) -> None:
        while queue.waiting:
            self._end(queue.waiting.popleft(), OutcomeKind.DEAD_LETTERED, retry.LANE_DEADLINE)

    def _end(self, pending: _Pending, kind: OutcomeKind, reason: str | None) -> None:
        self._outcomes.append(Outcome(delivery=pending.delivery, kind=kind, attempts=pending.attempts, reason=reason))
        self._unsettled -= 1
        if not self._unsettled:
            self._settled.set()

    def _runner_ended(self, runner: asyncio.Task[None]) -> None:
        self._runners.discard(runner)
        if not runner.cancelled() and runner.exception() is not None:
            self._failure = runner.exception()
            self._settled.set()
