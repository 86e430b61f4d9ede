"""The window bounds the retry lane's requests in flight to an endpoint. The back-off delays them after failures."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery import errors
from delivery.registry_model import CustomerId, EndpointId
from delivery.webhooks.policy import error_classes, retry_reasons
from delivery.webhooks.retries import retry_messages, window
from tests.support import retries
from tests.support.retries import NOW

POLICY = window.ShardPolicy()


def report(delivered=0, failed=0, **fields):
    defaults = {"order_key": None, "blocked": None, "retry_after_s": None, "requeued": []}
    return retry_messages.Report(
        endpoint_id=EndpointId("ep1"),
        customer_id=CustomerId("c1"),
        lease=1,
        delivered=delivered,
        failed=failed,
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
DOWN, MOSTLY_FAILED = report(failed=8), report(delivered=1, failed=2)


def test_an_unknown_endpoint_starts_with_the_initial_window():
    assert (window.Window().size, window.Window().backoff_until_ms) == (8, 0)


@pytest.mark.parametrize(
    ("reports", "size", "wait_s"),
    [
        ([DOWN], 1, 5),
        ([DOWN, FAILED], 1, 10),
        ([DOWN] * 4, 1, 40),
        ([DOWN] * 5, 1, 60),  # 5 × 2^4 = 80, and the longest is 60
        ([FAILED] * 2000, 1, 60),
        ([DOWN, report(failed=1, retry_after_s=7.5)], 1, 10),
        ([report(failed=1, retry_after_s=7.5)], 1, 7.5),
        ([report(failed=3, retry_after_s=86_400.0)], 1, 86_400),
    ],
)
def test_failures_only_double_the_back_off_and_keep_retry_after(reports, size, wait_s):
    made = after(*reports)
    assert (made.size, waits_s(made)) == (size, wait_s)


def test_a_success_resets_the_back_off():
    made = after(*[DOWN] * 4, ACCEPTED)
    made.apply_report(DOWN, POLICY, NOW + 100_000)
    assert waits_s(made, NOW + 100_000) == 5


@pytest.mark.parametrize(
    ("reports", "size"),
    [
        ([ACCEPTED], 16),
        ([ACCEPTED] * 20, 256),
        ([DOWN, ACCEPTED], 2),
        ([DOWN] + [ACCEPTED] * 3, 8),
        ([BOTH], 16),
        ([report(refused=1, failed=1)], 16),
        ([MOSTLY_FAILED], 4),
        ([MOSTLY_FAILED] * 3, 1),
        ([MOSTLY_FAILED] * 9, 1),
        ([ACCEPTED, MOSTLY_FAILED, ACCEPTED], 16),
        ([report()], 8),  # faults of ours alone: nothing is learnt
    ],
)
def test_the_window_doubles_with_success_and_halves_with_failure(reports, size):
    assert after(*reports).size == size


@pytest.mark.parametrize(
    ("reports", "size", "wait_s"),
    [
        ([FAILED], 4, 0),
        ([FAILED] * 3, 1, 0),
        ([FAILED] * 4, 1, 5),
        ([report(failed=3)], 1, 0),
        ([report(failed=4)], 1, 5),
        ([ACCEPTED] * 20 + [DOWN], 1, 0),
        ([ACCEPTED] * 20 + [report(failed=9)], 1, 5),
        ([DOWN, ACCEPTED, FAILED], 1, 5),
    ],
)
def test_as_many_failures_in_a_row_as_halve_the_window_away_back_off(reports, size, wait_s):
    """Regression: one failed delivery, alone in its lease, caused a back-off and suppressed the endpoint."""
    made = after(*reports)
    assert (made.size, max(waits_s(made), 0)) == (size, wait_s)


@pytest.mark.parametrize(
    ("asking", "size", "wait_s"),
    [
        (report(delivered=7, failed=1, is_throttled=True), 4, 0),
        (report(delivered=7, failed=1, retry_after_s=1.0), 4, 1),
        (report(failed=1, is_throttled=True), 1, 5),
        (report(failed=1, is_throttled=True, order_key="a"), 4, 0),
        (report(delivered=7, retry_after_s=1.0), 16, 1),  # a refusal by 413, for example
        (report(delivered=7, failed=1, requeued=[retries.requeue(0, NOW, reason=error_classes.THROTTLED)]), 16, 0),  # earlier
    ],
)
def test_an_endpoint_that_asks_for_fewer_requests_gets_fewer(asking, size, wait_s):
    made = after(asking)
    assert (made.size, max(waits_s(made), 0)) == (size, wait_s)


def test_an_unstable_endpoint_has_no_back_off():
    made = window.Window()
    for number in range(100):
        made.apply_report(BOTH if number % 2 else report(delivered=3, failed=5), POLICY, NOW + number)
        assert (made.backoff_until_ms, made.has_recovered) == (0, True)


@pytest.mark.parametrize(
    ("each", "size", "wait_s", "has_only_failed"),
    [
        (report(failed=9, poison=9), 8, 0, False),
        (report(failed=9, poison=8), 4, 0, True),
        (report(failed=9, poison=5), 1, 5, True),
        (report(delivered=4, failed=5, poison=5), 4, 0, False),
        (report(failed=9, poison=9, retry_after_s=7.0), 8, 7, False),
    ],
)
def test_failures_of_poison_events_alone_leave_the_window_as_it_is(each, size, wait_s, has_only_failed):
    made = window.Window(accepted_ms=NOW - 1)
    made.apply_report(each, POLICY, NOW)
    assert (made.size, max(waits_s(made), 0), made.has_only_failed) == (size, wait_s, has_only_failed)


def test_poison_counts_from_the_second_failure_after_an_acceptance():
    made = after(ACCEPTED)
    made.apply_report(report(failed=9, poison=9), POLICY, NOW + 1000)
    assert (made.size, made.backoff_until_ms) == (16, 0)
    made.apply_report(report(failed=9, poison=9), POLICY, NOW + 2000)
    assert (made.size, waits_s(made, now_ms=NOW + 2000)) == (1, 5)


def test_a_retry_after_counts_beside_a_success_too():
    assert waits_s(after(report(delivered=1, retry_after_s=30.0))) == 30


def test_failures_of_one_order_key_cause_no_back_off():
    made = after(report(failed=1, order_key="a"))
    assert (made.size, made.backoff_until_ms) == (4, 0)


@pytest.mark.parametrize("why", [retry_reasons.ENDPOINT_PAUSED, retry_reasons.ENDPOINT_DISABLED])
@pytest.mark.parametrize("order_key", [None, "a"])
def test_a_blocked_endpoint_backs_off_and_its_health_is_reset(why, order_key):
    made = after(DOWN, report(blocked=why, order_key=order_key))
    assert (made.size, waits_s(made), made.failing_since_ms) == (1, 10, None)


@pytest.mark.parametrize("reason", sorted(window.BACKOFF_REASONS))
def test_another_lanes_reason_causes_one_back_off(reason):
    made = window.Window()
    for second in range(60):
        made.apply_deferral(reason, POLICY, NOW + second * 1000, NOW)
    assert (waits_s(made), made.size, made.has_recovered) == (5, 1, False)


@pytest.mark.parametrize(
    "reason",
    [retry_reasons.RATE_LIMITED, retry_reasons.ORDERED, errors.LocalFailure.error_class, retry_reasons.CONFIGURATION],
)
def test_a_reason_that_says_nothing_of_health_changes_nothing(reason):
    made = window.Window()
    made.apply_deferral(reason, POLICY, NOW, NOW)
    assert made == window.Window()


@pytest.mark.parametrize(
    "reason", [error_classes.SERVER_ERROR, error_classes.REFUSED, error_classes.REDIRECT, "timeout", "tls"]
)
def test_a_failure_in_a_fast_lane_counts_without_a_back_off(reason):
    made = window.Window()
    made.apply_deferral(reason, POLICY, NOW, NOW)
    assert (made.backoff_until_ms, made.has_recovered, made.is_degraded, made.failing_since_ms) == (0, True, False, NOW)


def test_a_current_report_outweighs_reasons_of_other_lanes():
    made = after(ACCEPTED)
    made.apply_deferral(retry_reasons.CIRCUIT_OPEN, POLICY, NOW + 59_999, NOW)
    assert made.backoff_until_ms == 0
    made.apply_deferral(retry_reasons.CIRCUIT_OPEN, POLICY, NOW + 60_000, NOW)
    assert made.backoff_until_ms > NOW + 60_000


def test_an_endpoint_has_recovered_at_the_recovered_window():
    made = after(DOWN, *[ACCEPTED] * 5)
    assert (made.size, made.suppressed_until_ms) == (32, window.NEVER_MS)
    made.apply_report(ACCEPTED, POLICY, NOW)
    assert (made.size, made.has_recovered) == (64, True)
    small = after(DOWN, *[ACCEPTED] * 2, policy=window.ShardPolicy(max_lease_entries=4))
    assert (small.size, small.has_recovered) == (4, True)


AN_HOUR = window.ShardPolicy(disable_after_s=3200)
"""Less the eighth by which reports of other lanes may be late."""
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
        ([(0, FAILED), (1600, report(blocked=retry_reasons.ENDPOINT_PAUSED)), (3200, FAILED), (3600, FAILED)], False),
        ([(0, report(blocked=retry_reasons.ENDPOINT_PAUSED)), (3600, FAILED)], False),
        ([(at_s, report(failed=1, order_key=key)) for at_s, key in ((0, "a"), (1600, "b"), (3200, "c"), (3600, "a"))], True),
    ],
)
def test_an_endpoint_fails_after_reports_without_acceptance(reports, is_failing):
    made = window.Window()
    for at_s, each in reports:
        made.apply_report(each, AN_HOUR, NOW + at_s * 1000)
    assert made.is_failing(AN_HOUR, NOW + reports[-1][0] * 1000) is is_failing


def test_failures_in_other_lanes_only_make_an_endpoint_failing():
    made = window.Window()
    for at_s in (0, 1600, 3200, 3600):
        made.apply_deferral(error_classes.SERVER_ERROR, AN_HOUR, NOW + at_s * 1000, NOW + at_s * 1000)
    assert made.is_failing(AN_HOUR, NOW + 3_600_000)


@pytest.mark.parametrize("of_another_lane", ["accepted", retry_reasons.ENDPOINT_PAUSED, retry_reasons.ENDPOINT_DISABLED])
def test_an_acceptance_or_a_block_resets_the_failing_time(of_another_lane):
    made = window.Window()
    made.apply_report(FAILED, AN_HOUR, NOW)
    if of_another_lane == "accepted":
        made.record_acceptance(NOW + 1000)
    else:
        made.apply_deferral(of_another_lane, AN_HOUR, NOW + 1000, NOW)
    for at_s in (1600, 3200, 3600):
        made.apply_report(FAILED, AN_HOUR, NOW + at_s * 1000)
        assert not made.is_failing(AN_HOUR, NOW + at_s * 1000)


def test_a_failure_is_remembered_until_it_is_silence():
    made = window.Window()
    for at_s in (0, 1600, 3200, 3600):
        made.record_failure(AN_HOUR, NOW + at_s * 1000)
        assert made.kept_until_ms(AN_HOUR) == NOW + at_s * 1000 + 1_600_000
    made.record_acceptance(NOW + 3_600_000)
    assert made.kept_until_ms(AN_HOUR) == 0


def test_a_failure_counts_from_its_own_time():
    late = window.Window()
    late.apply_report(FAILED, AN_HOUR, NOW)
    late.apply_deferral(error_classes.SERVER_ERROR, AN_HOUR, NOW + 3_600_000, NOW + 1_600_000)
    late.apply_report(report(failed=1, at_ms=NOW + 3_200_000), AN_HOUR, NOW + 3_600_000)
    assert (late.failing_since_ms, late.failed_ms, late.is_failing(AN_HOUR, NOW + 3_600_000)) == (NOW, NOW + 3_200_000, False)
    late.apply_deferral(
        error_classes.SERVER_ERROR, AN_HOUR, NOW + 3_600_001, NOW + 1000
    )  # of a clock or a record that is behind
    assert late.failed_ms == NOW + 3_200_000
    late.apply_report(report(failed=1, at_ms=NOW + 9_000_000), AN_HOUR, NOW + 3_601_000)  # of a clock that is ahead
    assert late.failed_ms == NOW + 3_601_000


def test_an_outdated_window_keeps_only_the_failing_time():
    assert after(*[FAILED] * 9).without_report() == window.Window(failing_since_ms=NOW, failed_ms=NOW)
    assert after(ACCEPTED).without_report() == window.Window(accepted_ms=NOW)


@pytest.mark.parametrize(
    ("message", "known_ms"),
    [
        (report(delivered=1, at_ms=NOW - 500), NOW - 500),
        (report(delivered=1, failed=7, at_ms=NOW + 500), NOW),  # of a clock that is ahead
        (ACCEPTED, NOW),
        (FAILED, 0),
        (REFUSED, 0),
        (retry_messages.Postponed.health_hint("ep1", "c1", accepts=True, at_ms=NOW - 500), NOW - 500),
        (retry_messages.Postponed.health_hint("ep1", "c1", accepts=True, at_ms=NOW + 500), NOW),
        (retry_messages.Postponed.health_hint("ep1", "c1", accepts=False, at_ms=NOW), 0),
        (retry_messages.Postponed.completion("ep1", "c1", [], accepted=True), 0),  # it has no time
    ],
)
def test_a_window_knows_the_last_acceptance_in_any_lane(message, known_ms):
    made = window.Window()
    if isinstance(message, retry_messages.Report):
        made.apply_report(message, POLICY, NOW)
    else:
        made.apply_health_hint(message, POLICY, NOW)
    assert made.accepted_ms == known_ms
    made.record_acceptance(NOW - 9000)  # an older message that comes late
    assert made.accepted_ms == max(known_ms, NOW - 9000)


def test_refusals_do_not_narrow_the_window():
    refused = report(refused=1)
    made = after(refused, refused)
    assert (made.size, made.has_recovered, made.backoff_until_ms) == (32, True, 0)
    back = after(DOWN, refused)  # a probe that is refused was answered
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
def test_the_longest_interval_between_probes_is_no_silence(between_s, is_failing):
    made, policy = window.Window(), window.ShardPolicy(disable_after_s=4, max_probe_interval_s=60, lease_timeout_s=120)
    for at_s in (0, between_s):
        made.apply_report(FAILED, policy, NOW + at_s * 1000)
    assert made.is_failing(policy, NOW + between_s * 1000) is is_failing
