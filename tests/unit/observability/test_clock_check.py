"""A worker whose clock differs from the driver's causes a warning, but not with each micro-batch."""

import logging

from delivery.observability import clock_check
from delivery.observability.clock_check import WARNED_EVERY_S
from tests.support import fakes


def test_a_worker_with_another_clock_is_warned_of_now_and_then(caplog):
    now = fakes.Clock(0.0)
    clocks = clock_check.ClockCheck(now)
    with caplog.at_level(logging.WARNING):
        clocks.record(0.0)
        assert not caplog.records
        for _ in range(10):
            clocks.record(-600.0)
        assert ["600 s behind the driver's" in record.getMessage() for record in caplog.records] == [True]
        now.now = WARNED_EVERY_S
        clocks.record(31.0)
    assert "31 s ahead of the driver's" in caplog.records[-1].getMessage()
    assert "NTP" in caplog.records[-1].getMessage()
