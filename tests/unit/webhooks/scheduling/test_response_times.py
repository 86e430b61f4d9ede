"""A task waits as long as an endpoint usually takes and a little longer, within a minimum and a maximum."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.webhooks.scheduling.response_times import MIN_RESPONSE_DEADLINE_S, ResponseTime


def response_deadline_s(*answers_s, most_s=0.5):
    response_time = ResponseTime()
    for seconds in answers_s:
        response_time.record(seconds)
    return response_time.deadline_s(most_s)


def test_without_a_response_the_deadline_is_the_maximum():
    assert response_deadline_s() == 0.5


def test_the_first_response_sets_mean_and_spread():
    assert response_deadline_s(0.1, most_s=2.0) == pytest.approx(0.1 + 4 * 0.05)


def test_later_responses_count_as_in_rfc_6298():
    # SRTT = 7/8 · 0.1 + 1/8 · 0.3, RTTVAR = 3/4 · 0.05 + 1/4 · |0.1 - 0.3|
    assert response_deadline_s(0.1, 0.3, most_s=2.0) == pytest.approx(0.125 + 4 * 0.0875)


def test_a_constant_response_time_has_a_close_deadline():
    assert response_deadline_s(*[0.3] * 50, most_s=2.0) == pytest.approx(0.3, abs=0.001)


def test_a_fast_endpoint_has_the_minimum_deadline():
    assert response_deadline_s(*[0.001] * 50) == MIN_RESPONSE_DEADLINE_S


def test_a_slow_endpoint_has_the_minimum_deadline():
    assert response_deadline_s(*[1.5] * 3) == MIN_RESPONSE_DEADLINE_S


@given(st.lists(st.floats(1e-6, 100)), st.floats(MIN_RESPONSE_DEADLINE_S, 10))
def test_the_deadline_is_always_within_its_bounds(answers_s, most_s):
    assert MIN_RESPONSE_DEADLINE_S <= response_deadline_s(*answers_s, most_s=most_s) <= most_s
