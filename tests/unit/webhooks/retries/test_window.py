"""How many requests an endpoint of the retry lane gets at once, and when it is left alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery import errors
from delivery.model import CustomerId, EndpointId
from delivery.webhooks.policy import retry_decision
from delivery.webhooks.retries import retry_messages, window
from tests.support.retries import NOW

POLICY = window.ShardPolicy()


def report(delivered=0, failed=0, **fields):
    defaults = {"order_key": None, "blocked": None, "retry_after_s": None}
    return retry_messages.Report(
        endpoint_id=EndpointId("ep1"),
        customer_id=CustomerId("c1"),
        lease=1,
        delivered=delivered,
        failed=failed,
        requeued=[],
        **defaults | fields,
    )


def after(*reports, now_ms=NOW, policy=POLICY):
    made = window.Window()
    for each in reports:
        made.apply_report(each, policy, now_ms)
    return made


def waits_s(made, now_ms=NOW):
    return (made.backoff_until_ms - now_ms) / 1000


ACCEPTED, FAILED, BOTH = report(delivered=1), report(failed=1), report(delivered=1, failed=1)


def test_an_endpoint_of_which_nobody_says_ill_begins_with_a_few():
    assert (window.Window().size, window.Window().backoff_until_ms) == (8, 0)


@pytest.mark.parametrize(
    ("reports", "size", "wait_s"),
    [
        ([FAILED], 1, 5),
        ([FAILED] * 2, 1, 10),
        ([FAILED] * 4, 1, 40),
        ([FAILED] * 5, 1, 60),  # 5 × 2^4 = 80, and the longest is 60
        ([FAILED] * 2000, 1, 60),
        ([FAILED, report(failed=1, retry_after_s=7.5)], 1, 10),
        ([report(failed=1, retry_after_s=7.5)], 1, 7.5),
        ([report(failed=3, retry_after_s=86_400.0)], 1, 86_400),
    ],
)
def test_only_failures_hold_it_for_twice_as_long_each_time_and_as_long_as_it_asked_for(reports, size, wait_s):
    made = after(*reports)
    assert (made.size, waits_s(made)) == (size, wait_s)


def test_success_begins_the_intervals_anew():
    made = after(*[FAILED] * 4, ACCEPTED)
    made.apply_report(FAILED, POLICY, NOW + 100_000)
    assert waits_s(made, NOW + 100_000) == 5


@pytest.mark.parametrize(
    ("reports", "size"),
    [
        ([ACCEPTED], 16),
        ([ACCEPTED] * 20, 256),
        ([FAILED, ACCEPTED], 2),
        ([FAILED] + [ACCEPTED] * 3, 8),
        ([BOTH], 4),
        ([BOTH] * 3, 1),
        ([BOTH] * 9, 1),
        ([ACCEPTED, BOTH, ACCEPTED], 16),
        ([report()], 8),  # faults of ours alone: nothing is learnt
    ],
)
def test_the_window_doubles_with_successes_and_halves_when_there_are_failures_among_them(reports, size):
    assert after(*reports).size == size


def test_an_endpoint_that_flaps_is_never_held():
    made = window.Window()
    for number in range(100):
        made.apply_report(BOTH if number % 2 else report(delivered=3, failed=3), POLICY, NOW + number)
        assert (made.backoff_until_ms, made.has_recovered) == (0, True)


def test_what_is_asked_for_counts_also_beside_a_success():
    assert waits_s(after(report(delivered=1, retry_after_s=30.0))) == 30


def test_one_key_s_failures_hold_no_other_key():
    made = after(report(failed=1, order_key="a"))
    assert (made.size, made.backoff_until_ms) == (4, 0)


@pytest.mark.parametrize("why", [retry_decision.ENDPOINT_PAUSED, retry_decision.ENDPOINT_DISABLED])
@pytest.mark.parametrize("order_key", [None, "a"])
def test_where_nothing_may_be_attempted_it_is_held_and_its_health_begins_anew(why, order_key):
    made = after(FAILED, report(blocked=why, order_key=order_key))
    assert (made.size, waits_s(made), made.failing_since_ms) == (1, 10, None)


@pytest.mark.parametrize("reason", sorted(window.BACKOFF_REASONS))
def test_another_lane_s_word_holds_an_endpoint_once_and_not_longer_with_each_word(reason):
    made = window.Window()
    for second in range(60):
        made.apply_deferral(reason, POLICY, NOW + second * 1000, NOW)
    assert (waits_s(made), made.size, made.has_recovered) == (5, 1, False)


@pytest.mark.parametrize(
    "reason",
    [retry_decision.RATE_LIMITED, retry_decision.ORDERED, errors.LocalFailure.error_class, retry_decision.CONFIGURATION],
)
def test_what_is_no_word_about_the_endpoint_s_health_changes_nothing(reason):
    made = window.Window()
    made.apply_deferral(reason, POLICY, NOW, NOW)
    assert made == window.Window()


@pytest.mark.parametrize(
    "reason", [retry_decision.SERVER_ERROR, retry_decision.REFUSED, retry_decision.REDIRECT, "timeout", "tls"]
)
def test_what_it_has_failed_elsewhere_holds_nothing_and_counts(reason):
    made = window.Window()
    made.apply_deferral(reason, POLICY, NOW, NOW)
    assert (made.backoff_until_ms, made.has_recovered, made.is_degraded, made.failing_since_ms) == (0, True, False, NOW)


def test_a_report_counts_for_more_than_what_other_lanes_say_for_a_while():
    made = after(ACCEPTED)
    made.apply_deferral(retry_decision.CIRCUIT_OPEN, POLICY, NOW + 59_999, NOW)
    assert made.backoff_until_ms == 0
    made.apply_deferral(retry_decision.CIRCUIT_OPEN, POLICY, NOW + 60_000, NOW)
    assert made.backoff_until_ms > NOW + 60_000


def test_it_is_open_again_when_its_window_is():
    made = after(FAILED, *[ACCEPTED] * 5)
    assert (made.size, made.suppressed_until_ms) == (32, window.NEVER_MS)
    made.apply_report(ACCEPTED, POLICY, NOW)
    assert (made.size, made.has_recovered) == (64, True)
    small = after(FAILED, *[ACCEPTED] * 2, policy=window.ShardPolicy(max_lease_entries=4))
    assert (small.size, small.has_recovered) == (4, True)


AN_HOUR = window.ShardPolicy(disable_after_s=3200)
"""Less the eighth by which what other lanes tell may be late."""
REFUSED = report(refused=1)


@pytest.mark.parametrize(
    ("reports", "is_failing"),
    [
        ([(0, FAILED)], False),
        ([(0, FAILED), (1600, FAILED), (3199, FAILED)], False),
        ([(0, FAILED), (1600, FAILED), (3200, FAILED), (3599, FAILED)], False),
        ([(0, FAILED), (1600, FAILED), (3200, FAILED), (3600, FAILED)], True),
        ([(0, FAILED), (3600, FAILED)], False),  # nobody has asked for so long
        ([(0, FAILED), (1601, FAILED), (3200, FAILED), (4800, FAILED)], False),
        ([(0, FAILED), (1601, FAILED), (3200, FAILED), (4800, FAILED), (5201, FAILED)], True),  # from the second one on
        ([(0, FAILED), (1600, FAILED), (3200, FAILED), (3600, report())], False),  # no failure has been reported for so long
        # Nor is what was said again and again: somebody may have enabled it.
        ([(0, FAILED), (1600, FAILED), (3200, FAILED), (3600, FAILED), (3660, report())], False),
        ([(0, FAILED), (1600, FAILED), (3200, FAILED), (3600, FAILED), (3659, report())], True),
        ([(at_s, REFUSED) for at_s in (0, 1600, 3200, 3600)], True),
        ([(at_s, report(refused=1, order_key="a")) for at_s in (0, 1600, 3200, 3600)], True),
        ([(0, FAILED), (1600, REFUSED), (3200, FAILED), (3600, REFUSED)], True),
        ([(0, REFUSED), (1600, report(delivered=1, refused=1)), (3200, REFUSED), (3600, REFUSED)], False),
        ([(0, FAILED), (1600, BOTH), (3200, FAILED), (3600, FAILED)], False),
        ([(0, FAILED), (1600, ACCEPTED), (3200, FAILED), (3600, FAILED)], False),
        ([(0, FAILED), (1600, report(blocked=retry_decision.ENDPOINT_PAUSED)), (3200, FAILED), (3600, FAILED)], False),
        ([(0, report(blocked=retry_decision.ENDPOINT_PAUSED)), (3600, FAILED)], False),
        ([(at_s, report(failed=1, order_key=key)) for at_s, key in ((0, "a"), (1600, "b"), (3200, "c"), (3600, "a"))], True),
    ],
)
def test_failing_is_who_has_accepted_nothing_from_a_report_to_another_for_so_long(reports, is_failing):
    made = window.Window()
    for at_s, each in reports:
        made.apply_report(each, AN_HOUR, NOW + at_s * 1000)
    assert made.is_failing(AN_HOUR, NOW + reports[-1][0] * 1000) is is_failing


def test_failing_is_also_who_has_failed_in_other_lanes_only():
    made = window.Window()
    for at_s in (0, 1600, 3200, 3600):
        made.apply_deferral(retry_decision.SERVER_ERROR, AN_HOUR, NOW + at_s * 1000, NOW + at_s * 1000)
    assert made.is_failing(AN_HOUR, NOW + 3_600_000)


@pytest.mark.parametrize("of_another_lane", ["accepted", retry_decision.ENDPOINT_PAUSED, retry_decision.ENDPOINT_DISABLED])
def test_failing_is_not_who_has_accepted_something_in_another_lane_or_was_stopped_meanwhile(of_another_lane):
    made = window.Window()
    made.apply_report(FAILED, AN_HOUR, NOW)
    if of_another_lane == "accepted":
        made.record_acceptance()
    else:
        made.apply_deferral(of_another_lane, AN_HOUR, NOW + 1000, NOW)
    for at_s in (1600, 3200, 3600):
        made.apply_report(FAILED, AN_HOUR, NOW + at_s * 1000)
        assert not made.is_failing(AN_HOUR, NOW + at_s * 1000)


def test_what_has_failed_is_remembered_until_it_says_nothing_any_more():
    made = window.Window()
    for at_s in (0, 1600, 3200, 3600):
        made.record_failure(AN_HOUR, NOW + at_s * 1000)
        assert made.kept_until_ms(AN_HOUR) == NOW + at_s * 1000 + 1_600_000
    made.record_acceptance()
    assert made.kept_until_ms(AN_HOUR) == 0


def test_a_failure_counts_from_when_it_was_written_whenever_it_is_read():
    late = window.Window()
    late.apply_report(FAILED, AN_HOUR, NOW)
    late.apply_deferral(retry_decision.SERVER_ERROR, AN_HOUR, NOW + 3_600_000, NOW + 1_600_000)
    late.apply_report(report(failed=1, at_ms=NOW + 3_200_000), AN_HOUR, NOW + 3_600_000)
    assert (late.failing_since_ms, late.failed_ms, late.is_failing(AN_HOUR, NOW + 3_600_000)) == (NOW, NOW + 3_200_000, False)
    late.apply_deferral(
        retry_decision.SERVER_ERROR, AN_HOUR, NOW + 3_600_001, NOW + 1000
    )  # of a clock or a record that is behind
    assert late.failed_ms == NOW + 3_200_000
    late.apply_report(report(failed=1, at_ms=NOW + 9_000_000), AN_HOUR, NOW + 3_601_000)  # of a clock that is ahead
    assert late.failed_ms == NOW + 3_601_000


def test_of_old_only_for_how_long_it_has_failed_is_still_true():
    assert after(*[FAILED] * 9).without_report() == window.Window(failing_since_ms=NOW, failed_ms=NOW)


def test_who_refuses_one_event_and_another_is_alive_and_asked_no_less():
    refused = report(refused=1)
    made = after(refused, refused)
    assert (made.size, made.has_recovered, made.backoff_until_ms) == (32, True, 0)
    back = after(FAILED, refused)  # a probe that is refused was answered
    assert (back.size, back.backoffs) == (2, 0)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 10**6)), max_size=30), st.integers(1, 300))
def test_the_window_stays_within_its_bounds(history, max_lease_entries):
    made, policy, now_ms = window.Window(), window.ShardPolicy(max_lease_entries=max_lease_entries), NOW
    for delivered, failed, after_ms in history:
        now_ms += after_ms
        made.apply_report(report(delivered, failed), policy, now_ms)
        assert 1 <= made.size <= max(max_lease_entries, window.INITIAL_WINDOW)
        assert made.backoff_until_ms <= now_ms + policy.max_probe_interval_s * 1000


@pytest.mark.parametrize(("between_s", "is_failing"), [(180, True), (181, False)])
def test_two_probes_as_far_apart_as_the_retry_lane_takes_at_most_have_no_silence_between_them(between_s, is_failing):
    made, policy = window.Window(), window.ShardPolicy(disable_after_s=4, max_probe_interval_s=60, lease_timeout_s=120)
    for at_s in (0, between_s):
        made.apply_report(FAILED, policy, NOW + at_s * 1000)
    assert made.is_failing(policy, NOW + between_s * 1000) is is_failing
