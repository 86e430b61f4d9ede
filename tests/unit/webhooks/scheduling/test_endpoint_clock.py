"""The endpoint clock leaves the worker's own delay out, and never goes back."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.webhooks.scheduling import endpoint_clock
from delivery.webhooks.scheduling.endpoint_clock import BEAT_S, LEAST_SPEED, STALL_S
from tests.simulation import virtual


class Delay:
    """An own delay of this share of each beat."""

    def __init__(self, share=0.0):
        self.share = share

    def delay_since_last_call_s(self):
        return self.share * BEAT_S


def run(main, delay=None):
    """Return what `main(clock, loop)` returns, in virtual time."""

    async def started():
        loop = asyncio.get_running_loop()
        clock = endpoint_clock.EndpointClock(delay or Delay())
        try:
            return await main(clock, loop)
        finally:
            clock.stop()

    return virtual.run(started())


def test_without_own_delay_the_clock_equals_the_loops():
    async def main(clock, loop):
        await asyncio.sleep(7.0)
        return clock.time() - loop.time(), clock.own_delay_s()

    difference_s, left_out_s = run(main)
    assert difference_s == pytest.approx(0)
    assert left_out_s == pytest.approx(0)


def test_the_time_of_a_stopped_process_does_not_count():
    async def main(clock, loop):
        await asyncio.sleep(1.0)
        loop.stall(30.0)
        await asyncio.sleep(1.0)
        return clock.time(), clock.own_delay_s()

    judged_s, left_out_s = run(main)
    assert judged_s == pytest.approx(2.0, abs=2 * (BEAT_S + STALL_S))
    assert left_out_s == pytest.approx(30.0, abs=2 * (BEAT_S + STALL_S))


def test_half_the_time_without_a_cpu_means_half_speed():
    async def main(clock, _):
        await asyncio.sleep(10.0)
        return clock.time()

    assert run(main, Delay(0.5)) == pytest.approx(5.0, abs=2 * BEAT_S)


def test_the_clock_advances_whatever_the_delay():
    async def main(clock, _):
        await asyncio.sleep(10.0)
        return clock.time()

    assert run(main, Delay(3.0)) == pytest.approx(10 * LEAST_SPEED, abs=2 * BEAT_S)


@given(st.lists(st.tuples(st.floats(0, 0.3), st.floats(0, 1.5), st.floats(0, 2)), max_size=60))
def test_the_clock_is_monotonic_and_never_faster_than_the_loop(steps):
    async def main(clock, loop):
        last = clock.time(), loop.time()
        for wait_s, share, stall_s in steps:
            delay.share = share
            await asyncio.sleep(wait_s)
            loop.stall(stall_s)
            await asyncio.sleep(0)
            now = clock.time(), loop.time()
            assert -1e-9 <= now[0] - last[0] <= now[1] - last[1] + 1e-9
            last = now

    delay = Delay()
    run(main, delay)


def test_a_countdown_stands_still_with_the_clock():
    async def main(clock, loop):
        ended_at = []
        endpoint_clock.Countdown(clock.time, 0.5, lambda: ended_at.append(clock.time()))
        await asyncio.sleep(0.1)
        loop.stall(20.0)
        await asyncio.sleep(0.2)
        assert not ended_at
        await asyncio.sleep(0.5)
        return ended_at

    [ended_at] = run(main)
    assert ended_at == pytest.approx(0.5, abs=BEAT_S)


def test_a_countdown_that_is_cancelled_calls_nothing():
    async def main(clock, _):
        ended = []
        endpoint_clock.Countdown(clock.time, 0.5, lambda: ended.append(1)).cancel()
        await asyncio.sleep(1.0)
        return ended

    assert not run(main)
