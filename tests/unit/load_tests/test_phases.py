"""Load tests of two phases: the load of the second phase, the results of polls, and the compared figures."""

import collections
import dataclasses
import itertools
import pickle

import orjson
import pytest

from delivery import errors
from delivery.webhooks.events import parsing
from load_tests.harness import figures, receiver, traffic, usage
from load_tests.polls import polling_customers
from load_tests.scenarios import beside
from load_tests.scenarios.beside import Load
from tests.support import builders

DOCUMENT = {"id": "e1", "tenant_id": "t1", "sent_at_ms": 1, "amount": 5, "note": "0" * traffic.EVENT_BYTES}


def report(*arrived):
    """Return a receiver's report of arrivals, each given as (number, endpoint, age in ms)."""
    made = receiver.ReceiverReport()
    for number, endpoint, age_ms in arrived:
        made.numbers.append(number)
        made.endpoints.append(endpoint)
        made.ages_ms.append(age_ms)
    return made


@pytest.mark.parametrize("reason", traffic.POISON)
def test_poison_is_rejected_for_the_reason_of_its_count(reason):
    assert parsing.parse(builders.record(value=orjson.dumps(DOCUMENT)), parsing.Layout()).event_id == "e1"
    with pytest.raises(errors.EventRejected) as rejected:
        parsing.parse(builders.record(value=traffic.spoiled(DOCUMENT, reason)), parsing.Layout())
    assert rejected.value.reason == reason


def test_poison_that_was_not_rejected_is_counted_by_its_reason():
    published = collections.Counter(not_json=5, missing_attribute=5)
    assert figures.poison(published, published)["not_rejected"] == 0
    assert figures.poison(published, collections.Counter(not_json=10))["not_rejected"] == 5


@pytest.mark.parametrize("hot", [0.5, 0.8, 0.9])
def test_beside_a_hot_tenant_the_other_tenants_keep_their_pace(hot):
    """The first phase has as many events as the second, without the hot tenant."""
    scenario = beside.BesideScenario(load=Load.HOT, per_s=1000, hot=hot)
    phase = beside.second(scenario)
    assert phase.per_s * (1 - phase.hot) == pytest.approx(1000)
    assert beside.first(scenario) == dataclasses.replace(phase, hot=0.0)


def test_poison_comes_as_often_as_events():
    phase = beside.second(beside.BesideScenario(load=Load.POISON, per_s=1000))
    assert (phase.per_s, phase.poison_per_s) == (1000, 1000)


def test_the_flood_of_polls_runs_beside_the_same_events():
    scenario = beside.BesideScenario(load=Load.ARCHIVE, per_s=1000)
    phase = beside.second(scenario)
    assert (phase.per_s, phase.hot, phase.poison_per_s) == (1000, 0.0, 0)
    assert phase.around == scenario.flood.around


def test_the_latency_of_a_phase_counts_its_events_at_chosen_endpoints():
    hot, other = traffic.HOT_ENDPOINT, traffic.HOT_ENDPOINT + 1
    arrived = report((0, other, 900.0), (1, other, 10.0), (2, hot, 500.0), (3, other, 30.0), (4, other, 900.0))
    assert figures.latency_ms(arrived, range(1, 4))["max"] == 500
    assert figures.latency_ms(arrived, range(1, 4), traffic.is_hot)["p50"] == 500
    assert figures.latency_ms(arrived, range(1, 4), traffic.is_other) == {"p50": 20, "p90": 28, "p99": 30, "max": 30}


def test_ratios_divide_the_figures_after_by_those_before():
    assert figures.ratios({"p50": 40, "p99": 100}, {"p50": 50, "p99": 90}, "p50", "p99") == {"p50": 1.25, "p99": 0.9}


def test_usage_gives_cpu_seconds_per_million_events():
    used = usage.Usage(jvm_s=2.0, driver_s=1.0, workers_s=3.0)
    assert used.per_million(100_000) == {"jvm": 20.0, "python": 40.0, "total": 60.0}  # 2, 4 and 6 s of a tenth


def test_polls_are_due_at_a_fixed_pace():
    assert list(itertools.islice(polling_customers.schedule(10.0, 4.0), 4)) == [10.0, 10.25, 10.5, 10.75]


def test_the_report_of_polls_has_answers_by_kind():
    seen = polling_customers.PollingReport()
    for kind, status in [("page", 200), ("page", 503), ("lease", 200), ("lease", 500), ("greedy", 429), ("greedy", 429)]:
        seen.statuses[kind, status] += 1
    seen.latencies_ms["page"] += [1.04, 3.0]
    seen.broken["slow"] += 1
    document = pickle.loads(pickle.dumps(seen)).document()  # it comes from another process
    assert document["answers"] == {"page": {"200": 1, "503": 1}, "lease": {"200": 1, "500": 1}, "greedy": {"429": 2}}
    assert document["latency_ms"] == {"page": {"p50": 2.0, "p90": 2.8, "p99": 3.0, "max": 3.0}}
    assert document["unanswered"] == {"slow": 1}
    assert document["failed"] == 2


@pytest.mark.parametrize(
    ("kind", "status", "failed"),
    [
        ("page", 200, 0),
        ("page", 429, 1),
        ("lease", 404, 1),
        ("ack", 500, 1),
        ("greedy", 429, 0),
        ("greedy", 500, 1),
        ("slow", 503, 1),
    ],
)
def test_a_request_fails_by_its_status_and_its_kind(kind, status, failed):
    """Requests within the limits fail without a 200. Greedy and slow requests fail with a 5xx."""
    seen = polling_customers.PollingReport()
    seen.statuses[kind, status] += 1
    assert seen.failed == failed


def test_an_unanswered_request_fails_except_for_slow_readers():
    seen = polling_customers.PollingReport()
    seen.broken.update(["page", "slow"])
    assert seen.failed == 1
