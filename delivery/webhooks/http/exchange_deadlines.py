"""End exchanges with endpoints that take too long, without counting our own delay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from delivery import errors
from delivery.webhooks.scheduling import endpoint_clock

CHECK_EVERY_S = 0.02
"""Seconds between two checks. An exchange may overrun its deadline by this much."""
MAX_EXTENSION_S = 8.0
"""Seconds that our own delay may add to an attempt's timeout. The end of a worker waits for its attempts."""


Deadline = tuple[float, float]
"""Two deadlines of an exchange. The first, by the endpoint clock, means that the endpoint took too long. The second, by the
event loop's clock, means that the delay is our own. A plain tuple, because one is made per request."""


class Expiring(Protocol):
    """An exchange that has a deadline. Compared by identity."""

    def phase(self) -> str: ...
    def expire(self, failure: errors.AttemptFailed) -> None: ...


class Deadlines:
    """Expire exchanges at their deadlines. One timer serves all: a timer for each would be a tenth of a request's cost."""

    def __init__(self, endpoint_time: Callable[[], float], max_extension_s: float = MAX_EXTENSION_S) -> None:
        self._loop = asyncio.get_running_loop()
        self._endpoint_time = endpoint_time
        self._max_extension_s = max_extension_s
        self._running: dict[Expiring, Deadline] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._check_at = 0.0
        self._has_skipped = False

    def within(self, timeout_s: float) -> Deadline:
        """Return the deadline of an exchange that begins now and may take `timeout_s`."""
        return self._endpoint_time() + timeout_s, self._loop.time() + timeout_s + self._max_extension_s

    def begin(self, exchange: Expiring, deadline: Deadline) -> None:
        """Expire `exchange` at `deadline`, unless it ends before."""
        self._running[exchange] = deadline
        if self._timer is None:
            self._schedule_check()

    def end(self, exchange: Expiring) -> None:
        """Forget an exchange. Raises KeyError if it has ended already."""
        del self._running[exchange]

    def stop(self) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()

    def _schedule_check(self) -> None:
        self._check_at = self._loop.time() + CHECK_EVERY_S
        self._timer = self._loop.call_at(self._check_at, self._check)

    def _check(self) -> None:
        """Expire exchanges that are due. After a stall, wait for the next check, so that responses are read first."""
        self._timer = None
        now, endpoint_now = self._loop.time(), self._endpoint_time()
        is_stall = now - self._check_at > endpoint_clock.STALL_S
        self._has_skipped = is_stall and not self._has_skipped
        if not self._has_skipped:
            for exchange, (deadline, latest) in list(self._running.items()):
                if deadline <= endpoint_now:
                    exchange.expire(errors.AttemptTimedOut(f"the attempt's time ran out {exchange.phase()}"))
                elif latest <= now:
                    exchange.expire(errors.LocalFailure(f"this worker had too little CPU or memory, {exchange.phase()}"))
        if self._running:
            self._schedule_check()
