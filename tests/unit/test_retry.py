"""What a status means, and whether a failed attempt is made again within the lane."""

import random

import pytest

from delivery import errors
from delivery.webhooks import retry


@pytest.mark.parametrize(
    ("status", "error_class"),
    [
        (200, None),
        (204, None),
        (299, None),
        (300, "redirect"),
        (301, "redirect"),
        (304, "redirect"),
        (308, "redirect"),
        (400, "refused"),
        (401, "refused"),
        (404, "refused"),
        (410, "gone"),
        (422, "refused"),
        (429, "throttled"),
        (500, "server_error"),
        (501, "server_error"),
        (502, "unavailable"),
        (503, "unavailable"),
        (504, "unavailable"),
        (599, "server_error"),
        (101, "response_invalid"),
        (600, "response_invalid"),
        (999, "response_invalid"),
    ],
)
def test_only_2xx_is_success_and_each_other_status_has_its_class(status, error_class):
    assert retry.error_class_of(status) == error_class


@pytest.mark.parametrize(
    ("error_class", "is_retried"),
    [
        (retry.SERVER_ERROR, True),
        (retry.UNAVAILABLE, True),
        (errors.ConnectFailed.error_class, True),
        (errors.ConnectionLost.error_class, True),
        (errors.DnsFailed.error_class, True),
        (errors.LocalFailure.error_class, True),
        (errors.AttemptTimedOut.error_class, False),
        (errors.TlsFailed.error_class, False),
        (errors.AddressBlocked.error_class, False),
        (errors.ResponseInvalid.error_class, False),
        (retry.REDIRECT, False),
        (retry.REFUSED, False),
        (retry.GONE, False),
        (retry.THROTTLED, False),
        (retry.CONFIGURATION, False),
    ],
)
def test_only_what_often_passes_within_a_second_is_retried_quickly(error_class, is_retried):
    assert (retry.QuickRetry().wait_s(1, error_class) is not None) is is_retried


class Middle:
    def uniform(self, a, b):
        return (a + b) / 2


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
    policy = retry.QuickRetry(max_attempts=4, first_wait_s=0.2)
    assert policy.wait_s(attempt_number, retry.SERVER_ERROR, Middle()) == (None if wait_s is None else pytest.approx(wait_s))


def test_waits_are_spread_by_a_fifth_to_both_sides():
    rng = random.Random(1)
    waits = [retry.QuickRetry(first_wait_s=1.0).wait_s(1, retry.SERVER_ERROR, rng) for _ in range(1000)]
    assert 0.8 <= min(waits) < 0.81
    assert 1.19 < max(waits) <= 1.2
