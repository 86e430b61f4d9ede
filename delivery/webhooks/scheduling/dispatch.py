"""Decide which delivery may be attempted next, so that no endpoint can make the others wait.

Runs in the executors, inside the worker's event loop. Must not import pyspark or psycopg.

Each endpoint has a queue of its own, a bound on what is under way to it and, if it asked for one, a pace; the endpoints take
turns for the worker's slots. A delivery that waits for its quick retry, or for its endpoint's pace, holds no slot. What the
micro-batch would have to wait for is handed over to the retry lane: all that waits for an endpoint whose circuit opens; the
stragglers, which still wait for their own endpoint when all others have been served; and what is not answered soon then. An
attempt that is under way goes on alone (delivery.webhooks.scheduling.background_attempts).
"""

from __future__ import annotations

import asyncio
import collections
import functools
import math
from collections.abc import Callable
from typing import Generic, Protocol

from delivery.model import Attempt, Endpoint, EndpointId, Outcome, OutcomeKind, Sendable, Sent
from delivery.webhooks.policy import retry_decision
from delivery.webhooks.scheduling import (
    background_attempts,
    circuit_breaker,
    deferral,
    endpoint_queue,
    limits,
    outage,
    response_times,
)
from delivery.webhooks.scheduling.endpoint_clock import Countdown
from delivery.webhooks.scheduling.endpoint_queue import Pending, Queue, UnderWay

ENOUGH_IN_TURN, FEW_IN_TURN = 16, 8
"""With more endpoints than this waiting for a slot there is no need for more deliveries, until few are left: what is not made
yet takes no memory, and is in the processor's cache when it is sent."""


class Sender(Protocol):
    """What the dispatcher needs of the sender. See delivery.webhooks.sending.sender.Sender."""

    async def attempt(self, delivery: Sendable, number: int) -> Attempt: ...


class Dispatcher(Generic[Sent]):
    """Carry the deliveries of one micro-batch partition to their outcomes. Used once; not safe between threads.

    `clock` and `judging` are monotonic, in seconds; endpoints are judged by the latter
    (delivery.webhooks.scheduling.endpoint_clock). `memory` outlives the dispatcher.
    Guarantee: each submitted delivery ends in exactly one outcome, unless all are abandoned.
    """

    def __init__(
        self,
        sender: Sender,
        bounds: limits.Limits,
        quick_retry: retry_decision.QuickRetry,
        hand_over: deferral.Handover,
        under_way: background_attempts.Late,
        *,
        memory: endpoint_queue.Memory,
        clock: Callable[[], float],
        judging: Callable[[], float],
    ) -> None:
        self._sender = sender
        self._bounds = bounds
        self._quick_retry = quick_retry
        self._hand_over = hand_over
        self._late = under_way
        self._memory = memory
        self._clock = clock
        self._judging = judging
        self._queues: dict[EndpointId, Queue[Sent]] = {}
        self._turns: collections.deque[Queue[Sent]] = collections.deque()
        self._runners: set[asyncio.Task[None]] = set()
        self._idle: list[asyncio.Future[None]] = []
        """What runners wait for that have nothing to do."""
        self._under_way: dict[Pending[Sent], UnderWay[Sent]] = {}
        self._in_flight = 0
        self._unsettled = 0
        self._enough_settled = 0
        self._is_awaited = False
        self._straggling: Countdown | None = None
        self._patience: Countdown | None = None
        self._is_finishing = self._is_over = False
        self._gone: set[EndpointId] = set()
        self._silent: set[EndpointId] = set()
        self._ended: list[Outcome[Sent]] = []
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        self._is_abandoned = False
        self.most_in_flight = 0

    def submit(self, delivery: Sent) -> None:
        """Take a delivery; it is attempted when its endpoint's turn comes."""
        self._unsettled += 1
        self._enqueue(Pending(delivery))

    def ended(self) -> list[Outcome[Sent]]:
        """Return the outcomes since the last call, in the order in which the deliveries ended."""
        ended, self._ended = self._ended, []
        return ended

    def gone(self) -> frozenset[EndpointId]:
        """Return the endpoints that have said since the last call that they are gone for good."""
        gone, self._gone = frozenset(self._gone), set()
        return gone

    def silent(self) -> frozenset[EndpointId]:
        """Return the endpoints that were waited for since the last call and did not answer as they usually do."""
        silent, self._silent = frozenset(self._silent), set()
        return silent

    def accepting(self) -> list[Endpoint]:
        """Return the endpoints that have accepted something."""
        return [queue.endpoint for queue in self._queues.values() if queue.has_accepted]

    def reach(self) -> outage.Reach:
        """Return to which destinations there was a way."""
        return endpoint_queue.reach(self._queues.values())

    async def room(self) -> None:
        """Give the event loop its turn, and wait while there is enough to do."""
        await asyncio.sleep(0)
        await self._wait_while(lambda: len(self._turns) > ENOUGH_IN_TURN)

    async def finish(self) -> None:
        """Wait until every delivery has its outcome. Nothing is submitted any more."""
        self._stop_timing()
        self._is_finishing = True
        await self.down_to(0)
        self.abandon()

    async def down_to(self, unsettled: int) -> None:
        """Wait until no more than so many deliveries are without an outcome. Nothing is submitted meanwhile.

        When no endpoint stands in line for a slot, what waits, waits for its own endpoint: for as long as `lane_deadline_s`,
        then it is handed over. At the end, what is under way is waited for as long as its endpoint usually takes, and at most
        `patience_s`; then it goes on alone.
        """
        self._enough_settled, self._is_awaited = unsettled, True
        if not self._turns:
            self._time_stragglers()
        try:
            await self._wait_while(lambda: self._unsettled > unsettled)
        finally:
            self._is_awaited = False

    def abandon(self) -> None:
        """Stop sending. What is under way is broken off, what waits is dropped: the task was given up, and runs again whole.

        What goes on alone is not touched.
        """
        self._is_abandoned = True
        for queue in self._turns:
            queue.leave_line()
        self._turns.clear()
        self._stop_timing()
        for runner in self._runners:
            runner.cancel()

    async def _wait_while(self, is_so: Callable[[], bool]) -> None:
        while self._failure is None and is_so():
            self._changed.clear()
            await self._changed.wait()
        if self._failure is not None:
            raise self._failure  # a fault of ours: the task fails, and Spark runs it again

    def _time_stragglers(self) -> None:
        if self._is_awaited and self._straggling is None:
            self._straggling = Countdown(self._judging, self._bounds.lane_deadline_s, self._end_stragglers)
        if self._is_finishing and self._patience is None and self._bounds.patience_s < math.inf:
            self._time_answers(min(response_times.MIN_PATIENCE_S, self._bounds.patience_s))

    def _time_answers(self, wait_s: float) -> None:
        self._patience = Countdown(self._judging, wait_s, self._leave_alone)

    def _stop_timing(self) -> None:
        for timer in (self._straggling, self._patience):
            if timer is not None:
                timer.cancel()
        self._straggling = self._patience = None

    def _end_stragglers(self) -> None:
        """Hand over what has waited for too long; when there is nothing else to come, all that waits, now and later."""
        self._straggling = None
        if not self._is_awaited:
            return
        self._is_over, now = self._is_finishing, self._judging()
        for queue in self._queues.values():
            is_paced = queue.is_bounded(self._clock())
            until = now if self._is_over else now - self._bounds.lane_deadline_s
            self._empty(queue, retry_decision.RATE_LIMITED if is_paced else retry_decision.LANE_DEADLINE, until)
        self._time_stragglers()

    def _leave_alone(self) -> None:
        """Let attempts go on alone that take longer than their endpoints usually do, with nothing else left to do.

        1. Others stand in line again: not now.
        2. Hardly any endpoint answers, of more than a few: the fault may be ours, and who waits for the attempts finds out.
        3. Of an endpoint that has answered nothing meanwhile, what waits is handed over as well.
        """
        self._patience = None
        if not self._is_awaited or self._turns:
            return
        overdue = endpoint_queue.overdue(self._under_way, self._judging(), self._bounds.patience_s)
        if not endpoint_queue.may_be_ours(self._queues.values(), overdue.silent):
            for pending in overdue.attempts:
                if self._late.has_room(pending.delivery):
                    self._go_on_alone(pending, *self._under_way.pop(pending))
            for queue in overdue.silent:
                queue.is_silent = True
                if not queue.answer_time.is_beyond(self._bounds.patience_s):  # else it answers, and always takes long
                    self._silent.add(queue.endpoint_id)
                self._empty(queue, retry_decision.SLOW)
        self._time_answers(overdue.next_in_s)

    def _go_on_alone(self, pending: Pending[Sent], queue: Queue[Sent], runner: asyncio.Task[None]) -> None:
        """Leave an attempt to its runner, which ends with it."""
        self._runners.discard(runner)
        self._in_flight -= 1  # of those that are waited for; its endpoint has one less to take until it has ended
        pending.name = self._late.begin(pending.delivery, runner, is_silent=queue.reached_at <= pending.since)
        self._end(self._hand_over.under_way(pending.delivery, pending.attempts, pending.name))

    def _empty(self, queue: Queue[Sent], reason: str, until: float = math.inf) -> None:
        """Hand over all that began to wait by `until`."""
        while queue.waiting and queue.waiting[0].since <= until:
            self._postpone(queue.waiting.popleft(), reason)

    def _postpone(self, pending: Pending[Sent], reason: str) -> None:
        self._end(self._hand_over.unattempted(pending.delivery, reason, pending.attempts))

    def _enqueue(self, pending: Pending[Sent]) -> None:
        if self._is_abandoned:
            return
        endpoint = pending.delivery.endpoint
        queue = self._queues.get(endpoint.endpoint_id)
        if queue is None:
            queue = self._memory.queue_of(endpoint, self._bounds, self._late)
            self._queues[endpoint.endpoint_id] = queue
        if queue.circuit is not None and queue.circuit.is_open(self._clock()):
            self._postpone(pending, retry_decision.CIRCUIT_OPEN)
        elif queue.is_silent:
            self._postpone(pending, retry_decision.SLOW)
        elif self._is_over:
            self._postpone(pending, retry_decision.LANE_DEADLINE)
        else:
            pending.since = self._judging()
            queue.waiting.append(pending)
            self._give_turn(queue)
            self._start_runner()

    def _give_turn(self, queue: Queue[Sent]) -> None:
        if queue.waiting and not queue.is_in_turn and queue.in_flight < queue.limit:
            queue.is_in_turn = True
            self._turns.append(queue)

    def _resume(self, queue: Queue[Sent], *, is_called: bool = False) -> bool:
        """Put a queue in line again that its pace or its host made wait; return whether anything waits in it."""
        if self._is_abandoned or not queue.waiting:
            queue.is_in_turn = False
            return False
        queue.is_called = is_called
        self._turns.append(queue)
        self._start_runner()
        return True

    def _start_runner(self) -> None:
        """Use one more slot, if that helps.

        A runner takes delivery after delivery, and waits for more when there is none: a task is made for each slot only.
        """
        if not self._turns:
            return
        if self._idle:
            self._idle.pop().set_result(None)
        elif len(self._runners) < self._bounds.max_in_flight:
            runner = asyncio.create_task(self._run())
            self._runners.add(runner)
            runner.add_done_callback(self._runner_ended)

    async def _run(self) -> None:
        """Take delivery after delivery, until dismissed or left alone with an attempt."""
        runner = asyncio.current_task()
        assert runner is not None, "it runs in one"  # noqa: S101
        while True:
            while not self._turns:
                self._idle.append(idle := asyncio.get_running_loop().create_future())
                await idle
            queue = self._turns.popleft()
            in_turn = len(self._turns)
            if in_turn == FEW_IN_TURN:
                self._changed.set()
            elif not in_turn:
                self._time_stragglers()
            now = self._clock()
            if not self._may_go(queue, now):
                continue
            pending = queue.waiting.popleft()
            queue.began(now)
            queue.is_in_turn = False
            self._give_turn(queue)
            self._in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self._in_flight)
            if self._in_flight == len(self._runners) - len(self._idle):
                self._start_runner()  # all are busy, as after a pace has let a queue go that more than one could take from
            pending.since = self._judging()
            self._under_way[pending] = UnderWay(queue, runner)
            try:
                attempt = await self._sender.attempt(pending.delivery, len(pending.attempts) + 1)
            finally:
                queue.ended()
            pending.attempts += (attempt,)
            if pending.name is not None:
                self._settle(queue, pending, attempt, now)
                if not self._is_abandoned:  # its endpoint takes one more again, and this runner takes none
                    self._give_turn(queue)
                    self._start_runner()
                return
            del self._under_way[pending]
            self._in_flight -= 1
            self._settle(queue, pending, attempt, now)
            self._give_turn(queue)

    def _may_go(self, queue: Queue[Sent], now: float) -> bool:
        """Decide for the first in the queue.

        1. There is none any more, or the endpoint has failed meanwhile and is asked by one request at a time.
        2. Its pace does not allow it yet: the queue stands in line again when it does.
        3. Its host has no room: the queue stands in line again when it has.
        4. Otherwise it goes.
        """
        host, wait_s = queue.host, 0.0 if queue.pace is None else queue.pace.wait_s(now)
        is_wanted = bool(queue.waiting) and queue.in_flight < queue.limit
        has_room = host is None or (host.admits_called() if queue.is_called else host.has_room)
        queue.is_called = False
        if is_wanted and not wait_s and has_room:
            return True
        if not is_wanted:
            queue.is_in_turn = False
        elif wait_s:
            asyncio.get_running_loop().call_later(wait_s, self._resume, queue)
        elif host is not None:
            host.wait(functools.partial(self._resume, queue, is_called=True))
        if host is not None:
            host.wake()  # what it may have been called for
        return False

    def _settle(self, queue: Queue[Sent], pending: Pending[Sent], attempt: Attempt, began_at: float) -> None:
        """Take the result of an attempt.

        1. Accepted: delivered.
        2. Failed in a way that often passes, attempts left: again after a wait, without a slot.
        3. Failed otherwise: postponed by the endpoint's schedule, or dead-lettered when it has none.
        4. The endpoint's circuit opened by it: what waits for it is not attempted in this lane.
        """
        error_class = attempt.error_class
        if error_class is None or attempt.status is not None:
            queue.answered(pending.since, self._judging())
        if error_class is None:
            queue.has_accepted = True
            if queue.circuit is not None:
                self._tell(queue, queue.circuit, None, began_at)
            self._conclude(pending, Outcome(pending.delivery, OutcomeKind.DELIVERED, pending.attempts))
            return
        queue.had_no_way_there |= error_class in outage.NO_WAY_THERE
        if error_class == retry_decision.GONE:
            self._gone.add(queue.endpoint_id)
        known = queue.circuit
        if known is None:
            known = queue.circuit = self._memory.circuits[queue.endpoint_id] = circuit_breaker.Circuit()
        is_open = self._tell(queue, known, error_class, began_at)
        wait_s = None if is_open else self._quick_retry.wait_s(attempt.number, error_class, attempt.retry_after_s)
        if wait_s is None:
            self._conclude(pending, self._hand_over.failed(pending.delivery, pending.attempts))
        elif pending.name is not None:
            self._conclude(pending, self._hand_over.soon(pending.delivery, pending.attempts, wait_s))
        else:
            asyncio.get_running_loop().call_later(wait_s, self._enqueue, pending)
        if is_open:
            self._empty(queue, retry_decision.CIRCUIT_OPEN)

    def _tell(self, queue: Queue[Sent], known: circuit_breaker.Circuit, error_class: str | None, began_at: float) -> bool:
        """Tell an endpoint's circuit; return whether it is open."""
        now = self._clock()
        known.told(error_class, began_at, now)
        queue.limit = 1 if known.is_suspect else queue.max_in_flight
        return known.is_open(now)

    def _conclude(self, pending: Pending[Sent], outcome: Outcome[Sent]) -> None:
        """End a delivery here, or tell how it has ended alone."""
        if pending.name is None:
            self._end(outcome)
        else:
            self._late.end(pending.name, outcome)

    def _end(self, outcome: Outcome[Sent]) -> None:
        self._ended.append(outcome)
        self._unsettled -= 1
        if self._unsettled <= self._enough_settled:
            self._changed.set()

    def _runner_ended(self, runner: asyncio.Task[None]) -> None:
        self._runners.discard(runner)
        if not runner.cancelled() and runner.exception() is not None:
            self._failure = runner.exception()
            self._changed.set()
