"""The figures of a load test: lost and repeated deliveries, the events of a request, and the endpoint of each event."""

import array
import collections
import random
import types

import pytest

from fanout.demo import oracle, scenario
from fanout.kafka import places
from fanout.reconcile import accounting
from fanout.reconcile.findings import Finding, Kind
from load_tests.harness import figures, receiver, traffic
from load_tests.scenarios import crash, mission

DUE = array.array("l", [5, 5, 6, 7])
"""The endpoints of events 0 to 3."""


def report(*requests, age_ms=10.0):
    """Return a receiver's report of requests, each given as (endpoint, numbers of its events)."""
    made = receiver.ReceiverReport()
    for endpoint, numbers in requests:
        made.numbers.extend(numbers)
        made.endpoints.extend([endpoint] * len(numbers))
        made.ages_ms.extend([age_ms] * len(numbers))
        made.requests.append(len(numbers))
    return made


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ([(5, [0, 1]), (6, [2]), (7, [3])], (0, 0, 0)),
        ([(5, [0]), (6, [2])], (2, 0, 0)),
        ([(5, [0, 1]), (5, [1, 1]), (6, [2]), (7, [3])], (0, 2, 0)),
        ([(5, [0, 1, 2]), (6, [2]), (7, [3])], (0, 0, 1)),  # event 2 went to another customer as well
        ([(5, [0, 1, 2]), (7, [3])], (1, 0, 1)),
        ([(5, [0, 1]), (6, [2]), (7, [3, 4])], (0, 0, 1)),  # nobody published event 4
    ],
)
def test_lost_repeated_and_wrongly_addressed_deliveries_are_counted(requests, expected):
    found = figures.delivered(report(*requests), DUE)
    assert (found["lost"], found["duplicates"], found["unexpected"]) == expected


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ([(5, [0]), (6, [0]), (7, [1])], (0, 0, 0)),
        ([(5, [0]), (7, [1])], (1, 0, 0)),
        ([(5, [0]), (6, [0, 0]), (7, [1]), (8, [1])], (0, 1, 1)),
    ],
)
def test_an_event_with_fan_out_is_due_to_consecutive_endpoints(requests, expected):
    found = figures.delivered(report(*requests), array.array("l", [5, 7]), [2, 1])
    assert (found["lost"], found["duplicates"], found["unexpected"]) == expected


def test_each_request_has_its_own_events():
    found = list(figures.requests(report((5, [0, 1]), (6, []), (6, [2]))))
    assert [(request.endpoint, list(request.numbers), len(request.ages_ms)) for request in found] == [
        (5, [0, 1], 2),
        (6, [2], 1),
    ]


@pytest.mark.parametrize(("first", "end", "expected"), [(0, 6, 3), (2, 6, 2), (2, 5, 1), (6, 9, 0)])
def test_requests_are_counted_by_the_position_of_their_first_event(first, end, expected):
    assert figures.requests_between(report((5, [0, 1]), (5, [2, 3, 4]), (5, [5])), first, end) == expected


def test_percentiles_of_few_values():
    assert figures.percentiles([]) == {"p50": 0, "p90": 0, "p99": 0, "max": 0}
    assert figures.percentiles([7.4])["max"] == 7
    assert figures.percentiles(range(101)) == {"p50": 50, "p90": 90, "p99": 99, "max": 100}


@pytest.mark.parametrize(
    ("arrived", "most"),
    [([], 0), ([0, 1, 4, 9], 0), ([1, 0, 4, 9], 1), ([4, 9, 0, 1], 2), ([9, 0, 1, 4], 3), ([0, 0, 1, 0], 0)],
)
def test_an_event_overtakes_earlier_events_of_its_endpoint(arrived, most):
    others = (7, [8, 3, 2])
    assert figures.overtook(report((5, arrived), others), {5, 6}) == most


def test_micro_batches_are_read_from_the_jobs_log():
    lines = [
        b'{"at":"1970-01-01T00:00:02.500+00:00","event":"micro-batch committed","lane":"retry","records":7,"duration_ms":900}',
        b'{"at":"1970-01-01T00:00:03.000+00:00","event":"micro-batch committed","lane":"direct","records":1,"duration_ms":80}',
        b'{"at":"1970-01-01T00:00:04.000+00:00","event":"lane retry was woken after 2.0 s"}',
        b"a line of the JVM",
    ]
    assert list(figures.micro_batches(lines, "retry")) == [figures.MicroBatch(2.5, 7, 900)]


def test_an_endpoint_of_one_event_type_may_differ_from_the_others():
    customers = traffic.Customers(endpoints=20, fields_by_type={9: {"status": "paused"}})
    registered = customers.registry("http://127.0.0.1")["endpoints"]
    paused = {number for number, endpoint in enumerate(registered) if endpoint.get("status") == "paused"}
    assert paused == customers.endpoints_of([9]) == {18, 19}


@pytest.mark.parametrize("endpoints", [100, 1000, 2000])
def test_an_event_is_due_to_one_endpoint_and_no_endpoint_is_idle(endpoints):
    customers = traffic.Customers(endpoints=endpoints)
    document = customers.registry("http://127.0.0.1")
    of_type = [row for row in document["subscriptions"] if row["event_type"] == traffic.EVENT_TYPES[3]]
    got = collections.Counter()
    for tenant in range(customers.tenants):
        event = types.SimpleNamespace(event_type=traffic.EVENT_TYPES[3], tenant_id=f"t{tenant}", sub_tenant_id=None)
        [subscription] = [row for row in of_type if oracle.is_due(event, row)]
        assert subscription["endpoint"] == f"ep{customers.endpoint_of(3, tenant)}"
        got[subscription["endpoint"]] += 1
    assert len(got) == endpoints // len(traffic.EVENT_TYPES)


def test_each_event_of_the_mission_is_due_to_one_endpoint():
    population = mission.MissionPopulation(topics=5, tenants=60, endpoints=20)
    subscriptions = population.registry("http://127.0.0.1")["subscriptions"]
    rng, endpoints = random.Random(1), set()
    for _ in range(2000):
        drawn = population.draw(rng, (), 0.0)
        event = types.SimpleNamespace(
            event_type=population.event_types[drawn.type_number],
            tenant_id=f"t{drawn.tenant}",
            sub_tenant_id=str(drawn.sub_tenant),
        )
        [subscription] = [row for row in subscriptions if oracle.is_due(event, row)]
        assert subscription["endpoint"] == f"ep{drawn.endpoint}"
        endpoints.add(drawn.endpoint)
    assert len(endpoints) == 20


def test_a_receiver_of_the_demo_rejects_some_events_at_one_endpoint():
    events = [scenario.receiver.BatchEvent("/demo", f"event-{n}") for n in range(100)]
    assert sum(scenario.rejects(f"/{scenario.REJECTING_ENDPOINT}", event) for event in events) == 10
    assert not any(scenario.rejects("/endpoint-1", event) for event in events)


@pytest.mark.parametrize(
    ("requests", "lost", "holds"), [([(5, [0, 1, 1])], 0, True), ([(5, [0])], 0, False), ([(5, [0, 1])], 1, False)]
)
def test_reconciled_holds_without_findings_and_with_the_receivers_count(requests, lost, holds):
    of_lane = accounting.LaneAccount(counts=accounting.Counts(delivered=2, lost=lost))
    account = accounting.Account({"direct": of_lane})
    if lost:
        account.findings.add(Finding(Kind.LOST, "direct", places.Place("t", 0), 2, 2, lost))
    found = figures.reconciled(account, report(*requests))
    assert (found["holds"], found["delivered"], found["findings"]) == (holds, 2, {Kind.LOST: 1} if lost else {})


def test_a_repeat_before_the_first_new_event_counts_for_the_last_kill():
    """Regression: it counted for the kill before."""
    assert crash._repeated_after([2, 4], [0, 1, 1, 2, 3, 3, 4, 4]) == [1, 2]
