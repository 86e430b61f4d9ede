"""Provide the clock by which a worker judges endpoints. The clock slows down while the worker waits for its own machine.

Own delay is the time in which a worker waits for its own machine: for CPU, for memory, or for its event loop. docs/adr/0031 has
the measurements. An endpoint that responds in 10 ms seems to take 3 s to a process that had no CPU for 3 s. Each judgement of
an endpoint (response time, response deadline, queue timeout, attempt timeout) therefore reads this clock. Rates, schedules and
the durations in the delivery log read the real time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from delivery.webhooks.scheduling import limits

BEAT_S = 0.05
"""Seconds between two measurements of own delay. A measurement takes 18 µs, so 0.04 % of a core."""
STALL_S = 0.05
"""Seconds that a beat of the clock may be late. Lateness beyond this is left out of the clock's time."""
LEAST_SPEED = 1 / 8
"""Slowest speed of the clock, as a share of real time, while no beat is late. So a worker detects a hanging endpoint even if
its machine is overloaded for long."""


def loop_time() -> float:
    """Return the event loop's time, in seconds. Processes other than workers use it as endpoint clock: they send little."""
    return asyncio.get_running_loop().time()


class MeasuredDelay(Protocol):
    """Measure the waits of a worker for CPU and memory. Implemented by delivery.webhooks.clocks.own_delay.OwnDelay."""

    def delay_since_last_call_s(self) -> float:
        """Return the seconds since the last call in which the worker waited for CPU or memory.

        Three waits are measured: of the thread, of its control group, and of its machine. The longest is returned.
        """


class EndpointClock:
    """A monotonic clock in seconds, at most as fast as the event loop's. Created inside that loop, which drives its beat.

    A beat is a timer of the loop, each BEAT_S. The clock falls behind the event loop's clock in two cases:
    1. A beat is more than STALL_S late, because the loop was blocked. The lateness beyond STALL_S is left out.
    2. This thread, its control group or its machine waited for CPU or memory during a share of the time since the last beat.
       Until the next beat, the clock is slower by this share, but never slower than LEAST_SPEED.
    """

    def __init__(self, own_delay: MeasuredDelay) -> None:
        self._loop = asyncio.get_running_loop()
        self._now = self._loop.time
        self._own_delay = own_delay
        self._reported_at = self._beat_at = self._loop.time()
        self._time = self._reported_time = self._beat_at
        self._stalled_at = self._beat_at + BEAT_S + STALL_S
        self._speed = 1.0
        self._timer = self._loop.call_later(BEAT_S, self._beat)

    def time(self) -> float:
        """Return the time of this clock, in seconds. Only differences between two times have a meaning."""
        now = self._now()
        if now < self._stalled_at:
            return self._time + (now - self._beat_at) * self._speed
        return self._time + (BEAT_S + STALL_S) * self._speed

    def own_delay_s(self) -> float:
        """Return the seconds by which this clock fell behind the event loop's clock since the last call: the own delay."""
        now, time = self._loop.time(), self.time()
        left_out_s = (now - self._reported_at) - (time - self._reported_time)
        self._reported_at, self._reported_time = now, time
        return max(0.0, left_out_s)

    def stop(self) -> None:
        """Stop the beat."""
        self._timer.cancel()

    def _beat(self) -> None:
        now = self._loop.time()
        passed_s = now - self._beat_at
        self._time, self._beat_at, self._stalled_at = self.time(), now, now + BEAT_S + STALL_S
        self._speed = max(LEAST_SPEED, 1.0 - self._own_delay.delay_since_last_call_s() / passed_s) if passed_s > 0 else 1.0
        self._timer = self._loop.call_later(BEAT_S, self._beat)


class Countdown:
    """Call `ended` once, when `clock` has advanced by `wait_s`.

    A timer of the event loop would not slow down with the clock.
    """

    def __init__(self, clock: Callable[[], float], wait_s: float, ended: Callable[[], None]) -> None:
        self._clock = clock
        self._ends_at = clock() + wait_s
        self._ended = ended
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._look)

    def cancel(self) -> None:
        """Cancel the countdown: `ended` is not called."""
        self._timer.cancel()

    def _look(self) -> None:
        left_s = self._ends_at - self._clock()
        if left_s > limits.ROUNDING_S:
            self._timer = asyncio.get_running_loop().call_later(left_s, self._look)
        else:
            self._ended()
