"""An endpoint is waited for as long as it usually takes, and some; nobody for less than a moment, nor for more than may be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.webhooks.scheduling.response_times import MIN_RESPONSE_DEADLINE_S, ResponseTime


def response_deadline_s(*answers_s, most_s=0.5):
    response_time = ResponseTime()
    for seconds in answers_s:
        response_time.record(seconds)
    return response_time.deadline_s(most_s)


def test_one_that_has_never_answered_is_waited_for_as_long_as_may_be():
    assert response_deadline_s() == 0.5


def test_the_first_answer_is_the_mean_and_its_half_the_spread():
    assert response_deadline_s(0.1, most_s=2.0) == pytest.approx(0.1 + 4 * 0.05)


def test_later_answers_count_as_in_rfc_6298():
    # SRTT = 7/8 · 0.1 + 1/8 · 0.3, RTTVAR = 3/4 · 0.05 + 1/4 · |0.1 - 0.3|
    assert response_deadline_s(0.1, 0.3, most_s=2.0) == pytest.approx(0.125 + 4 * 0.0875)


def test_one_that_always_takes_the_same_time_is_waited_for_little_longer():
    assert response_deadline_s(*[0.3] * 50, most_s=2.0) == pytest.approx(0.3, abs=0.001)


def test_one_that_answers_at_once_may_take_a_moment():
    assert response_deadline_s(*[0.001] * 50) == MIN_RESPONSE_DEADLINE_S


def test_one_that_takes_longer_than_is_waited_for_is_not_waited_for_in_vain():
    assert response_deadline_s(*[1.5] * 3) == MIN_RESPONSE_DEADLINE_S


@given(st.lists(st.floats(1e-6, 100)), st.floats(MIN_RESPONSE_DEADLINE_S, 10))
def test_the_patience_is_between_its_bounds_whatever_came(answers_s, most_s):
    assert MIN_RESPONSE_DEADLINE_S <= response_deadline_s(*answers_s, most_s=most_s) <= most_s
