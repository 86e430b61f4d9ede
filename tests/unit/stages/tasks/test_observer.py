"""CPU time is reported once: lanes of an application share a meter, and publish from their own threads."""

import threading

from delivery.stages.tasks.observer import Meter


def test_the_meter_returns_the_time_spent_since_the_last_call():
    readings = iter([1.0, 4.0, 4.0])
    meter = Meter(lambda: next(readings))
    assert [meter.spent() for _ in range(3)] == [1.0, 3.0, 0.0]


def test_a_clock_that_cannot_be_read_for_once_takes_nothing_back():
    readings = iter([5.0, 0.0, 6.0])
    meter = Meter(lambda: next(readings))
    assert [meter.spent() for _ in range(3)] == [5.0, 0.0, 1.0]


def test_two_lanes_that_ask_at_once_never_get_a_negative_time():
    """Regression: a counter refused a negative time, and the lane ended."""
    times, readings = [], iter([10.0, 11.0])
    other = threading.Thread(target=lambda: times.append(meter.spent()))

    def read():
        now = next(readings)
        if not other.ident:  # the first to ask is interrupted between its reading and what it makes of it
            other.start()
            other.join(0.1)
        return now

    meter = Meter(read)
    times.append(meter.spent())
    other.join()
    assert sorted(times) == [1.0, 10.0]
