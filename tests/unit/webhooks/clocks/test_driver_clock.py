"""A worker uses the driver's time if its own clock differs."""

import pytest

from delivery.webhooks.clocks import driver_clock
from delivery.webhooks.clocks.driver_clock import ENOUGH_SAMPLES, SAMPLES
from tests.support import fakes


def tasks(ahead_s, waits_s):
    """Return the DriverClock of a worker after tasks that began `waits_s` after their stamps, and the driver's clock."""
    driver, own = fakes.Clock(), fakes.Clock()
    clock = driver_clock.DriverClock(own)
    for wait_s in waits_s:
        stamp = driver.now
        driver.now += wait_s
        own.now = driver.now + ahead_s
        clock.record_stamp(stamp)
    return clock, driver


@pytest.mark.parametrize("ahead_s", [600.0, -600.0, 31.0, -1.5, 0.0])
def test_a_worker_uses_the_drivers_time(ahead_s):
    clock, driver = tasks(ahead_s, [8.0, 0.3, 0.1, 2.0])
    assert clock() == pytest.approx(driver.now, abs=0.2)


@pytest.mark.parametrize("waits_s", [[8.0], [25.0, 12.0, 29.0, 18.0], [60.0, 60.0]])
def test_waiting_tasks_do_not_set_the_clock_back(waits_s):
    clock, _ = tasks(0.0, waits_s)
    assert clock.ahead_s == 0


def test_a_slow_clock_is_detected_by_the_first_task():
    clock, driver = tasks(-600.0, [0.2])
    assert clock() == pytest.approx(driver.now, abs=0.3)


def test_a_corrected_clock_is_detected():
    clock, driver = tasks(600.0, [0.1] * ENOUGH_SAMPLES)
    own = clock._clock
    for _ in range(SAMPLES):
        own.now = driver.now = driver.now + 1.0
        clock.record_stamp(driver.now - 0.1)
    assert clock.ahead_s == 0
    assert clock() == driver.now
