"""The error class of each response and failure, and when the next attempt is."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery import errors
from delivery.model import Attempt
from delivery.registry_model import Retrying
from delivery.webhooks.policy import backoff, error_classes, retry_after, retry_reasons
from tests.support import fakes

RETRY_AFTER_S = 1.0

OUTCOMES = [
    # result of the attempt          class               retried quickly, and with `Retry-After: 1`
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


@pytest.mark.parametrize(("result", "error_class", "is_retried", "is_retried_with_wait"), OUTCOMES)
def test_each_result_has_an_error_class_that_decides_on_a_quick_retry(result, error_class, is_retried, is_retried_with_wait):
    found = error_classes.error_class_of(result) if isinstance(result, int) else result.error_class
    assert found == error_class
    if error_class is not None:
        policy = backoff.QuickRetry()
        assert (policy.wait_s(1, error_class) is not None) is is_retried
        assert (policy.wait_s(1, error_class, RETRY_AFTER_S) is not None) is is_retried_with_wait


def test_the_table_has_every_failure_without_a_response():
    assert {result for result, *_ in OUTCOMES if isinstance(result, type)} == set(errors.AttemptFailed.__subclasses__())


@pytest.mark.parametrize("reason", [retry_reasons.CONFIGURATION, retry_reasons.LANE_DEADLINE])
def test_a_reason_without_an_attempt_is_not_retried(reason):
    assert backoff.QuickRetry().wait_s(1, reason, RETRY_AFTER_S) is None


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
    policy = backoff.QuickRetry(max_attempts=4, first_wait_s=0.2)
    assert policy.wait_s(attempt_number, error_classes.SERVER_ERROR, rng=fakes.Middle()) == (
        None if wait_s is None else pytest.approx(wait_s)
    )


def test_quick_waits_are_randomised_by_a_fifth_to_both_sides():
    rng = random.Random(1)
    waits = [backoff.QuickRetry(first_wait_s=1.0).wait_s(1, error_classes.SERVER_ERROR, rng=rng) for _ in range(1000)]
    assert 0.8 <= min(waits) < 0.81
    assert 1.19 < max(waits) <= 1.2


@pytest.mark.parametrize(
    ("retry_after_s", "wait_s"),
    [
        (0.0, 0.2),  # shorter than the policy's own wait
        (0.1, 0.2),
        (1.0, 1.1),  # randomised to later only: the middle of 1.0 and 1.2
        (3.0, 3.3),  # exactly the longest wait of the lane
        (3.01, None),
        (retry_after.MAX_RETRY_AFTER_S, None),
    ],
)
def test_a_retry_after_is_the_least_wait_or_ends_the_attempts(retry_after_s, wait_s):
    policy = backoff.QuickRetry(first_wait_s=0.2, max_retry_after_s=3.0)
    found = policy.wait_s(1, error_classes.UNAVAILABLE, retry_after_s, fakes.Middle())
    assert found == (None if wait_s is None else pytest.approx(wait_s))


@given(
    st.sampled_from([error_classes.THROTTLED, error_classes.UNAVAILABLE, error_classes.SERVER_ERROR]),
    st.integers(1, 5),
    st.floats(0, 10),
    st.randoms(use_true_random=False),
)
def test_no_quick_retry_is_before_the_retry_after(error_class, attempt_number, retry_after_s, rng):
    wait_s = backoff.QuickRetry(max_attempts=5).wait_s(attempt_number, error_class, retry_after_s, rng)
    assert wait_s is None or wait_s >= retry_after_s


def test_a_retry_after_adds_no_attempt():
    assert backoff.QuickRetry(max_attempts=2).wait_s(2, error_classes.UNAVAILABLE, RETRY_AFTER_S) is None


DEFAULT = Retrying()
NEVER_MS = 10**15


def next_attempt(error_class, used=0, *, by=DEFAULT, **fields):
    """Return the next attempt of a delivery that has used up `used` waits of the schedule, without randomness."""
    return backoff.next_attempt(by, error_class, used, **{"now_ms": 0, "expires_ms": NEVER_MS, "rng": fakes.Middle()} | fields)


SCHEDULED = [
    # class                            used up   waits, s     used up after it
    ("server_error",                   0,        5,           1),
    ("server_error",                   1,        300,         2),
    ("unavailable",                    2,        1_800,       3),
    ("timeout",                        3,        7_200,       4),
    ("throttled",                      4,        18_000,      5),
    ("connect",                        5,        36_000,      6),
    ("connection_lost",                6,        36_000,      7),
    ("dns",                            7,        None,        None),
    ("address_blocked",                0,        5,           1),  # like `dns`: customers do not see the difference
    # A failure that people have to repair starts with the second wait.
    ("refused",                        0,        300,         2),
    ("redirect",                       0,        300,         2),
    ("configuration",                  0,        300,         2),
    ("tls",                            0,        300,         2),
    ("refused",                        1,        300,         2),
    ("refused",                        6,        36_000,      7),
    ("refused",                        7,        None,        None),
    # A fault of ours, or an endpoint that will be disabled, uses up no wait.
    ("local",                          0,        5,           0),
    ("local",                          7,        5,           7),
    ("gone",                           3,        5,           3),
]  # fmt: skip


@pytest.mark.parametrize(("error_class", "used", "wait_s", "used_after"), SCHEDULED)
def test_each_class_of_failure_has_its_wait_of_the_schedule(error_class, used, wait_s, used_after):
    assert next_attempt(error_class, used) == (None if wait_s is None else (wait_s * 1000, used_after))


def test_the_wait_after_faults_of_ours_grows_with_their_number():
    assert [next_attempt("local", 2, repeated=count) for count in (1, 2, 10)] == [(5000, 2), (10_000, 2), (50_000, 2)]


@pytest.mark.parametrize(
    ("ended_by", "count"), [(["dns"], 1), (["local", "dns", "local"], 1), (["dns", "local", "local"], 2), (["local"] * 11, 10)]
)
def test_only_the_last_ten_faults_of_ours_in_a_row_count(ended_by, count):
    assert backoff.local_failures([Attempt(1, 0, 5.0, None, error_class) for error_class in ended_by]) == count


@pytest.mark.parametrize("error_class", ["server_error", "refused", "local", "gone"])
def test_without_a_schedule_a_failure_is_given_up(error_class):
    assert next_attempt(error_class, by=Retrying(schedule_s=())) is None


def test_the_only_wait_of_a_schedule_is_not_skipped():
    assert next_attempt(error_classes.REFUSED, by=Retrying(schedule_s=(5,))) == (5000, 1)


@pytest.mark.parametrize(
    ("retry_after_s", "wait_s"),
    [
        (0.0, 5),
        (4.0, 5),  # the middle of 4 and 4.8 is before the schedule
        (10.0, 11),  # randomised to later only: the middle of 10 and 12
        (retry_after.MAX_RETRY_AFTER_S, 1.1 * 86_400),
    ],
)
def test_a_retry_after_is_the_least_wait_of_the_schedule(retry_after_s, wait_s):
    assert next_attempt(error_classes.THROTTLED, retry_after_s=retry_after_s) == (round(wait_s * 1000), 1)


@given(
    st.sampled_from([error_class for error_class, *_ in SCHEDULED]),
    st.integers(0, 6),
    st.one_of(st.none(), st.floats(0, retry_after.MAX_RETRY_AFTER_S)),
    st.integers(0, 10**9),
    st.randoms(use_true_random=False),
)
def test_a_next_attempt_is_after_retry_after_and_before_the_expiry(error_class, used, retry_after_s, lasts_ms, rng):
    now_ms = 1_700_000_000_000
    found = next_attempt(error_class, used, now_ms=now_ms, expires_ms=now_ms + lasts_ms, retry_after_s=retry_after_s, rng=rng)
    if found is not None:
        assert now_ms + 1000 * (retry_after_s or 0) - 1 <= found.at_ms <= now_ms + lasts_ms
        assert used <= found.retries <= len(DEFAULT.schedule_s)


def test_waits_of_the_schedule_are_randomised_by_a_fifth_to_both_sides():
    rng = random.Random(1)
    waits = [next_attempt(error_classes.SERVER_ERROR, 1, rng=rng).at_ms / 1000 for _ in range(1000)]
    assert 240 <= min(waits) < 241
    assert 359 < max(waits) <= 360


def test_a_wait_beyond_the_expiry_gives_the_delivery_up():
    assert next_attempt(error_classes.SERVER_ERROR, expires_ms=5000) == (5000, 1)
    assert next_attempt(error_classes.SERVER_ERROR, expires_ms=4999) is None
