"""A stopping job waits for the attempts in its workers by one clock, the driver's."""

import time
from types import SimpleNamespace

import pytest

from delivery.stages.tasks import drain
from delivery.webhooks.clocks import driver_clock

DRIVER_S = 1_700_000_000.0
"""The driver's time at the start of the task."""


@pytest.mark.parametrize("ahead_s", [-600.0, 0.0, 600.0])
def test_a_stop_waits_equally_long_on_a_host_with_another_clock(ahead_s, monkeypatch):
    """Regression: a host whose clock was ahead did not wait at all, so its background attempts were cut off and repeated."""
    monkeypatch.setattr(time, "time", lambda: DRIVER_S + ahead_s)
    now_s = driver_clock.DriverClock(lambda: DRIVER_S + ahead_s)
    for _ in range(driver_clock.ENOUGH_SAMPLES):
        now_s.record_stamp(DRIVER_S)
    waits = []
    task = SimpleNamespace(worker=SimpleNamespace(now_s=now_s, wait_until_idle=waits.append), finish=lambda: iter(()))
    drain.DrainPartition(SimpleNamespace(begin=lambda: task), within_s=20.0, until_s=DRIVER_S + 5.0)(iter(()))
    assert waits == [5.0]
