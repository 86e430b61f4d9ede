"""The phases of a Spark task, and the two timeouts of the phases in which the task waits for its deliveries."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable

from delivery.webhooks.scheduling import limits, response_times
from delivery.webhooks.scheduling.endpoint_clock import Countdown


class Phase(enum.Enum):
    """The phase of a task, as its dispatcher sees it."""

    READING = enum.auto()
    """The lane submits deliveries."""
    WAITING = enum.auto()
    """The lane waits for deliveries to end, and will submit further ones."""
    FINISHING = enum.auto()
    """All deliveries are submitted, and the lane waits for the last ones."""
    CLOSING = enum.auto()
    """The queue timeout has passed while finishing: deliveries are deferred instead of queued."""
    FAILED = enum.auto()
    """The task failed. Attempts in flight may still end. The next run of the task makes all other attempts."""
    ABANDONED = enum.auto()
    """The dispatcher sends nothing any more."""

    def __init__(self, _: int) -> None:
        # Plain attributes: they are read for each delivery.
        self.is_last = self.name in {"FINISHING", "CLOSING"}
        self.is_waiting = self.is_last or self.name == "WAITING"


class Timeouts:
    """Call back when deliveries have waited for the queue timeout, and when responses may be overdue.

    Both countdowns run by `endpoint_time`, so own delay of the worker does not shorten them. A running countdown is not
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

    def start(self, phase: Phase) -> None:
        """Start the countdowns of `phase`. Called whenever no endpoint queue is ready."""
        if phase.is_waiting and self._queue_timeout is None:
            self._queue_timeout = Countdown(self._endpoint_time, self._bounds.queue_timeout_s, self._end_queue_timeout)
        if phase.is_last and self._response_deadline is None:
            self.start_response_deadline()

    def start_response_deadline(self, wait_s: float = response_times.MIN_RESPONSE_DEADLINE_S) -> None:
        """Call `on_response_deadline` after `wait_s`, at most `response_deadline_s`; never if the latter is infinite."""
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
