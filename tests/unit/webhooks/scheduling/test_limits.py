"""The workers share the limits of an endpoint, and no second has more requests than its rate."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.config import plan_builder, settings
from delivery.webhooks.scheduling import limits
from tests.support import builders


@pytest.mark.parametrize(
    ("own", "workers", "share"),
    [(None, 4, 16), (8, 4, 2), (7, 2, 3), (1, 4, 1)],  # 7 for two workers: never 4 + 4; and each has at least one
)
def test_workers_share_a_limit_of_requests_in_flight(own, workers, share):
    bounds = limits.Limits(workers=workers)
    assert bounds.in_flight_to(builders.endpoint(max_in_flight=own)) == share


@pytest.mark.parametrize(("own", "share"), [(None, 8), (16, 2), (3, 1)])
def test_slices_share_the_limit_of_their_worker(own, share):
    bounds = limits.Limits(workers=4, slices=2)
    assert bounds.in_flight_to(builders.endpoint(max_in_flight=own)) == share


def test_the_real_time_lane_plans_for_two_slices():
    assert plan_builder.of_realtime(settings.Settings()).limits.slices == 2


@pytest.mark.parametrize(("own", "workers", "share"), [(None, 4, None), (10.0, 4, 2.5)])
def test_workers_share_a_rate(own, workers, share):
    assert limits.Limits(workers=workers).rate_to(builders.endpoint(max_per_second=own)) == share


@given(
    st.floats(0.1, 5000),
    st.lists(st.floats(0, 0.5), min_size=1, max_size=300),
)
def test_no_second_exceeds_the_rate_at_any_offset(per_second, idle):
    pace, now, gone = limits.Pace(per_second), 0.0, []
    for pause in idle:
        now += pause
        now += pace.wait_s(now)
        pace.consume(now)
        gone.append(now)
    for start in gone:
        assert sum(start <= other < start + 0.999 for other in gone) <= max(1, math.ceil(per_second))


@given(
    st.sampled_from([0.1, 1, 7, 10, 33, 100, 5000]), st.sampled_from([0.05, 0.2]), st.lists(st.integers(0, 500), max_size=50)
)
def test_the_remaining_requests_may_go_at_once_and_no_more(per_second, burst_share, idle):
    pace, now = limits.Pace(per_second, burst_share), 100.0
    for pause_ms in idle:
        now += pause_ms / 1000
        if pace.wait_s(now) == 0:
            pace.consume(now)
    room = pace.room(now)
    gone = 0
    while pace.wait_s(now) == 0:
        pace.consume(now)
        gone += 1
    assert (gone, pace.room(now).remaining) == (room.remaining, 0)
    full = pace.room(now + pace.room(now).full_in_s + 2 * limits.ROUNDING_S)
    assert (full.remaining, full.full_in_s) == (full.limit, 0) == (room.limit, 0)
    assert room.limit == max(1, int(per_second * burst_share))


def test_a_late_sender_still_reaches_a_high_rate():
    pace, now, gone = limits.Pace(1000.0), 0.0, 0
    while now < 10.0:
        while pace.wait_s(now) == 0:
            pace.consume(now)
            gone += 1
        now += 0.013  # the time of thirteen requests
    assert gone >= 10 * 1000 * (1 - limits.BURST_SHARE)


@given(st.sampled_from([0.1, 7, 20, 33, 100, 5000]), st.integers(0, 50), st.integers(0, 20), st.floats(0, 2))
def test_a_request_waits_for_those_ahead_of_it(per_second, gone, ahead, pause):
    pace, now = limits.Pace(per_second), 100.0
    for _ in range(gone):
        pace.consume(now)
    now += pause
    wait_s = pace.wait_s(now, ahead=ahead)
    pace.consume(now, ahead)
    assert wait_s == pytest.approx(pace.wait_s(now), abs=2 * limits.ROUNDING_S)
