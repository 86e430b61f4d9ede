"""The requests of the plain consumer (the rival), and the platform's comparison with it. No Kafka, no network."""

import datetime as dt
import itertools

import orjson
import pytest
import standardwebhooks

from delivery import errors
from delivery.registry_model import DeliveryMode, EndpointStatus, SubscriptionStatus
from delivery.webhooks.events import parsing
from delivery.webhooks.routing import matching
from load_tests.harness import figures, receiver, usage
from load_tests.rivals import routed_requests
from load_tests.scenarios import comparison
from tests.support import builders

LAYOUT = parsing.Layout()
NOW_S = 1_700_000_000


def requests(*rows, record=None):
    router = matching.Router(builders.snapshot(*rows))
    return list(routed_requests.requests_of(record or builders.record(), router, LAYOUT))


def test_an_event_becomes_a_request_for_each_due_subscription():
    made = requests(
        builders.endpoint("ep1"),
        builders.endpoint("ep2"),
        builders.subscription("s1", endpoint_id="ep1"),
        builders.subscription("s2", endpoint_id="ep2"),
        builders.subscription("s3", endpoint_id="ep2", scope=builders.scope("t2")),
    )
    assert [request.endpoint.endpoint_id for request in made] == ["ep1", "ep2"]
    assert made[0].webhook_id != made[1].webhook_id
    assert made[0].body is made[1].body  # made once for both
    assert orjson.loads(made[0].body)["data"]["amount"] == 5


@pytest.mark.parametrize(
    ("endpoint", "subscription"),
    [
        ({"mode": DeliveryMode.BATCH}, {}),
        ({"status": EndpointStatus.PAUSED}, {}),
        ({"fault": "no such key"}, {}),
        ({}, {"status": SubscriptionStatus.PAUSED}),
    ],
)
def test_the_rival_drops_events_that_the_platform_keeps_or_batches(endpoint, subscription):
    assert requests(builders.endpoint(**endpoint), builders.subscription(**subscription)) == []


def test_an_event_of_a_tenant_that_is_not_active_is_rejected():
    with pytest.raises(errors.EventRejected):
        requests(record=builders.record(value=b'{"id":"e1","tenant_id":"nobody"}'))


def test_the_rivals_signature_is_that_of_standard_webhooks():
    [request] = requests(builders.endpoint(), builders.subscription())
    headers = routed_requests.headers_of(request, NOW_S)
    assert (headers["content-type"], headers["content-length"]) == ("application/json", str(len(request.body)))
    expected = standardwebhooks.Webhook(receiver.SECRET).sign(
        request.webhook_id, dt.datetime.fromtimestamp(NOW_S, dt.UTC), request.body.decode()
    )
    assert headers["webhook-signature"] == expected


def report(*numbers):
    made = receiver.ReceiverReport()
    made.numbers.extend(numbers)
    return made


def test_lost_and_repeated_count_only_the_events_of_the_burst():
    times = comparison.arrivals(report(0, 0, 1, 3, 3, 3, 4), 6)
    assert times == [2, 1, 0, 3, 1, 0]
    assert comparison.lost_and_repeated(times, range(2, 5)) == {"lost": 1, "repeated": 2}


def test_a_latency_counts_first_arrivals_at_the_chosen_endpoints():
    made = report(0, 1, 1, 2)
    made.endpoints.extend([7, 8, 8, 0])
    made.ages_ms.extend([1.0, 10.0, 90_000.0, 50.0])
    assert comparison.latency_ms(made, range(1, 3), lambda endpoint: endpoint == 8)["max"] == 10.0


class Customers:
    """A receiver that has the given numbers of events, one at each reading."""

    def __init__(self, *counts):
        self._counts = itertools.chain(counts, itertools.repeat(counts[-1]))

    @property
    def count(self):
        self.now = next(self._counts)
        return self.now


@pytest.mark.parametrize(("counts", "all_there"), [((0, 1, 2, 3), True), ((3,), True), ((0, 2), False)])
def test_events_count_as_lost_when_none_has_arrived_for_long(counts, all_there):
    clock = itertools.count(step=1.0)
    arrived = comparison.arrived_after(Customers(*counts), 3, clock=lambda: next(clock), sleep=lambda _: None)
    assert arrived is all_there


def turn(side, **fields):
    spent = usage.Usage(jvm_s=4.0 if side == comparison.PLATFORM else 0.0, driver_s=1.0, workers_s=5.0)
    throughput = figures.Throughput(first_s=20, warm_s=30, warm=spent, warm_count=1, took_s=10, spent=spent, count=100_000)
    defaults = {
        "side": side,
        "throughput": throughput,
        "steady": {"p50": 4.0, "p90": 5.0, "p99": 8.0, "max": 9.0},
        "back_s": 6.0,
        "killed": {"lost": 0, "repeated": 3},
        "beside": {"p50": 8.0, "p90": 9.0, "p99": 16.0, "max": 20.0},
        "hanging_lost": 2,
        "total": {"lost": 3, "duplicates": 3, "unexpected": 0, "unverified": 0},
        "deliveries": 100_003,
        "peak_mb": {"driver": 50.0, "jvm": 450.0},
    }
    return comparison.Turn(**defaults | fields)


def test_the_ratio_divides_means_and_leaves_out_counts_of_events():
    whole = comparison.mean_of([turn(comparison.PLATFORM), turn(comparison.PLATFORM, steady={"p50": 12.0, "p99": 40.0})])
    plain = comparison.mean_of([turn(comparison.RIVAL)])
    assert whole["cpu_s_per_million"] == {"jvm": 40.0, "python": 60.0, "total": 100.0}  # 4, 6 and 10 s of a tenth
    assert whole["latency_ms"] == {"p50": 8.0, "p99": 24.0}
    assert (whole["repeated_by_kill"], whole["lost_by_hanging"], whole["lost_otherwise"]) == (6, 4, 2)
    compared = comparison.ratio(whole, plain)
    assert compared["cpu_s_per_million"] == {"jvm": None, "python": 1.0, "total": 1.67}
    assert compared["latency_ms"] == {"p50": 2.0, "p99": 3.0}
    assert not any("lost" in name or "repeated" in name for name in compared)


def test_the_table_has_a_line_for_each_figure():
    means = {side: comparison.mean_of([turn(side)]) for side in (comparison.PLATFORM, comparison.RIVAL)}
    lines = comparison.table(
        means | {"ratio": comparison.ratio(means[comparison.PLATFORM], means[comparison.RIVAL])}
    ).splitlines()
    assert len(lines) == 2 + len(comparison.ROWS)
    assert "| CPU seconds per million deliveries, JVM | 40.0 | 0.0 |  |" in lines
    assert "| deliveries per second at full speed | 10,000 | 10,000 | 1.0 |" in lines
    assert "| events repeated by SIGKILL | 3 | 3 |  |" in lines
