"""Keep the time by which endpoints are judged. It stands still while the delay is our own.

Runs in the executors, inside the worker's event loop. Must not import pyspark or psycopg. docs/adr/0031 has the measurements.

An endpoint that answers in 10 ms seems to take 3 s to a process that had no CPU for 3 s. Each judgement of an endpoint
(response time, response deadline, queue timeout, attempt timeout) therefore reads this clock. Paces, schedules and the
durations in the delivery log read the real time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from delivery.webhooks.scheduling import limits

BEAT_S = 0.05
"""Seconds between two readings of our own delay. A reading takes 18 µs, so 0.04 % of a core."""
STALL_S = 0.05
"""Seconds that a beat may be late. Of a longer lateness no more than this counts."""
LEAST_SPEED = 1 / 8
"""The clock's slowest speed. An endpoint that hangs is noticed also on a machine that is overloaded for long."""


def loop_time() -> float:
    """Return the event loop's time: the clock for processes that are not a worker, and ask one endpoint at a time."""
    return asyncio.get_running_loop().time()


class OwnDelay(Protocol):
    """What the clock needs of the measurement. See delivery.webhooks.clocks.own_delay.OwnDelay."""

    def grown_s(self) -> float: ...


class EndpointClock:
    """A monotonic clock in seconds, at most as fast as the event loop's. Made inside the loop, which it takes the beat from.

    1. A beat is more than STALL_S late: the loop stood still. The rest of the lateness is left out.
    2. The process waited for CPU or memory in a part of the last beat: the clock is slower by this part in the next beat.
    """

    def __init__(self, own_delay: OwnDelay) -> None:
        self._loop = asyncio.get_running_loop()
        self._now = self._loop.time
        self._own_delay = own_delay
        self._began_at = self._reported_at = self._beat_at = self._loop.time()
        self._time = self._reported_time = self._beat_at
        self._stalled_at = self._beat_at + BEAT_S + STALL_S
        self._speed = 1.0
        self._timer = self._loop.call_later(BEAT_S, self._beat)

    def time(self) -> float:
        """Return the time by which endpoints are judged."""
        now = self._now()
        if now < self._stalled_at:
            return self._time + (now - self._beat_at) * self._speed
        return self._time + (BEAT_S + STALL_S) * self._speed

    def own_delay_s(self) -> float:
        """Return the seconds since the last call that the clock has left out."""
        now, time = self._loop.time(), self.time()
        left_out_s = (now - self._reported_at) - (time - self._reported_time)
        self._reported_at, self._reported_time = now, time
        return max(0.0, left_out_s)

    def stop(self) -> None:
        """Take no more beats."""
        self._timer.cancel()

    def _beat(self) -> None:
        now = self._loop.time()
        passed_s = now - self._beat_at
        self._time, self._beat_at, self._stalled_at = self.time(), now, now + BEAT_S + STALL_S
        self._speed = max(LEAST_SPEED, 1.0 - self._own_delay.grown_s() / passed_s) if passed_s > 0 else 1.0
        self._timer = self._loop.call_later(BEAT_S, self._beat)


class Countdown:
    """Call `ended` once, when `clock` has gone on by `wait_s`. The loop's own timer would not stand still with the clock."""

    def __init__(self, clock: Callable[[], float], wait_s: float, ended: Callable[[], None]) -> None:
        self._clock = clock
        self._ends_at = clock() + wait_s
        self._ended = ended
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._look)

    def cancel(self) -> None:
        """Call nothing any more."""
        self._timer.cancel()

    def _look(self) -> None:
        left_s = self._ends_at - self._clock()
        if left_s > limits.ROUNDING_S:
            self._timer = asyncio.get_running_loop().call_later(left_s, self._look)
        else:
            self._ended()
