"""Decide which delivery of a Spark task is attempted next, so that no endpoint delays other endpoints.

Each endpoint has its own queue, its own limit of requests in flight and, if it asked for one, its own rate. Endpoints share
slots round robin; a slot is one request in flight. A delivery that waits for a quick retry, or for a rate, holds no slot.

Deliveries that would delay the end of the micro-batch are deferred to the retry lane:
1. Deliveries that wait for an endpoint whose circuit breaker is open.
2. Deliveries that wait for their own endpoint, once `queue_timeout_s` has passed since all other endpoints were served.
3. Deliveries whose response is overdue at the task's end, and those queued behind. Overdue attempts move to the background.
4. Deliveries that wait for their quick retry when nothing else is left to do.
"""

from __future__ import annotations

import asyncio
import collections
import functools
import math
from collections.abc import Callable
from typing import Generic, Protocol

from delivery.model import Attempt, Outcome, OutcomeKind, Sendable, Sent
from delivery.registry_model import EndpointId
from delivery.webhooks.dispatching import endpoint_queue, timeouts
from delivery.webhooks.dispatching.endpoint_queue import DispatchReport, InFlight, PendingDelivery, Queue
from delivery.webhooks.policy import backoff, retry_reasons
from delivery.webhooks.scheduling import background_attempts, deferral, limits

ENOUGH_READY, FEW_READY = 16, 8
"""Numbers of endpoint queues that are ready for a slot. Above ENOUGH_READY the lane stops reading events, and at FEW_READY it
reads again. An event that is not read yet takes no memory, and is in the processor's cache when it is sent."""


class DispatchSender(Protocol):
    """Make one attempt at a delivery. Implemented by delivery.webhooks.sending.sender.Sender."""

    async def attempt(self, delivery: Sendable, number: int) -> Attempt: ...


class Dispatcher(Generic[Sent]):
    """Attempt the deliveries of one Spark task or slice until each has its outcome. Used once; not thread-safe.

    `clock` and `endpoint_time` are monotonic, in seconds. Endpoints are judged by `endpoint_time` (scheduling.endpoint_clock).
    `memory` keeps the state of endpoints between tasks. Guarantee: each submitted delivery ends in exactly one outcome, unless
    the task fails. Each method that waits raises an unforeseen error of an attempt, and then the task fails.
    """

    def __init__(
        self,
        sender: DispatchSender,
        bounds: limits.Limits,
        quick_retry: backoff.QuickRetry,
        deferrals: deferral.Deferrals,
        background: background_attempts.BackgroundAttempts,
        *,
        memory: endpoint_queue.EndpointMemory,
        clock: Callable[[], float],
        endpoint_time: Callable[[], float],
    ) -> None:
        self._sender = sender
        self._bounds = bounds
        self._quick_retry = quick_retry
        self._deferrals = deferrals
        self._background = background
        self._memory = memory
        self._clock = clock
        self._endpoint_time = endpoint_time
        self._queues: dict[EndpointId, Queue[Sent]] = {}
        self._ready: collections.deque[Queue[Sent]] = collections.deque()
        self._runners: set[asyncio.Task[None]] = set()
        self._idle: list[asyncio.Future[None]] = []
        """A future for each idle runner. Its result wakes the runner."""
        self._attempts: dict[PendingDelivery[Sent], InFlight[Sent]] = {}
        self._quick_retries: timeouts.QuickRetries[Sent] = timeouts.QuickRetries(self._enqueue)
        self._in_flight = 0
        self._unsettled = 0
        self._awaited_unsettled = 0
        self._phase = timeouts.Phase.READING
        self._timeouts = timeouts.Timeouts(
            bounds,
            endpoint_time,
            on_queue_timeout=self._on_queue_timeout,
            on_response_deadline=self._on_response_deadline,
        )
        self._ended: list[Outcome[Sent]] = []
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        self._most_in_flight = 0

    def submit(self, delivery: Sent) -> None:
        """Queue a delivery for its endpoint; defer it at once if the endpoint is unresponsive or has an open breaker."""
        self._unsettled += 1
        self._enqueue(PendingDelivery(delivery))

    def drain(self) -> list[Outcome[Sent]]:
        """Return the outcomes since the last call, in the order in which the deliveries ended."""
        ended, self._ended = self._ended, []
        return ended

    def report(self) -> DispatchReport:
        """Return the task's observations, and newly unresponsive endpoints of the worker. Called once, at the task's end."""
        unresponsive = self._memory.take_unresponsive(self._bounds.response_deadline_s, self._endpoint_time())
        return endpoint_queue.report(self._queues.values(), unresponsive, self._most_in_flight)

    async def wait_for_room(self) -> None:
        """Yield to the event loop. If more than ENOUGH_READY queues are ready, wait until fewer are, usually FEW_READY."""
        await asyncio.sleep(0)
        await self._wait_while(lambda: len(self._ready) > ENOUGH_READY)

    async def finish(self) -> None:
        """Wait until every delivery has its outcome. Overdue attempts move to the background. Do not call `submit` again."""
        self._timeouts.stop()
        self._enter(timeouts.Phase.FINISHING)
        self._defer_quick_retries()
        await self._wait_for_unsettled(0)
        self.abandon()

    async def wait_for_unsettled(self, unsettled: int) -> None:
        """Wait until at most `unsettled` deliveries are without an outcome. The caller must not call `submit` meanwhile.

        When no queue is ready, each waiting delivery waits for its own endpoint, and is deferred after `queue_timeout_s`.
        """
        self._enter(timeouts.Phase.WAITING)
        await self._wait_for_unsettled(unsettled)
        self._enter(timeouts.Phase.READING)

    async def _wait_for_unsettled(self, unsettled: int) -> None:
        self._awaited_unsettled = unsettled
        if not self._ready:
            self._timeouts.start(self._phase)
        try:
            await self._wait_while(lambda: self._unsettled > unsettled)
        except BaseException:
            self._enter(timeouts.Phase.FAILED)
            raise

    def abandon(self) -> None:
        """Stop sending: cancel the attempts that the task awaits, and drop the queues. Background attempts continue.

        Called at the end of each task. A task that failed runs again whole.
        """
        self._enter(timeouts.Phase.ABANDONED)
        for queue in self._queues.values():
            queue.abandon()
        self._ready.clear()
        self._timeouts.stop()
        for runner in self._runners:
            runner.cancel()
        self._quick_retries.cancel()

    def _enter(self, phase: timeouts.Phase) -> None:
        """Enter a phase. No phase follows ABANDONED: a wait that ends later must not set FAILED."""
        if self._phase is not timeouts.Phase.ABANDONED:
            self._phase = phase

    async def _wait_while(self, is_so: Callable[[], bool]) -> None:
        while self._failure is None and is_so():
            self._changed.clear()
            await self._changed.wait()
        if self._failure is not None:
            raise self._failure  # a fault of ours: the task fails, and Spark runs it again

    def _on_queue_timeout(self) -> None:
        """Defer deliveries that have waited for `queue_timeout_s`, if the task waits.

        When the task has submitted all deliveries: defer all that wait now, and each that would begin to wait from now on.
        """
        if not self._phase.is_waiting:
            return
        until = self._endpoint_time()
        if self._phase is timeouts.Phase.WAITING:
            until -= self._bounds.queue_timeout_s
        else:
            self._phase = timeouts.Phase.CLOSING
        for queue in self._queues.values():
            is_paced = queue.must_wait(self._clock())
            self._defer_waiting(queue, retry_reasons.RATE_LIMITED if is_paced else retry_reasons.LANE_DEADLINE, until)
        self._timeouts.start(self._phase)

    def _on_response_deadline(self) -> None:
        """Move overdue attempts to the background when nothing else is left to do.

        1. A queue is ready again, or the task is not in its last phase: do nothing.
        2. Hardly any destination has responded (`endpoint_queue.may_be_local_outage`): move nothing, the fault may be ours.
        3. Otherwise move the overdue attempts for which the background has room. Also defer the waiting deliveries of endpoints
           that have sent no response since an overdue attempt began.
        """
        if not self._phase.is_last or self._ready:
            return
        most_s = self._bounds.response_deadline_s
        overdue = endpoint_queue.overdue(self._attempts, self._endpoint_time(), most_s)
        if not endpoint_queue.may_be_local_outage(self._queues.values(), overdue.without_response, most_s):
            for pending in overdue.attempts:
                if self._background.has_room(pending.delivery):
                    self._continue_in_background(pending, *self._attempts.pop(pending))
            for queue, since in overdue.unresponsive:
                queue.is_unresponsive = True
                if not queue.response_time.exceeds(most_s):  # otherwise it responds, but usually takes longer than that
                    self._memory.add_without_response(queue, since)
                self._defer_waiting(queue, retry_reasons.SLOW)
        self._timeouts.start_response_deadline(overdue.check_in_s)

    def _continue_in_background(self, pending: PendingDelivery[Sent], queue: Queue[Sent], runner: asyncio.Task[None]) -> None:
        """Move an attempt to the background, and defer its delivery. The runner of the attempt ends with the attempt."""
        self._runners.discard(runner)
        self._in_flight -= 1  # this task awaits one attempt less; its endpoint keeps the slot until the attempt has ended
        pending.name = self._background.begin(pending.delivery, runner, is_unresponsive=queue.responded_at <= pending.since)
        self._end(self._deferrals.in_background(pending.delivery, pending.attempts, pending.name))

    def _defer_waiting(self, queue: Queue[Sent], reason: str, until: float = math.inf) -> None:
        """Defer all deliveries of a queue that began to wait at `until` or before."""
        while queue.waiting and queue.waiting[0].since <= until:
            self._defer(queue.waiting.popleft(), reason)

    def _defer(self, pending: PendingDelivery[Sent], reason: str) -> None:
        self._end(self._deferrals.deferred_now(pending.delivery, reason, pending.attempts))

    def _enqueue(self, pending: PendingDelivery[Sent]) -> None:
        if self._phase in {timeouts.Phase.FAILED, timeouts.Phase.ABANDONED}:
            return  # without an outcome: the task runs again
        endpoint = pending.delivery.endpoint
        queue = self._queues.get(endpoint.endpoint_id)
        if queue is None:
            queue = self._memory.queue_of(endpoint, self._bounds, self._background)
            self._queues[endpoint.endpoint_id] = queue
        if queue.breaker is not None and queue.breaker.is_open(self._clock()):
            self._defer(pending, retry_reasons.CIRCUIT_OPEN)
        elif queue.is_unresponsive:
            self._defer(pending, retry_reasons.SLOW)
        elif self._phase is timeouts.Phase.CLOSING:
            self._defer(pending, retry_reasons.LANE_DEADLINE)
        else:
            pending.since = self._endpoint_time()
            queue.waiting.append(pending)
            self._mark_ready(queue)
            self._start_runner()

    def _mark_ready(self, queue: Queue[Sent]) -> None:
        if queue.waiting and not queue.is_ready and queue.in_flight < queue.limit:
            queue.is_ready = True
            self._ready.append(queue)

    def _resume(self, queue: Queue[Sent], *, has_reservation: bool = False) -> bool:
        """Make a queue ready again that waited for its rate or host. Return False after `abandon`, or if the queue is empty."""
        if self._phase is timeouts.Phase.ABANDONED or not queue.waiting:
            queue.is_ready = False
            return False
        queue.has_reservation = has_reservation
        self._ready.append(queue)
        self._start_runner()
        return True

    def _start_runner(self) -> None:
        """If a queue is ready, wake an idle runner. If none is idle, start one, up to `max_in_flight` runners.

        A runner is an asyncio task that attempts one delivery after the other, and idles while no queue is ready.
        """
        if not self._ready:
            return
        if self._idle:
            self._idle.pop().set_result(None)
        elif len(self._runners) < self._bounds.max_in_flight:
            runner = asyncio.create_task(self._run())
            self._runners.add(runner)
            runner.add_done_callback(self._runner_ended)

    async def _run(self) -> None:
        """Attempt delivery after delivery, until cancelled, or until an attempt that moved to the background has ended."""
        runner = asyncio.current_task()
        assert runner is not None, "it runs in one"  # noqa: S101
        while True:
            while not self._ready:
                self._idle.append(idle := asyncio.get_running_loop().create_future())
                await idle
            queue = self._ready.popleft()
            ready = len(self._ready)
            if ready == FEW_READY:
                self._changed.set()
            elif not ready:
                self._timeouts.start(self._phase)
            now = self._clock()
            if not self._may_begin(queue, now):
                continue
            pending = queue.waiting.popleft()
            queue.begin(now)
            queue.is_ready = False
            self._mark_ready(queue)
            self._in_flight += 1
            self._most_in_flight = max(self._most_in_flight, self._in_flight)
            if self._in_flight == len(self._runners) - len(self._idle):
                self._start_runner()  # all are busy, for example after a rate has released a queue with several deliveries
            pending.since = self._endpoint_time()
            self._attempts[pending] = InFlight(queue, runner)
            try:
                attempt = await self._sender.attempt(pending.delivery, len(pending.attempts) + 1)
            finally:
                queue.end()
            pending.attempts += (attempt,)
            if pending.name is not None:
                self._settle(queue, pending, attempt, now)
                if self._phase is not timeouts.Phase.ABANDONED:  # its endpoint has a slot free again, and this runner ends
                    self._mark_ready(queue)
                    self._start_runner()
                return
            del self._attempts[pending]
            self._in_flight -= 1
            self._settle(queue, pending, attempt, now)
            self._mark_ready(queue)

    def _may_begin(self, queue: Queue[Sent], now: float) -> bool:
        """Return True if the first delivery of the queue may be attempted now.

        1. False if the queue is empty, or if its endpoint has failed meanwhile and has its one request in flight.
        2. False if the rate allows no request yet. The queue becomes ready again when the rate allows one.
        3. False if the host has no capacity. The queue becomes ready again when the host has capacity.
        4. Otherwise True.
        """
        host, wait_s = queue.host, 0.0 if queue.pace is None else queue.pace.wait_s(now)
        is_wanted = bool(queue.waiting) and queue.in_flight < queue.limit
        has_room = host is None or (host.use_reservation() if queue.has_reservation else host.has_room)
        queue.has_reservation = False
        if is_wanted and not wait_s and has_room:
            return True
        if not is_wanted:
            queue.is_ready = False
        elif wait_s:
            queue.resumption = asyncio.get_running_loop().call_later(wait_s, self._resume, queue)
        elif host is not None:
            host.call_when_free(functools.partial(self._resume, queue, has_reservation=True))
        if host is not None:
            host.wake()  # the reservation was not used
        return False

    def _settle(self, queue: Queue[Sent], pending: PendingDelivery[Sent], attempt: Attempt, began_at: float) -> None:
        """Record the result of an attempt, and decide the next step of its delivery.

        1. Accepted: delivered.
        2. Failed in a way that often passes, and attempts are left: quick retry (of a background attempt: by the retry lane).
        3. Failed otherwise: defer or dead-letter, as `Deferrals.failed` decides.
        4. Failed, and the endpoint's circuit breaker is open: as 3., and defer the endpoint's waiting deliveries.
        """
        is_open = queue.observe(
            attempt,
            pending.since,
            began_at,
            breakers=self._memory.breakers,
            clock=self._clock,
            endpoint_time=self._endpoint_time,
        )
        error_class = attempt.error_class
        if error_class is None:
            self._finish(pending, Outcome(pending.delivery, OutcomeKind.DELIVERED, pending.attempts))
            return
        wait_s = None if is_open else self._quick_retry.wait_s(attempt.number, error_class, attempt.retry_after_s)
        if wait_s is None:
            self._finish(pending, self._deferrals.failed(pending.delivery, pending.attempts))
        elif pending.name is not None:
            self._finish(pending, self._deferrals.quick_retry(pending.delivery, pending.attempts, wait_s))
        else:
            self._quick_retries.begin(pending, wait_s)
            self._defer_quick_retries()
        if is_open:
            self._defer_waiting(queue, retry_reasons.CIRCUIT_OPEN)

    def _defer_quick_retries(self) -> None:
        """If the last deliveries of the task wait for quick retries, defer them. The retry lane then makes these retries.

        These deliveries continue to wait in the task:
        1. All, if the response deadline is infinite: there may be no retry lane.
        2. All, if hardly any destination has responded (`may_be_local_outage`): the fault may be ours.
        3. Deliveries to endpoints without a retry schedule: the retry lane would give them up after one attempt.
        """
        most_s = self._bounds.response_deadline_s
        if not self._phase.is_last or len(self._quick_retries) < self._unsettled or not self._unsettled or most_s == math.inf:
            return
        if endpoint_queue.may_be_local_outage(self._queues.values(), (), most_s):
            return
        for pending, left_s in self._quick_retries.end_scheduled():
            self._end(self._deferrals.quick_retry(pending.delivery, pending.attempts, left_s))

    def _finish(self, pending: PendingDelivery[Sent], outcome: Outcome[Sent]) -> None:
        """End a delivery in this task, or report the result of its background attempt."""
        if pending.name is None:
            self._end(outcome)
        else:
            self._background.complete(pending.name, outcome)

    def _end(self, outcome: Outcome[Sent]) -> None:
        self._ended.append(outcome)
        self._unsettled -= 1
        if self._unsettled <= self._awaited_unsettled:
            self._changed.set()
        elif self._quick_retries:
            self._defer_quick_retries()

    def _runner_ended(self, runner: asyncio.Task[None]) -> None:
        self._runners.discard(runner)
        if not runner.cancelled() and runner.exception() is not None:
            self._failure = runner.exception()
            self._changed.set()
