"""Exchanges end at their deadline. A response that arrived during a stall of the worker is read first."""

import asyncio

import pytest

from delivery import errors
from delivery.webhooks.http import exchange_deadlines
from delivery.webhooks.http.exchange_deadlines import CHECK_EVERY_S, MAX_EXTENSION_S
from delivery.webhooks.scheduling import endpoint_clock
from tests.simulation import virtual
from tests.unit.webhooks.scheduling.test_endpoint_clock import Delay


class Exchange:
    """An exchange that never ends by itself."""

    def __init__(self):
        self.failure, self.expired_at = None, None

    def phase(self):
        return "while waiting for the answer"

    def expire(self, failure):
        if self.failure is None:
            self.failure, self.expired_at = failure, asyncio.get_running_loop().time()


def expired(delay=None, stall_s=0.0, for_s=30.0, timeout_s=2.0):
    """Return an exchange after `for_s` seconds in which only its deadline could end it."""

    async def main():
        clock = endpoint_clock.EndpointClock(delay or Delay())
        running, exchange = exchange_deadlines.Deadlines(clock.time), Exchange()
        running.begin(exchange, running.within(timeout_s))
        await asyncio.sleep(1.0)
        asyncio.get_running_loop().stall(stall_s)
        await asyncio.sleep(for_s)
        running.end(exchange)
        running.stop()
        clock.stop()
        return exchange

    return virtual.run(main())


def test_a_slow_endpoint_times_out():
    exchange = expired()

    assert isinstance(exchange.failure, errors.AttemptTimedOut)
    assert "while waiting for the answer" in str(exchange.failure)
    assert exchange.expired_at == pytest.approx(2.0, abs=2 * CHECK_EVERY_S)


def test_a_stall_of_ours_does_not_count_against_the_endpoint():
    exchange = expired(stall_s=5.0, for_s=0.5)

    assert exchange.failure is None


def test_after_a_stall_responses_are_read_before_expiry():
    """After a stall, a response was unread in the socket when its attempt's deadline had passed."""

    async def main():
        clock = endpoint_clock.EndpointClock(Delay())
        running, exchange = exchange_deadlines.Deadlines(clock.time), Exchange()
        running.begin(exchange, running.within(0.5))
        await asyncio.sleep(0.45)
        asyncio.get_running_loop().stall(60.0)
        await asyncio.sleep(0)  # timers first, then sockets
        early = exchange.failure
        await asyncio.sleep(1.0)
        return early, exchange.failure

    early, late = virtual.run(main())
    assert early is None
    assert late is not None


@pytest.mark.parametrize(("timeout_s", "pressure"), [(15.0, 0.5), (15.0, 0.75), (60.0, 0.65)])
def test_an_endpoint_that_had_enough_time_times_out_also_on_a_busy_machine(timeout_s, pressure):
    exchange = expired(Delay(pressure), timeout_s=timeout_s, for_s=timeout_s + 20)

    assert isinstance(exchange.failure, errors.AttemptTimedOut)
    assert exchange.expired_at == pytest.approx(timeout_s + MAX_EXTENSION_S, abs=2 * CHECK_EVERY_S)


@pytest.mark.parametrize(("timeout_s", "pressure"), [(2.0, 0.85), (15.0, 0.85), (60.0, 0.85)])
def test_an_endpoint_that_had_too_little_time_is_not_to_blame(timeout_s, pressure):
    exchange = expired(Delay(pressure), timeout_s=timeout_s, for_s=timeout_s + 20)

    assert isinstance(exchange.failure, errors.LocalFailure)


def test_a_long_lack_of_cpu_is_our_own_failure():
    exchange = expired(Delay(1.0))

    assert isinstance(exchange.failure, errors.LocalFailure)
    assert exchange.expired_at == pytest.approx(2.0 + MAX_EXTENSION_S, abs=2 * CHECK_EVERY_S)
