"""What comes of an attempt: the class of each answer and of each missing answer, and when it is tried again."""

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from delivery import errors
from delivery.model import Retrying
from delivery.webhooks.policy import retry_decision
from tests.support import fakes

NOW = 1_700_000_000.0  # Tue, 14 Nov 2023 22:13:20 GMT
SAYING_WHEN = 1.0

OUTCOMES = [
    # what came of it                class               retried quickly, and when it says `Retry-After: 1`
    (200,                            None,               False, False),
    (201,                            None,               False, False),
    (202,                            None,               False, False),
    (204,                            None,               False, False),
    (299,                            None,               False, False),
    (300,                            "redirect",         False, False),
    (301,                            "redirect",         False, False),
    (302,                            "redirect",         False, False),
    (304,                            "redirect",         False, False),
    (307,                            "redirect",         False, False),
    (308,                            "redirect",         False, False),
    (399,                            "redirect",         False, False),
    (400,                            "refused",          False, False),
    (401,                            "refused",          False, False),
    (403,                            "refused",          False, False),
    (404,                            "refused",          False, False),
    (405,                            "refused",          False, False),
    (408,                            "refused",          False, False),
    (409,                            "refused",          False, False),
    (410,                            "gone",             False, False),
    (413,                            "refused",          False, False),
    (422,                            "refused",          False, False),
    (429,                            "throttled",        False, True),
    (499,                            "refused",          False, False),
    (500,                            "server_error",     True,  True),
    (501,                            "server_error",     True,  True),
    (502,                            "unavailable",      True,  True),
    (503,                            "unavailable",      True,  True),
    (504,                            "unavailable",      True,  True),
    (599,                            "server_error",     True,  True),
    (0,                              "response_invalid", False, False),
    (99,                             "response_invalid", False, False),
    (100,                            "response_invalid", False, False),
    (101,                            "response_invalid", False, False),
    (199,                            "response_invalid", False, False),
    (600,                            "response_invalid", False, False),
    (999,                            "response_invalid", False, False),
    (errors.LocalFailure,            "local",            True,  True),
    (errors.AddressBlocked,          "address_blocked",  True,  True),
    (errors.TokenRefused,            "token_refused",    False, False),
    (errors.DnsFailed,               "dns",              True,  True),
    (errors.ConnectFailed,           "connect",          True,  True),
    (errors.TlsFailed,               "tls",              False, False),
    (errors.AttemptTimedOut,         "timeout",          False, False),
    (errors.ConnectionLost,          "connection_lost",  True,  True),
    (errors.ResponseInvalid,         "response_invalid", False, False),
]  # fmt: skip


@pytest.mark.parametrize(("came", "error_class", "is_retried", "is_retried_when_told"), OUTCOMES)
def test_what_came_of_an_attempt_has_a_class_and_that_decides_on_the_quick_retry(
    came, error_class, is_retried, is_retried_when_told
):
    found = retry_decision.error_class_of(came) if isinstance(came, int) else came.error_class
    assert found == error_class
    if error_class is not None:
        policy = retry_decision.QuickRetry()
        assert (policy.wait_s(1, error_class) is not None) is is_retried
        assert (policy.wait_s(1, error_class, SAYING_WHEN) is not None) is is_retried_when_told


def test_the_table_has_every_class_of_missing_answers():
    assert {came for came, *_ in OUTCOMES if isinstance(came, type)} == set(errors.AttemptFailed.__subclasses__())


@pytest.mark.parametrize("reason", [retry_decision.CONFIGURATION, retry_decision.LANE_DEADLINE])
def test_what_is_no_answer_of_an_endpoint_is_not_retried(reason):
    assert retry_decision.QuickRetry().wait_s(1, reason, SAYING_WHEN) is None


@pytest.mark.parametrize(
    ("value", "wait_s"),
    [
        # Seconds (RFC 9110, section 10.2.3).
        ("0", 0.0),
        ("1", 1.0),
        ("120", 120.0),
        ("  7\t", 7.0),
        ("0010", 10.0),
        # Beyond the grammar, and clear all the same.
        ("1.5", 1.5),
        ("2.", 2.0),
        ("+3", 3.0),
        ("-1", 0.0),
        ("-1e400", 0.0),
        # Absurd: the cap.
        ("1000000000", retry_decision.MAX_RETRY_AFTER_S),
        ("1e9", retry_decision.MAX_RETRY_AFTER_S),
        ("1e400", retry_decision.MAX_RETRY_AFTER_S),
        ("9" * 5000, retry_decision.MAX_RETRY_AFTER_S),
        ("Fri, 31 Dec 9999 23:59:59 GMT", retry_decision.MAX_RETRY_AFTER_S),
        # A date in each of the three forms of section 5.6.7.
        ("Tue, 14 Nov 2023 22:13:50 GMT", 30.0),
        ("Tuesday, 14-Nov-23 22:13:50 GMT", 30.0),
        ("Tue Nov 14 22:13:50 2023", 30.0),
        ("Wed Nov  1 00:00:00 2023", 0.0),
        ("Tue, 14 Nov 2023 22:13:60 GMT", 40.0),  # a leap second
        ("Tue, 14 Nov 2023 23:13:50 +0100", 30.0),  # no HTTP date, and clear all the same
        # Past: no wait.
        ("Tue, 14 Nov 2023 22:13:19 GMT", 0.0),
        ("Sunday, 06-Nov-94 08:49:37 GMT", 0.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        # Garbage says nothing.
        ("", None),
        ("   ", None),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        ("1_000", None),
        ("0x10", None),
        ("5, 10", None),
        ("5 seconds", None),
        ("１２", None),
        ("٣", None),
        ("\udcff\udcfe", None),
        ("Tue, 14 Nov 12023 22:13:50 GMT", None),
    ],
)
def test_a_retry_after_is_read_as_seconds_from_now_between_none_and_the_cap(value, wait_s):
    assert retry_decision.retry_after_s(value, NOW) == wait_s


def test_the_cap_is_the_callers():
    assert retry_decision.retry_after_s("100", NOW, 60.0) == 60.0
    assert retry_decision.longest_retry_after_s([(b"Retry-After", b"100")], NOW, 60.0) == 60.0


@given(st.one_of(st.text(), st.text("0123456789.eE+-, :GMTJanFebSuo", max_size=40), st.from_regex(r"[A-Z][a-z]{2},? .*")))
@example("Tue, 14 Nov 2023 99:99:99 GMT")
@example("Tue, 99 Nov 2023 22:13:50 GMT")
@example("Tue, 14 Nov 2023 22:13:50 +99999999999999999999")
def test_no_value_of_a_retry_after_does_anything_but_wait(value):
    wait_s = retry_decision.retry_after_s(value, NOW)
    assert wait_s is None or 0.0 <= wait_s <= retry_decision.MAX_RETRY_AFTER_S


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ([], None),
        ([(b"retry-after", b"5")], 5.0),
        ([(b"RETRY-AFTER", b"5")], 5.0),
        ([(b"Retry-After", b"5"), (b"Retry-After", b"10"), (b"Retry-After", b"soon")], 10.0),
        ([(b"Retry-After", b"soon")], None),
        ([(b"X-Retry-After", b"5")], None),
    ],
)
def test_of_several_headers_none_is_broken(headers, wait_s):
    assert retry_decision.longest_retry_after_s(headers, NOW) == wait_s


@pytest.mark.parametrize(
    ("attempt_number", "wait_s"),
    [
        (1, 0.2),  # the first wait
        (2, 0.4),  # 0.2 × 2
        (3, 0.8),  # 0.2 × 2 × 2
        (4, None),  # four attempts were allowed
    ],
)
def test_the_wait_doubles_until_the_attempts_are_used_up(attempt_number, wait_s):
    policy = retry_decision.QuickRetry(max_attempts=4, first_wait_s=0.2)
    assert policy.wait_s(attempt_number, retry_decision.SERVER_ERROR, rng=fakes.Middle()) == (
        None if wait_s is None else pytest.approx(wait_s)
    )


def test_waits_are_spread_by_a_fifth_to_both_sides():
    rng = random.Random(1)
    waits = [retry_decision.QuickRetry(first_wait_s=1.0).wait_s(1, retry_decision.SERVER_ERROR, rng=rng) for _ in range(1000)]
    assert 0.8 <= min(waits) < 0.81
    assert 1.19 < max(waits) <= 1.2


@pytest.mark.parametrize(
    ("retry_after_s", "wait_s"),
    [
        (0.0, 0.2),  # what is asked for is over sooner than the policy's own wait
        (0.1, 0.2),
        (1.0, 1.1),  # spread to later only: the middle of 1.0 and 1.2
        (3.0, 3.3),  # just what the lane has time for
        (3.01, None),
        (retry_decision.MAX_RETRY_AFTER_S, None),
    ],
)
def test_a_retry_after_is_the_least_wait_and_what_the_lane_has_no_time_for_is_not_tried_again(retry_after_s, wait_s):
    policy = retry_decision.QuickRetry(first_wait_s=0.2, max_wait_s=3.0)
    found = policy.wait_s(1, retry_decision.UNAVAILABLE, retry_after_s, fakes.Middle())
    assert found == (None if wait_s is None else pytest.approx(wait_s))


@given(
    st.sampled_from([retry_decision.THROTTLED, retry_decision.UNAVAILABLE, retry_decision.SERVER_ERROR]),
    st.integers(1, 5),
    st.floats(0, 10),
    st.randoms(use_true_random=False),
)
def test_no_retry_is_earlier_than_the_endpoint_said(error_class, attempt_number, retry_after_s, rng):
    wait_s = retry_decision.QuickRetry(max_attempts=5).wait_s(attempt_number, error_class, retry_after_s, rng)
    assert wait_s is None or wait_s >= retry_after_s


def test_a_retry_after_makes_no_more_attempts_than_there_are():
    assert retry_decision.QuickRetry(max_attempts=2).wait_s(2, retry_decision.UNAVAILABLE, SAYING_WHEN) is None


DEFAULT = Retrying()
NEVER_MS = 10**15


def again(error_class, used=0, *, by=DEFAULT, **fields):
    """When it is attempted again after `used` waits of the schedule, counted from 0; nothing is spread."""
    return retry_decision.again(by, error_class, used, **{"now_ms": 0, "expires_ms": NEVER_MS, "rng": fakes.Middle()} | fields)


AGAIN = [
    # class                            used up   waits, s     used up after it
    ("server_error",                   0,        5,           1),
    ("server_error",                   1,        300,         2),
    ("unavailable",                    2,        1_800,       3),
    ("timeout",                        3,        7_200,       4),
    ("throttled",                      4,        18_000,      5),
    ("connect",                        5,        36_000,      6),
    ("connection_lost",                6,        36_000,      7),
    ("dns",                            7,        None,        None),
    ("address_blocked",                0,        5,           1),  # as `dns`: customers do not see the difference
    # What people have to mend begins with the second wait, and goes on as the others.
    ("refused",                        0,        300,         2),
    ("redirect",                       0,        300,         2),
    ("configuration",                  0,        300,         2),
    ("tls",                            0,        300,         2),
    ("refused",                        1,        300,         2),
    ("refused",                        6,        36_000,      7),
    ("refused",                        7,        None,        None),
    # A fault of ours, and an endpoint that is about to be disabled, use up nothing.
    ("local",                          0,        5,           0),
    ("local",                          7,        5,           7),
    ("gone",                           3,        5,           3),
]  # fmt: skip


@pytest.mark.parametrize(("error_class", "used", "wait_s", "used_after"), AGAIN)
def test_each_class_of_failure_has_its_wait_of_the_schedule(error_class, used, wait_s, used_after):
    assert again(error_class, used) == (None if wait_s is None else (wait_s * 1000, used_after))


@pytest.mark.parametrize("error_class", ["server_error", "refused", "local", "gone"])
def test_without_a_schedule_what_fails_is_given_up(error_class):
    assert again(error_class, by=Retrying(schedule_s=())) is None


def test_the_only_wait_of_a_schedule_is_not_left_out():
    assert again(retry_decision.REFUSED, by=Retrying(schedule_s=(5,))) == (5000, 1)


@pytest.mark.parametrize(
    ("retry_after_s", "wait_s"),
    [
        (0.0, 5),
        (4.0, 5),  # the middle of 4 and 4.8 is sooner than the schedule
        (10.0, 11),  # spread to later only: the middle of 10 and 12
        (retry_decision.MAX_RETRY_AFTER_S, 1.1 * 86_400),
    ],
)
def test_what_the_endpoint_asked_for_is_the_least_wait(retry_after_s, wait_s):
    assert again(retry_decision.THROTTLED, retry_after_s=retry_after_s) == (round(wait_s * 1000), 1)


@given(
    st.sampled_from([error_class for error_class, *_ in AGAIN]),
    st.integers(0, 6),
    st.one_of(st.none(), st.floats(0, retry_decision.MAX_RETRY_AFTER_S)),
    st.integers(0, 10**9),
    st.randoms(use_true_random=False),
)
def test_an_attempt_is_never_sooner_than_was_asked_for_nor_after_its_delivery_expires(
    error_class, used, retry_after_s, lasts_ms, rng
):
    now_ms = 1_700_000_000_000
    found = again(error_class, used, now_ms=now_ms, expires_ms=now_ms + lasts_ms, retry_after_s=retry_after_s, rng=rng)
    if found is not None:
        assert now_ms + 1000 * (retry_after_s or 0) - 1 <= found.at_ms <= now_ms + lasts_ms
        assert used <= found.retries <= len(DEFAULT.schedule_s)


def test_waits_of_the_schedule_are_spread_by_a_fifth_to_both_sides():
    rng = random.Random(1)
    waits = [again(retry_decision.SERVER_ERROR, 1, rng=rng).at_ms / 1000 for _ in range(1000)]
    assert 240 <= min(waits) < 241
    assert 359 < max(waits) <= 360


def test_a_wait_that_does_not_fit_before_the_delivery_expires_is_not_begun():
    assert again(retry_decision.SERVER_ERROR, expires_ms=5000) == (5000, 1)
    assert again(retry_decision.SERVER_ERROR, expires_ms=4999) is None
