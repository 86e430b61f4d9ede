"""A fast lane reports an accepting endpoint now and then, not with each delivery."""

from delivery.webhooks.retries import health_hints
from tests.support import builders, fakes

ONE, OTHER = builders.endpoint("ep1"), builders.endpoint("ep2")


def told_every(seconds):
    """Random numbers that make each interval three quarters of the longest."""
    return health_hints.Acceptances(seconds, fakes.Middle())


def test_the_first_acceptance_is_reported_at_once_then_at_intervals():
    told = told_every(80.0)
    assert told.to_report([ONE], 1000.0) == [ONE]
    assert told.to_report([ONE, OTHER], 1059.9) == [OTHER]
    assert told.to_report([ONE, OTHER], 1060.0) == [ONE]
    assert told.to_report([ONE, OTHER], 1119.8) == []
    assert told.to_report([ONE, OTHER], 1120.0) == [ONE, OTHER]


def test_reports_that_coincided_spread_out_and_are_never_late():
    told, many = health_hints.Acceptances(80.0), [builders.endpoint(f"ep{n}") for n in range(100)]
    told.to_report(many, 1000.0)
    counts = [len(told.to_report(many, 1000.0 + second)) for second in range(81)]
    assert sum(counts[:40]) == 0
    assert 0 < max(counts) < 50
    assert sum(counts) >= 100


def test_the_number_of_remembered_endpoints_is_bounded(monkeypatch):
    monkeypatch.setattr(health_hints, "MAX_KNOWN", 2)
    told = told_every(80.0)
    third = builders.endpoint("ep3")
    assert told.to_report([ONE, OTHER], 1000.0) == [ONE, OTHER]
    assert told.to_report([third], 1001.0) == [third]
    assert told.to_report([ONE, third], 1002.0) == [ONE], "what was forgotten is told too often, and never too seldom"
