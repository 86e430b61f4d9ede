"""A fast lane reports an accepting endpoint now and then, not with each delivery."""

from delivery.webhooks.retries import health_hints
from tests.support import builders, fakes

FIRST, SECOND = builders.endpoint("ep1"), builders.endpoint("ep2")


def acceptances(seconds, **options):
    """Return Acceptances whose random intervals are three quarters of the longest one."""
    return health_hints.Acceptances(seconds, fakes.Middle(), **options)


def test_the_first_acceptance_is_reported_at_once():
    hints = acceptances(80.0)
    assert hints.to_report([FIRST], (), 1000.0) == [FIRST]
    assert hints.to_report([FIRST, SECOND], (), 1059.9) == [SECOND]
    assert hints.to_report([FIRST, SECOND], (), 1060.0) == [FIRST]
    assert hints.to_report([FIRST, SECOND], (), 1119.8) == []
    assert hints.to_report([FIRST, SECOND], (), 1120.0) == [FIRST, SECOND]


def test_hints_of_many_endpoints_spread_out_and_are_never_late():
    hints, many = health_hints.Acceptances(80.0), [builders.endpoint(f"ep{n}") for n in range(100)]
    hints.to_report(many, (), 1000.0)
    counts = [len(hints.to_report(many, (), 1000.0 + second)) for second in range(81)]
    assert sum(counts[:40]) == 0
    assert 0 < max(counts) < 50
    assert sum(counts) >= 100


def test_the_number_of_remembered_endpoints_is_bounded():
    hints = acceptances(80.0, max_known=2)
    third = builders.endpoint("ep3")
    assert hints.to_report([FIRST, SECOND], (), 1000.0) == [FIRST, SECOND]
    assert hints.to_report([third], (), 1001.0) == [third]
    assert hints.to_report([FIRST, third], (), 1002.0) == [FIRST], (
        "a forgotten endpoint is reported too often, never too seldom"
    )


def test_the_first_acceptance_after_a_failure_is_reported():
    """Else the retry lane would not know that an endpoint which refuses some events is healthy."""
    hints = acceptances(80.0)
    assert hints.to_report([FIRST, SECOND], (), 1000.0) == [FIRST, SECOND]
    assert hints.to_report([FIRST, SECOND], ["ep1"], 1001.0) == [FIRST]
    assert hints.to_report([], ["ep1", "ep3"], 1002.0) == []
    assert hints.to_report([FIRST, SECOND], (), 1003.0) == [FIRST]
    assert hints.to_report([FIRST, SECOND], (), 1004.0) == []


def test_only_endpoints_that_the_retry_lane_watches_are_reported():
    """Else each worker would report each endpoint when it starts, and the retry lane would run for nothing."""
    hints = acceptances(80.0)
    hints.watch(frozenset({"ep1"}))
    assert hints.to_report([FIRST, SECOND], (), 1000.0) == [FIRST]
    hints.watch(frozenset({"ep2"}))
    assert hints.to_report([FIRST, SECOND], (), 1020.0) == [SECOND]
    hints.watch(None)
    assert hints.to_report([FIRST, SECOND], (), 1020.5) == [FIRST]


def test_a_watched_endpoint_is_reported_again_soon():
    """Its events may fail in another worker, where their failures would count if nobody knew that it accepts others."""
    hints = acceptances(10_000.0)
    assert hints.to_report([FIRST], (), 1000.0) == [FIRST]
    hints.watch(frozenset({"ep1"}))
    assert hints.to_report([FIRST], (), 1001.0) == [FIRST]
    assert hints.to_report([FIRST], (), 1001.74) == []
    assert hints.to_report([FIRST], (), 1001.75) == [FIRST]


def test_many_watched_endpoints_are_reported_less_often():
    hints, many = acceptances(10_000.0), [builders.endpoint(f"ep{n}") for n in range(100)]
    hints.watch(frozenset(endpoint.endpoint_id for endpoint in many))
    reported = [len(hints.to_report(many, (), 1000.0 + second)) for second in range(60)]
    assert sum(reported[:20]) == 100, "each once"
    assert sum(reported[20:37]) == 0


def test_endpoints_that_fail_again_and_again_make_few_hints():
    """Regression: each failure anywhere cost a hint of each worker."""
    hints, many = acceptances(10_000.0), [builders.endpoint(f"ep{n}") for n in range(1000)]
    names = frozenset(endpoint.endpoint_id for endpoint in many)
    reported = 0
    for second in range(60):
        hints.watch(names if second % 2 else frozenset())
        reported += len(hints.to_report(many, (), 1000.0 + second))
    assert reported <= 60 * health_hints.MAX_PER_S


def test_an_endpoint_that_failed_here_is_reported_before_it_is_watched():
    hints = acceptances(80.0)
    hints.watch(frozenset())
    assert hints.to_report([FIRST], ["ep1"], 1000.0) == [FIRST]
    assert hints.to_report([FIRST], (), 1001.0) == []
