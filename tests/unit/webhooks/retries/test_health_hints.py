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
