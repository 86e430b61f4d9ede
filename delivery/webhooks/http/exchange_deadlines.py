"""End exchanges with endpoints that take too long. Own delay does not count, up to a bound.

An exchange is the opening of a connection, or one request with its response. Own delay is time in which this process waited for
its own machine. Runs in the event loop of a worker, of the API or of a command. The API and the commands measure no own delay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from delivery import errors
from delivery.webhooks.scheduling import endpoint_clock

CHECK_EVERY_S = 0.02
"""Seconds between two checks for exchanges at their deadlines. An exchange may overrun its deadline by this much, or by more
if the event loop stalls."""
MAX_EXTENSION_S = 8.0
"""Most seconds that own delay (this process waits for CPU or memory) adds to an attempt's timeout. Bounded, because a worker
that ends waits for its attempts."""
ENOUGH_S = 5.0
"""Seconds by the endpoint clock. Own delay may extend a timeout until MAX_EXTENSION_S ends the exchange. Then the endpoint took
too long if it had at least ENOUGH_S to respond. Otherwise the delay is our own."""
ENOUGH_SHARE = 1 / 3
"""If this share of the timeout is longer than ENOUGH_S, it holds in place of ENOUGH_S."""

Deadline = tuple[float, float, float]
"""Two times at which an exchange ends, and a third that says whose delay it was, in seconds:
1. By the endpoint clock, which leaves own delay out. At this time the exchange ends: the endpoint took too long.
2. By the event loop's clock. At this time the exchange ends in any case.
3. By the endpoint clock. If this clock has reached this time when the second time ends the exchange, the endpoint took too
   long. Otherwise the delay is our own. Without this rule, an endpoint that never answers would be blameless on a machine that
   is always busy.
A plain tuple, because each request makes a Deadline."""


class Expiring(Protocol):
    """An exchange that has a deadline. Compared by identity."""

    def phase(self) -> str:
        """Return what the exchange waits for now, for the text of a failure, such as "while sending the request"."""

    def expire(self, failure: errors.AttemptFailed) -> None:
        """End the exchange with `failure`."""


class Deadlines:
    """Expire exchanges at their deadlines, by one timer for all exchanges.

    A timer for each exchange would be a tenth of the cost of a request. Created inside the event loop that uses it.
    `endpoint_time` returns the time by the endpoint clock, in seconds. In a worker this clock slows down while the process
    waits for its own machine. `max_extension_s` is the most seconds that such waits add to a timeout.
    """

    def __init__(self, endpoint_time: Callable[[], float], max_extension_s: float = MAX_EXTENSION_S) -> None:
        self._loop = asyncio.get_running_loop()
        self._endpoint_time = endpoint_time
        self._max_extension_s = max_extension_s
        self._running: dict[Expiring, Deadline] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._check_at = 0.0
        self._has_skipped = False

    def within(self, timeout_s: float) -> Deadline:
        """Return the Deadline of an exchange that begins now and may take `timeout_s` seconds."""
        now = self._endpoint_time()
        latest = self._loop.time() + timeout_s + self._max_extension_s
        return now + timeout_s, latest, now + max(ENOUGH_S, timeout_s * ENOUGH_SHARE)

    def begin(self, exchange: Expiring, deadline: Deadline) -> None:
        """Expire `exchange` at the next check after `deadline` has passed by either clock, unless `end` is called before."""
        self._running[exchange] = deadline
        if self._timer is None:
            self._schedule_check()

    def end(self, exchange: Expiring) -> None:
        """Forget an exchange that has ended. Raise KeyError if the exchange was forgotten already."""
        del self._running[exchange]

    def stop(self) -> None:
        """Stop the timer. Exchanges no longer expire."""
        if self._timer is not None:
            self._timer.cancel()

    def _schedule_check(self) -> None:
        self._check_at = self._loop.time() + CHECK_EVERY_S
        self._timer = self._loop.call_at(self._check_at, self._check)

    def _check(self) -> None:
        """Expire exchanges at their deadlines. Skip one check after a stall of the event loop: responses are read first."""
        self._timer = None
        now, endpoint_now = self._loop.time(), self._endpoint_time()
        is_stall = now - self._check_at > endpoint_clock.STALL_S
        self._has_skipped = is_stall and not self._has_skipped
        if not self._has_skipped:
            for exchange, (deadline, latest, enough) in list(self._running.items()):
                if deadline <= endpoint_now or (latest <= now and enough <= endpoint_now):
                    exchange.expire(errors.AttemptTimedOut(f"the attempt's time ran out {exchange.phase()}"))
                elif latest <= now:
                    exchange.expire(errors.LocalFailure(f"this worker had too little CPU or memory, {exchange.phase()}"))
        if self._running:
            self._schedule_check()
