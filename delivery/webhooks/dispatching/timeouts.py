"""Define the phases of a dispatcher's task, and its timers: queue timeout, response deadline, and waits for quick retries."""

from __future__ import annotations

import asyncio
import enum
import math
from collections.abc import Callable
from typing import Generic

from delivery.model import Sent
from delivery.webhooks.dispatching.endpoint_queue import PendingDelivery
from delivery.webhooks.scheduling import limits
from delivery.webhooks.scheduling.endpoint_clock import Countdown


class Phase(enum.Enum):
    """The phases of a task.

    In the first three phases the dispatcher queues a delivery. In CLOSING it defers the delivery to the retry lane. In FAILED
    and ABANDONED it drops the delivery, because Spark runs the task again, or the task has ended.
    """

    READING = enum.auto()
    """The lane submits deliveries."""
    WAITING = enum.auto()
    """The lane waits for deliveries to end, and will submit more deliveries."""
    FINISHING = enum.auto()
    """All deliveries are submitted, and the lane waits for the last outcomes."""
    CLOSING = enum.auto()
    """The queue timeout has passed while finishing: deliveries are deferred instead of queued."""
    FAILED = enum.auto()
    """The task failed, and Spark runs it again. No further delivery is queued. Attempts in flight may still end."""
    ABANDONED = enum.auto()
    """The task ends, and the dispatcher sends nothing any more."""

    def __init__(self, _: int) -> None:
        # Plain attributes: they are read for each delivery.
        self.is_last = self.name in {"FINISHING", "CLOSING"}
        self.is_waiting = self.is_last or self.name == "WAITING"
        self.is_over = self.name in {"FAILED", "ABANDONED"}


class Timeouts:
    """Call back when the queue timeout has passed, and when responses may be overdue (response deadline).

    The queue timeout is the time that deliveries may wait for their own endpoint once all other endpoints were served. Both
    countdowns run by `endpoint_time`, so they slow down while the worker waits for its own machine. A running countdown is not
    started again.
    """

    def __init__(
        self,
        bounds: limits.Limits,
        endpoint_time: Callable[[], float],
        *,
        on_queue_timeout: Callable[[], None],
        on_response_deadline: Callable[[], None],
    ) -> None:
        self._bounds = bounds
        self._endpoint_time = endpoint_time
        self._on_queue_timeout = on_queue_timeout
        self._on_response_deadline = on_response_deadline
        self._queue_timeout: Countdown | None = None
        self._response_deadline: Countdown | None = None

    def start(self, phase: Phase, *, waits_for_others: bool = False) -> None:
        """Start the queue timeout if `phase.is_waiting`. If `phase.is_last`, begin to look for overdue responses, at once.

        If `waits_for_others` is True, an endpoint waits for slots that other endpoints hold, and the queue timeout does not
        start.

        A countdown that runs already is not started again. Called whenever no endpoint queue is ready, and when the queue
        timeout has passed.
        """
        if phase.is_waiting and not waits_for_others and self._queue_timeout is None:
            self._queue_timeout = Countdown(self._endpoint_time, self._bounds.queue_timeout_s, self._end_queue_timeout)
        if phase.is_last and self._response_deadline is None:
            self.start_response_deadline()

    def start_response_deadline(self, wait_s: float = 0.0) -> None:
        """Call `on_response_deadline` after `wait_s`, or after `response_deadline_s` if that is sooner.

        If `response_deadline_s` is infinite, `on_response_deadline` is never called. With the default `wait_s` the call comes
        at once, because attempts to endpoints that usually take longer than `response_deadline_s` are overdue now.
        """
        most_s = self._bounds.response_deadline_s
        if self._response_deadline is None and most_s < math.inf:
            self._response_deadline = Countdown(self._endpoint_time, min(wait_s, most_s), self._end_response_deadline)

    def stop(self) -> None:
        """Cancel both countdowns."""
        for countdown in (self._queue_timeout, self._response_deadline):
            if countdown is not None:
                countdown.cancel()
        self._queue_timeout = self._response_deadline = None

    def _end_queue_timeout(self) -> None:
        self._queue_timeout = None
        self._on_queue_timeout()

    def _end_response_deadline(self) -> None:
        self._response_deadline = None
        self._on_response_deadline()


class QuickRetries(Generic[Sent]):
    """Hold the deliveries that wait for their quick retry. `retry` is called with each delivery when its wait ends."""

    def __init__(self, retry: Callable[[PendingDelivery[Sent]], None]) -> None:
        self._retry = retry
        self._timers: dict[PendingDelivery[Sent], tuple[asyncio.TimerHandle, float]] = {}
        """For each delivery, the timer that ends its wait, and the end of the wait by the event loop's clock."""

    def __len__(self) -> int:
        return len(self._timers)

    def begin(self, pending: PendingDelivery[Sent], wait_s: float) -> None:
        """Let a delivery wait `wait_s` seconds for its quick retry."""
        loop = asyncio.get_running_loop()
        self._timers[pending] = loop.call_later(wait_s, self._end, pending), loop.time() + wait_s

    def end_scheduled(self) -> list[tuple[PendingDelivery[Sent], float]]:
        """End the waits of deliveries to endpoints with a retry schedule, without a call of the constructor's `retry`.

        Return these deliveries, each with the seconds that were left until its quick retry.
        """
        now = asyncio.get_running_loop().time()
        ended = [pending for pending in self._timers if pending.delivery.endpoint.retrying.schedule_s]
        return [(pending, self._cancelled(pending, now)) for pending in ended]

    def cancel(self) -> None:
        """End all waits, without a call of the constructor's `retry`."""
        for timer, _ in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _cancelled(self, pending: PendingDelivery[Sent], now: float) -> float:
        timer, ends_at = self._timers.pop(pending)
        timer.cancel()
        return max(0.0, ends_at - now)

    def _end(self, pending: PendingDelivery[Sent]) -> None:
        del self._timers[pending]
        self._retry(pending)
