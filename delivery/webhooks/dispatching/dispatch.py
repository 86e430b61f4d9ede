"""Decide which delivery of a Spark task is attempted next, so that no endpoint delays other endpoints.

Each endpoint has its own queue, its own limit of requests in flight and, if it asked for one, its own rate. Endpoints share
slots round robin; a slot is one request in flight. A delivery that waits for a quick retry, or for a rate, holds no slot. An
endpoint begins a request only while it has fewer in flight than slots are free: many slow endpoints leave slots for the others.

Deliveries that would delay the end of the micro-batch are deferred to the retry lane:
1. Deliveries that wait for an endpoint whose circuit breaker is open.
2. Deliveries that wait for their own endpoint, once `Limits.queue_timeout_s` has passed since all other endpoints were served.
   A delivery that waits because other endpoints hold the slots is not deferred.
3. Deliveries whose response is overdue at the task's end, and deliveries that wait for the same unresponsive endpoint. The
   overdue attempts move to the background.
4. Deliveries that wait for their quick retry when nothing else is left to do.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Generic, Protocol, assert_never

from delivery.model import Attempt, Outcome, OutcomeKind, Sendable, Sent
from delivery.registry_model import EndpointId
from delivery.webhooks.dispatching import endpoint_memory, endpoint_queue, ready_queue, runner_pool, settling, timeouts
from delivery.webhooks.dispatching.endpoint_queue import DispatchReport, InFlight, PendingDelivery, Queue
from delivery.webhooks.dispatching.settling import NextStep
from delivery.webhooks.policy import backoff, retry_reasons
from delivery.webhooks.scheduling import background_attempts, deferral, limits

ENOUGH_READY, FEW_READY = 16, 8
"""Numbers of endpoint queues that are ready for a slot. Above ENOUGH_READY the lane stops reading events, and at FEW_READY it
reads again. An event that is read late takes no memory before, and is still in the processor's cache when it is sent."""


class DispatchSender(Protocol):
    """Make one attempt at a delivery.

    Implemented by delivery.webhooks.sending.sender.Sender and delivery.webhooks.lanes.drain_gate.DrainGate.
    """

    async def attempt(self, delivery: Sendable, number: int) -> Attempt: ...


class Dispatcher(Generic[Sent]):
    """Attempt the deliveries of one Spark task, or of one slice (a second) of the real-time lane, until each has its outcome.

    Used once; not thread-safe.

    `clock` and `endpoint_time` are monotonic, in seconds. Rates and circuit breakers read `clock`. Response times and timeouts
    read `endpoint_time` (scheduling.endpoint_clock). `memory` keeps the state of endpoints between tasks. Guarantee: each
    submitted delivery ends in exactly one outcome, unless the task fails. Each method that waits raises an unforeseen error of
    an attempt, and then the task fails.
    """

    def __init__(
        self,
        sender: DispatchSender,
        bounds: limits.Limits,
        quick_retry: backoff.QuickRetry,
        deferrals: deferral.Deferrals,
        background: background_attempts.BackgroundAttempts,
        *,
        memory: endpoint_memory.EndpointMemory,
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
        self._changed = asyncio.Event()
        """Set when `_wait_while` has to check its condition again."""
        self._ready: ready_queue.ReadyQueue[Sent] = ready_queue.ReadyQueue(
            on_return=lambda: self._runners.start(),  # noqa: PLW0108  # the pool is made after the queue
            free_slots=lambda: bounds.max_in_flight - len(self._attempts),
            slots=bounds.max_in_flight,
        )
        self._runners = runner_pool.RunnerPool(
            bounds.max_in_flight, self._ready.line, attempt_next=self._attempt_next, on_failure=self._changed.set
        )
        self._attempts: dict[PendingDelivery[Sent], InFlight[Sent]] = {}
        self._quick_retries: timeouts.QuickRetries[Sent] = timeouts.QuickRetries(self._enqueue)
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
        """Return the task's observations, and the worker's late and unresponsive endpoints that are not yet reported.

        Called once, at the task's end. `EndpointMemory` says when an endpoint is late or unresponsive.
        """
        unresponsive = self._memory.take_unresponsive(self._bounds.response_deadline_s, self._endpoint_time())
        return endpoint_queue.report(self._queues.values(), unresponsive, self._memory.take_late(), self._most_in_flight)

    async def wait_for_room(self) -> None:
        """Yield to the event loop. While more than ENOUGH_READY queues are ready for a slot, wait.

        A waiting call checks this number when it falls to FEW_READY, and rarely before. So the wait usually ends at FEW_READY.
        """
        await asyncio.sleep(0)
        await self._wait_while(lambda: len(self._ready.line) > ENOUGH_READY)

    async def finish(self) -> None:
        """After the last `submit`, wait until every delivery has its outcome; then call `abandon`.

        Overdue attempts may move to the background (`_on_response_deadline`).
        """
        self._timeouts.stop()
        self._enter(timeouts.Phase.FINISHING)
        self._defer_quick_retries()
        await self._wait_for_unsettled(0)
        self.abandon()

    async def wait_for_unsettled(self, unsettled: int) -> None:
        """Wait until at most `unsettled` deliveries are without an outcome. The caller must not call `submit` meanwhile.

        When no queue is ready for a slot, a countdown of `Limits.queue_timeout_s` starts, unless a queue waits for slots that
        other endpoints hold. At its end, deliveries that have waited for their own endpoint for at least this time are
        deferred.
        """
        self._enter(timeouts.Phase.WAITING)
        await self._wait_for_unsettled(unsettled)
        self._enter(timeouts.Phase.READING)

    async def _wait_for_unsettled(self, unsettled: int) -> None:
        self._awaited_unsettled = unsettled
        self._start_timeouts()
        try:
            await self._wait_while(lambda: self._unsettled > unsettled)
        except BaseException:
            self._enter(timeouts.Phase.FAILED)
            raise

    def abandon(self) -> None:
        """Stop sending: cancel the attempts that the task awaits, and drop the queues. Background attempts continue.

        Called at the end of each task. After a failed task no dropped delivery is lost, because Spark runs the whole task
        again.
        """
        self._enter(timeouts.Phase.ABANDONED)
        for queue in self._queues.values():
            queue.abandon()
        self._ready.close()
        self._timeouts.stop()
        self._runners.cancel()
        self._quick_retries.cancel()

    def _enter(self, phase: timeouts.Phase) -> None:
        """Enter a phase. No phase follows ABANDONED: a wait that ends later must not set FAILED."""
        if self._phase is not timeouts.Phase.ABANDONED:
            self._phase = phase

    async def _wait_while(self, is_so: Callable[[], bool]) -> None:
        while self._runners.failure is None and is_so():
            self._changed.clear()
            await self._changed.wait()
        if self._runners.failure is not None:
            raise self._runners.failure  # a fault of ours: the task fails, and Spark runs it again

    def _on_queue_timeout(self) -> None:
        """Defer deliveries that wait for their own endpoint, by the phase of the task.

        1. Phase WAITING (more deliveries will come): defer those that have waited for `Limits.queue_timeout_s`.
        2. Phase FINISHING or CLOSING: defer all that wait now, and from then on each that would begin to wait.
        3. Another phase, or a queue waits for slots that other endpoints hold: do nothing.
        """
        if not self._phase.is_waiting or self._ready.waits_for_others:
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

    def _start_timeouts(self) -> None:
        """Start the timers of `Timeouts.start`, if no queue is ready for a slot.

        The queue timeout does not start while a queue waits for slots that other endpoints hold.
        """
        if not self._ready.line:
            self._timeouts.start(self._phase, waits_for_others=self._ready.waits_for_others)

    def _on_response_deadline(self) -> None:
        """Move overdue attempts to the background when nothing else is left to do.

        1. A queue is ready again, or the phase is neither FINISHING nor CLOSING: do nothing.
        2. Hardly any destination has responded (`endpoint_queue.may_be_local_outage`): move nothing, the fault may be ours.
        3. Otherwise move the overdue attempts for which the background has room. Also defer the waiting and all later
           deliveries to endpoints that have sent no response since an overdue attempt began.
        """
        if not self._phase.is_last or self._ready.line:
            return
        most_s = self._bounds.response_deadline_s
        overdue = endpoint_queue.overdue(self._attempts, self._endpoint_time(), most_s)
        if not endpoint_queue.may_be_local_outage(self._queues.values(), overdue.without_response, most_s):
            for pending in overdue.attempts:
                if self._background.has_room(pending.delivery):
                    self._continue_in_background(pending, *self._attempts.pop(pending))
                    self._ready.return_crowded()
            for queue, since in overdue.unresponsive:
                queue.is_unresponsive = True
                response_time = queue.response_time
                if not response_time.exceeds(most_s):  # otherwise it responds, but usually takes longer than that
                    self._memory.add_without_response(queue, since, has_waited=not response_time.is_late)
                self._defer_waiting(queue, retry_reasons.SLOW)
        self._timeouts.start_response_deadline(overdue.check_in_s)

    def _continue_in_background(self, pending: PendingDelivery[Sent], queue: Queue[Sent], runner: asyncio.Task[None]) -> None:
        """Move an attempt to the background, and defer its delivery to the retry lane, which waits for the attempt's result.

        The runner of the attempt ends with the attempt.
        """
        self._runners.detach(runner)  # its endpoint keeps the slot until the attempt has ended
        pending.name = self._background.begin(pending.delivery, runner, is_unresponsive=queue.responded_at <= pending.since)
        self._end(self._deferrals.in_background(pending.delivery, pending.attempts, pending.name))

    def _defer_waiting(self, queue: Queue[Sent], reason: str, until: float = math.inf) -> None:
        """Defer all deliveries of a queue that began to wait at `until` or before."""
        while queue.waiting and queue.waiting[0].since <= until:
            self._defer(queue.waiting.popleft(), reason)

    def _defer(self, pending: PendingDelivery[Sent], reason: str) -> None:
        self._end(self._deferrals.deferred_now(pending.delivery, reason, pending.attempts))

    def _enqueue(self, pending: PendingDelivery[Sent]) -> None:
        if self._phase.is_over:
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
            self._ready.add(queue)
            self._runners.start()

    async def _attempt_next(self, runner: asyncio.Task[None]) -> bool:
        """Attempt the first delivery of the next ready queue, if it may begin. Called by a runner.

        Return False if the attempt has moved to the background. The runner must then end: the pool no longer counts it, and may
        have started another in its place.
        """
        queue = self._ready.pop()
        ready = len(self._ready.line)
        if ready == FEW_READY:
            self._changed.set()
        elif not ready:
            self._start_timeouts()
        now = self._clock()
        pending = self._ready.begin(queue, now)
        if pending is None:
            return True
        self._attempts[pending] = InFlight(queue, runner)
        in_flight = len(self._attempts)
        self._most_in_flight = max(self._most_in_flight, in_flight)
        if in_flight == self._runners.busy:
            self._runners.start()  # all are busy, for example after a rate has released a queue with several deliveries
        pending.since = self._endpoint_time()
        try:
            attempt = await self._sender.attempt(pending.delivery, len(pending.attempts) + 1)
        finally:
            queue.end()
        pending.attempts += (attempt,)
        if pending.name is not None:
            self._settle(queue, pending, attempt, now)
            if self._phase is not timeouts.Phase.ABANDONED:  # its endpoint has a slot free again, and this runner ends
                self._ready.add(queue)
                self._ready.return_crowded(queue)
                self._start_timeouts()
                self._runners.start()
            return False
        del self._attempts[pending]
        self._settle(queue, pending, attempt, now)
        self._ready.add(queue)
        self._ready.return_crowded(queue)
        self._start_timeouts()
        return True

    def _settle(self, queue: Queue[Sent], pending: PendingDelivery[Sent], attempt: Attempt, began_at: float) -> None:
        """Record the result of an attempt, and take the next step of its delivery (`settling.settle`)."""
        is_open = queue.observe(
            pending.delivery.endpoint,
            attempt,
            pending.since,
            began_at,
            breakers=self._memory.breakers,
            clock=self._clock,
            endpoint_time=self._endpoint_time,
        )
        settlement = settling.settle(
            attempt, self._quick_retry, is_breaker_open=is_open, is_in_background=pending.name is not None
        )
        match settlement.step:
            case NextStep.DELIVERED:
                self._finish(pending, Outcome(pending.delivery, OutcomeKind.DELIVERED, pending.attempts))
            case NextStep.QUICK_RETRY:
                self._quick_retries.begin(pending, settlement.wait_s)
                self._defer_quick_retries()
            case NextStep.DEFERRED_QUICK_RETRY:
                self._finish(pending, self._deferrals.quick_retry(pending.delivery, pending.attempts, settlement.wait_s))
            case NextStep.FAILED:
                self._finish(pending, self._deferrals.failed(pending.delivery, pending.attempts))
            case _:
                assert_never(settlement.step)
        if settlement.defers_waiting:
            self._defer_waiting(queue, retry_reasons.CIRCUIT_OPEN)

    def _defer_quick_retries(self) -> None:
        """If all deliveries are submitted, and all without an outcome wait for quick retries, defer these to the retry lane.

        Three exceptions continue to wait in the task:
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
        """End a delivery with `outcome`.

        1. The task awaits the attempt: the outcome is one of the task's outcomes.
        2. The attempt ran in the background: report its result to BackgroundAttempts. The delivery is postponed already.
        """
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
