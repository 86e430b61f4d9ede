"""End exchanges with endpoints that take too long, without counting our own delay.

Runs in the executors, inside the worker's event loop. Must not import pyspark or psycopg.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from delivery import errors
from delivery.webhooks.scheduling import endpoint_clock

TICK_S = 0.02
"""Seconds between two looks at the deadlines. An exchange may overrun its time by so much."""
MAX_EXTENSION_S = 8.0
"""Seconds that our own delay may add to an attempt's time: the end of a worker waits for its attempts."""


Deadline = tuple[float, float]
"""When an exchange has to end: by the clock that leaves our own delay out, as the endpoint took too long; and at the latest by
the event loop's clock, as the delay is our own. A plain tuple, because it is made for each request."""


class Expiring(Protocol):
    """An exchange that has a deadline. Compared by identity."""

    def phase(self) -> str: ...
    def expire(self, failure: errors.AttemptFailed) -> None: ...


class Deadlines:
    """Expire exchanges whose time is up. One timer serves all: one for each would be a tenth of a request's cost."""

    def __init__(self, judging: Callable[[], float]) -> None:
        self._loop = asyncio.get_running_loop()
        self._judging = judging
        self._running: dict[Expiring, Deadline] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._tick_at = 0.0
        self._has_waited = False

    def within(self, timeout_s: float) -> Deadline:
        """Return the deadline of an exchange that begins now and may take `timeout_s`."""
        return self._judging() + timeout_s, self._loop.time() + timeout_s + MAX_EXTENSION_S

    def begin(self, exchange: Expiring, deadline: Deadline) -> None:
        """Expire `exchange` at `deadline`, unless it ends before."""
        self._running[exchange] = deadline
        if self._timer is None:
            self._tick_in()

    def end(self, exchange: Expiring) -> None:
        """Forget an exchange. To end one twice is an error."""
        del self._running[exchange]

    def stop(self) -> None:
        """Expire nothing any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _tick_in(self) -> None:
        self._tick_at = self._loop.time() + TICK_S
        self._timer = self._loop.call_at(self._tick_at, self._tick)

    def _tick(self) -> None:
        """Expire what is due. After a stall the next tick does: before it, the answers that came meanwhile are read."""
        self._timer = None
        now, judged = self._loop.time(), self._judging()
        is_stall = now - self._tick_at > endpoint_clock.STALL_S
        self._has_waited = is_stall and not self._has_waited
        if not self._has_waited:
            for exchange, (deadline, latest) in list(self._running.items()):
                if deadline <= judged:
                    exchange.expire(errors.AttemptTimedOut(f"the attempt's time ran out {exchange.phase()}"))
                elif latest <= now:
                    exchange.expire(errors.LocalFailure(f"this worker had too little CPU or memory, {exchange.phase()}"))
        if self._running:
            self._tick_in()
