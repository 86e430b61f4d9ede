"""The circuit breaker lets no request to a failing endpoint for a while, then one at a time, then all again."""

import pytest

from delivery import errors
from delivery.webhooks.policy import error_classes, retry_reasons
from delivery.webhooks.scheduling import circuit_breaker

OK, DOWN, HANGS = None, error_classes.SERVER_ERROR, "timeout"


def recorded(*answers, each_s=1.0):
    """Return the breaker and the time after requests, each of which began when the previous one had ended."""
    made, now = circuit_breaker.CircuitBreaker(), 0.0
    for answer in answers:
        made.record(answer, now, now + each_s)
        now += each_s
    return made, now


@pytest.mark.parametrize(
    ("answers", "is_open"),
    [
        ([DOWN] * 4, False),
        ([DOWN] * 5, True),
        ([DOWN] * 4 + [OK] + [DOWN] * 4, False),  # not in a row
        ([DOWN] * 4 + [error_classes.REFUSED] + [DOWN] * 4, False),  # a refusal is a response
        ([HANGS], False),
        ([HANGS, HANGS], True),  # 3 + 3
        ([HANGS, DOWN, DOWN], True),  # 3 + 1 + 1
        ([HANGS, OK, HANGS], False),
        ([error_classes.UNAVAILABLE, error_classes.THROTTLED, "connect", "dns", "tls"], True),
        ([error_classes.GONE] * 5, True),
        ([error_classes.REFUSED] * 100, False),
        ([error_classes.REDIRECT] * 100, False),
        ([errors.LocalFailure.error_class] * 100, False),  # the endpoint had no part in it
        ([retry_reasons.CONFIGURATION] * 100, False),
        ([errors.AddressBlocked.error_class] * 5, True),  # as for an unknown name: both must look alike
        ([DOWN] * 4 + [errors.LocalFailure.error_class, DOWN], True),  # and does not interrupt a row
    ],
)
def test_a_breaker_opens_after_failures_in_a_row(answers, is_open):
    made, now = recorded(*answers)
    assert made.is_open(now) == is_open


def test_every_error_class_is_unhealthy_refused_or_neutral():
    classes = {error.error_class for error in errors.AttemptFailed.__subclasses__()}
    classes |= {error_classes.error_class_of(status) for status in range(300, 600)} | {retry_reasons.CONFIGURATION}
    answered = classes - circuit_breaker.UNHEALTHY - circuit_breaker._NEUTRAL
    assert answered == {error_classes.REFUSED, error_classes.REDIRECT}


def opened():
    made, now = recorded(*[DOWN] * circuit_breaker.OPENS_AFTER)
    return made, now + circuit_breaker.OPEN_S


def test_an_open_breaker_turns_half_open_after_a_while():
    made, then = opened()
    assert (made.is_open(then - 0.1), made.is_open(then), made.is_suspect) == (True, False, True)


def test_one_failure_opens_a_half_open_breaker_again():
    made, then = opened()
    made.record(DOWN, then, then + 1)
    assert (made.is_open(then + circuit_breaker.OPEN_S), made.is_open(then + 1 + circuit_breaker.OPEN_S)) == (True, False)


def test_a_half_open_breaker_closes_after_responses_in_a_row():
    made, then = opened()
    for _ in range(circuit_breaker.CLOSES_AFTER - 1):
        made.record(OK, then, then)
        assert made.is_suspect
    made.record(OK, then, then)
    assert not made.is_suspect
    made.record(DOWN, then, then)
    assert not made.is_open(then)


def test_requests_from_before_the_opening_change_nothing():
    made, now = recorded(*[DOWN] * circuit_breaker.OPENS_AFTER)
    for late in (OK, DOWN):
        made.record(late, now - 2, now + 5)
    assert (made.is_open(now + circuit_breaker.OPEN_S - 0.1), made.is_open(now + circuit_breaker.OPEN_S)) == (True, False)


def test_an_endpoint_without_a_breaker_may_be_sent_to():
    made, now = recorded(*[DOWN] * circuit_breaker.OPENS_AFTER)
    assert circuit_breaker.is_open({"ep1": made}, "ep1", now)
    assert not circuit_breaker.is_open({"ep1": made}, "ep2", now)
