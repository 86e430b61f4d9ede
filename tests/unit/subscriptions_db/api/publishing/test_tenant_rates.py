"""All keys together publish a bounded number of events a second for one tenant."""

import pytest

from subscriptions_db.api.contract import problems
from subscriptions_db.api.publishing import tenant_rates
from tests.support.fakes import Clock

MAX_PER_S, BURST_SHARE = 10, 0.2


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def rates(clock):
    return tenant_rates.TenantRates(MAX_PER_S, BURST_SHARE, clock)


def refused(rates, tenants):
    with pytest.raises(problems.Refused) as found:
        rates.spend(tenants)
    return found.value


def test_events_above_the_rate_of_a_tenant_are_refused_until_they_are_due(rates, clock):
    rates.spend(["t1"] * 18)  # of which 2 may come at once, and 16 need 2 s at 8 a second
    answer = refused(rates, ["t1"])
    assert (answer.problem.status, answer.problem.code) == (429, "tenant_rate_limited")
    assert answer.headers == {"retry-after": "3"}  # 17 events must be over, so that the next one may come
    assert "more than 10 events a second of tenant t1" in answer.problem.detail
    clock.now += 3
    rates.spend(["t1"])


def test_a_request_above_the_rate_of_one_tenant_counts_for_none(rates):
    rates.spend(["t1"] * 20)
    for _ in range(100):
        assert "tenant t1," in refused(rates, ["t2", "t1", "t3"]).problem.detail
    rates.spend(["t2", "t3"])
    rates.spend(["t2", "t3"])
    assert "tenant t2," in refused(rates, ["t2"]).problem.detail


def test_the_tenant_that_waits_longest_decides_the_wait(rates):
    rates.spend(["t1"] * 10 + ["t2"] * 82)
    answer = refused(rates, ["t1", "t2", "t3"])
    assert "tenant t2," in answer.problem.detail
    assert answer.headers == {"retry-after": "11"}  # 82 + 1 events without the 2 of the burst are 81 eighths of a second


def test_a_batch_larger_than_the_rate_is_published_whole(rates):
    rates.spend(["t1"] * 1000)
    assert refused(rates, ["t1"]).headers == {"retry-after": "125"}


def test_without_a_limit_no_tenant_is_refused_or_counted(clock):
    rates = tenant_rates.TenantRates(0, BURST_SHARE, clock)
    for _ in range(10):
        rates.spend(["t1"] * 1000)
    assert not rates._paces


def test_a_bounded_number_of_tenants_is_counted(rates):
    for number in range(tenant_rates.MAX_TENANTS + 10):
        rates.spend([f"t{number}"])
    assert len(rates._paces) == tenant_rates.MAX_TENANTS
