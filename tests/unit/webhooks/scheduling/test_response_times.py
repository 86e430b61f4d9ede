"""A task waits as long as an endpoint usually takes and a little longer, within a minimum and a maximum."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.webhooks.scheduling.response_times import (
    LATE_MARGIN_S,
    MIN_MARGIN_S,
    FirstResponses,
    ResponseTime,
)


def response_deadline_s(*answers_s, most_s=0.5):
    response_time = ResponseTime(FirstResponses())
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


def test_a_constant_response_time_has_the_smallest_margin():
    """Our clock is not more exact than that when the worker lacks CPU."""
    assert response_deadline_s(*[0.3] * 50, most_s=2.0) == pytest.approx(0.3 + MIN_MARGIN_S, abs=0.001)
    assert response_deadline_s(*[0.001] * 50) == pytest.approx(0.001 + MIN_MARGIN_S)


def test_nobody_waits_for_an_endpoint_that_usually_responds_later():
    assert response_deadline_s(*[1.5] * 3) == 0


def test_after_a_late_response_the_deadline_is_short():
    """Regression: one response of 2 s gave a mean of 0.26 s and a spread of 0.5 s. So each worker waited the maximum twice."""
    quick = [0.01] * 20
    assert response_deadline_s(*quick, 2.0) == MIN_MARGIN_S
    assert response_deadline_s(*quick, 2.0, 0.01) == 0.5


@pytest.mark.parametrize(
    ("answers_s", "ends"),
    [((), False), ((2.0,), False), ((0.16,), True), ((2.0, 2.0), False), ((2.0, 0.3), True)],
)
def test_the_wait_for_a_late_endpoint_is_short_until_it_responds_as_usual(answers_s, ends):
    """The mean is 0.01 s before, and 0.26 s after a response of 2 s."""
    response_time = ResponseTime(FirstResponses())
    response_time.record(0.01)
    response_time.is_late = True
    for seconds in answers_s:
        response_time.record(seconds)
    assert response_time.is_late is not ends
    assert (response_time.deadline_s(0.5) > 0.01 + LATE_MARGIN_S) is ends


def new_endpoint_deadline_s(*first_responses_s):
    """Return the deadline of a new endpoint of a worker, after other endpoints have responded for the first time."""
    seen = FirstResponses()
    for seconds in first_responses_s:
        ResponseTime(seen).record(seconds)
    return ResponseTime(seen).deadline_s(0.5)


def test_a_new_endpoint_is_expected_to_respond_as_soon_as_others_did_at_first():
    assert new_endpoint_deadline_s() == 0.5
    assert new_endpoint_deadline_s(*[0.01] * 100) == pytest.approx(0.01 + MIN_MARGIN_S, abs=0.001)
    assert new_endpoint_deadline_s(*[0.3] * 300) == pytest.approx(0.3 + MIN_MARGIN_S, abs=0.001)
    assert new_endpoint_deadline_s(*[0.6] * 100) == 0.5


def test_a_few_slow_endpoints_hardly_lengthen_the_deadline_of_a_new_one():
    assert new_endpoint_deadline_s(*([0.01] * 19 + [10]) * 20) < 0.01 + 2 * MIN_MARGIN_S


def test_many_slow_endpoints_lengthen_the_deadline_of_a_new_one_step_by_step():
    few, more = (new_endpoint_deadline_s(0.01, *[0.4] * count) for count in (15, 30))
    assert MIN_MARGIN_S < few < more
    assert new_endpoint_deadline_s(0.01, *[0.3] * 1000) == pytest.approx(0.3 + MIN_MARGIN_S, abs=0.05)


def test_only_first_responses_count_for_new_endpoints():
    seen = FirstResponses()
    known = ResponseTime(seen)
    for seconds in [0.01] + [0.4] * 50:
        known.record(seconds)
    assert ResponseTime(seen).deadline_s(0.5) == pytest.approx(0.01 + MIN_MARGIN_S)


@given(st.lists(st.floats(1e-6, 100)), st.floats(MIN_MARGIN_S, 10))
def test_the_deadline_is_always_within_its_bounds(answers_s, most_s):
    deadline_s = response_deadline_s(*answers_s, most_s=most_s)
    assert deadline_s == 0 or MIN_MARGIN_S <= deadline_s <= most_s


@given(st.lists(st.floats(1e-6, 100)))
def test_the_deadline_of_a_new_endpoint_is_always_within_its_bounds(first_responses_s):
    assert MIN_MARGIN_S <= new_endpoint_deadline_s(*first_responses_s) <= 0.5
