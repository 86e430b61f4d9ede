"""Counters count the results of a task. The sum of two Counters has all counts of both."""

import pickle

import pytest

from delivery.model import Attempt, Outcome, OutcomeKind, SkipReason
from delivery.webhooks.results import counters
from delivery.webhooks.results.task_results import Results
from delivery.webhooks.routing import intake
from tests.support import builders

APPENDED_AT_MS = 1_700_000_000_000


def attempt(number=1, error_class=None, *, after_s=0.2):
    """Return an attempt of 100 ms that ends `after_s` after Kafka appended the event."""
    return Attempt(
        number=number,
        started_at_ms=round(APPENDED_AT_MS + after_s * 1000 - 100),
        duration_ms=100.0,
        status=None,
        error_class=error_class,
    )


def outcome(kind, *attempts, reason=None):
    return Outcome(delivery=builders.delivery(), kind=kind, attempts=attempts, reason=reason)


def delivered(*attempts):
    return outcome(OutcomeKind.DELIVERED, *attempts)


def test_every_outcome_attempt_and_rejection_is_counted_by_its_class():
    results = Results(
        outcomes=[
            delivered(attempt()),
            delivered(attempt(1, "server_error"), attempt(2)),
            outcome(OutcomeKind.DEAD_LETTERED, attempt(1, "timeout"), reason="timeout"),
            outcome(OutcomeKind.DEAD_LETTERED, reason="lane_deadline"),
            outcome(OutcomeKind.SKIPPED, reason=SkipReason.SUBSCRIPTION_PAUSED),
        ],
        rejections=[intake.Rejection(record=builders.record(), reason="not_json", detail="")],
        most_in_flight=3,
    )
    counted = counters.count(results, cpu_s=0.5)
    assert counted.deliveries == {
        ("delivered", "none"): 2,
        ("dead_lettered", "timeout"): 1,
        ("dead_lettered", "lane_deadline"): 1,
        ("skipped", "subscription_paused"): 1,
    }
    assert counted.attempts == {"none": 2, "server_error": 1, "timeout": 1}
    assert (counted.retries, counted.rejected, counted.most_in_flight, counted.cpu_s) == (1, {"not_json": 1}, 3, 0.5)


@pytest.mark.parametrize(
    ("after_s", "bound"),
    [
        (-5.0, 0.1),  # the producer's clock is ahead of ours
        (0.1, 0.1),  # a bound belongs to its bucket, as Prometheus has it
        (0.101, 0.25),
        (2.9, 3.0),
        (7200.0, float("inf")),
    ],
)
def test_latency_is_counted_from_the_append_to_the_last_response(after_s, bound):
    outcomes = [delivered(attempt(1, "dns", after_s=-9.0), attempt(2, after_s=after_s))]
    counted = counters.count(Results(outcomes=outcomes), cpu_s=0)
    assert counted.latencies == {bound: 1}
    assert counted.latency_sum_s == pytest.approx(max(0.0, after_s))


def test_only_accepted_deliveries_have_a_latency():
    counted = counters.count(
        Results(outcomes=[outcome(OutcomeKind.DEAD_LETTERED, attempt(1, "refused"), reason="refused")]), cpu_s=0
    )
    assert not counted.latencies


def test_the_counters_of_two_halves_add_up_to_the_whole():
    halves = [
        [delivered(attempt()), delivered(attempt(1, "dns"), attempt(2, after_s=4))],
        [outcome(OutcomeKind.SKIPPED, reason=SkipReason.QUARANTINED), delivered(attempt())],
    ]
    whole = counters.count(Results(outcomes=halves[0] + halves[1]), cpu_s=3.0)
    first, second = (counters.count(Results(outcomes=half), cpu_s=1.5) for half in halves)
    assert first + second == second + first == whole
    assert whole + counters.Counters() == whole


def test_a_sum_has_the_larger_peak_of_requests_in_flight():
    assert (counters.Counters(most_in_flight=3) + counters.Counters(most_in_flight=8)).most_in_flight == 8


def test_counters_do_not_grow_with_the_records():
    def of(count):
        return len(pickle.dumps(counters.count(Results(outcomes=[delivered(attempt())] * count), cpu_s=0)))

    assert of(10_000) <= of(1) + 20  # wider numbers, and nothing else
