"""An endpoint that hangs, as the others' receivers see it: one micro-batch waits for it for a moment, and later ones do not."""

import collections
import itertools
import queue
import socket
import time

import orjson
import pytest
from aiohttp import web

from delivery.webhooks.policy import retry_reasons
from delivery.webhooks.scheduling import endpoint_clock, response_times, unhealthy
from tests.integration.customers import Customers, Source, working
from tests.support import builders

pytestmark = pytest.mark.integration
TIMEOUT_S, PATIENCE_S = 3.0, 0.5
MOST_S = TIMEOUT_S / endpoint_clock.LEAST_SPEED
"""Seconds that the time of an attempt takes by the wall clock, on a machine with hardly any CPU left."""
ENDPOINTS = [f"ep{n}" for n in range(40)]
EVENTS = 5
"""To each endpoint, in a micro-batch."""


class SomeHang(Customers):
    """Some endpoints never answer. Remembers when each request came, by its endpoint."""

    def __init__(self, *hanging):
        super().__init__()
        self.arrivals = collections.defaultdict(list)
        self.hanging = set(hanging)

    async def answer(self, request):
        name = request.match_info["name"]
        self.arrivals[name].append(time.monotonic())
        if name in self.hanging:
            await self.ended.wait()
        return web.Response()


def records():
    return [
        builders.record(offset=n, value=orjson.dumps({"id": f"e{n}", "tenant_id": ENDPOINTS[n % len(ENDPOINTS)]}))
        for n in range(EVENTS * len(ENDPOINTS))
    ]


def micro_batch(here, source, known=unhealthy.NONE_UNHEALTHY):
    """Deliver some events to each endpoint; return (seconds it took, outcomes by endpoint, kind and reason).

    The seconds leave out those in which the worker waited for its own machine since the last micro-batch, as the worker does
    when it judges endpoints.
    """
    began = time.monotonic()
    reports = list(here.deliver([records()], source, known))
    outcomes = [outcome for results in reports for outcome in results.outcomes]
    kinds = collections.Counter((o.delivery.endpoint.endpoint_id, o.kind.value, o.reason) for o in outcomes)
    return time.monotonic() - began - sum(results.own_delay_s for results in reports), kinds


def registry(*urls):
    """Endpoints of a customer each, at these URLs in turn."""
    endpoints = [
        builders.endpoint(name, url=f"{url}/{name}", customer_id=f"c-{name}")
        for name, url in zip(ENDPOINTS, itertools.cycle(urls), strict=False)
    ]
    subscriptions = [builders.subscription(f"s-{name}", endpoint_id=name, scope=builders.scope(name)) for name in ENDPOINTS]
    return Source(builders.snapshot(*endpoints, *subscriptions, tenants=tuple(ENDPOINTS)))


@pytest.fixture
def platform():
    with SomeHang("ep7") as customers, working(attempt_timeout_s=TIMEOUT_S, max_extension_s=MOST_S) as here:
        yield customers, here, registry(customers.url)


def test_one_hanging_endpoint_delays_only_one_micro_batch(platform):
    customers, here, source = platform
    written = queue.SimpleQueue()
    here.write_background_results_by(lambda results, ended, _: written.put((results, ended)))
    others = {(name, "delivered", None): EVENTS for name in ENDPOINTS if name != "ep7"}

    took_s, kinds = micro_batch(here, source)
    assert kinds == others | {("ep7", "postponed", retry_reasons.UNDER_WAY): EVENTS}
    assert response_times.MIN_MARGIN_S <= took_s < TIMEOUT_S / 2
    # The others were not kept waiting for it.
    first, last = (pick(at for name in ENDPOINTS if name != "ep7" for at in customers.arrivals[name]) for pick in (min, max))
    assert last - first < TIMEOUT_S / 2

    took_s, kinds = micro_batch(here, source)
    assert kinds == others | {("ep7", "postponed", retry_reasons.SLOW): EVENTS}
    assert took_s < PATIENCE_S

    # The attempts had their full time, and their results are written without a task, as if a task had waited for them.
    began, ended = time.monotonic(), []
    while len(ended) < EVENTS:
        results, some = written.get(timeout=MOST_S * 2)
        assert {(outcome.kind.value, outcome.reason) for outcome in results.outcomes} == {("dead_lettered", "timeout")}
        ended += some
    assert len({name for name, _ in ended}) == EVENTS
    waited_s = time.monotonic() - began
    took_s, kinds = micro_batch(here, source)
    assert kinds == others | {("ep7", "postponed", retry_reasons.CIRCUIT_OPEN): EVENTS}
    assert waited_s + took_s < TIMEOUT_S * 2  # less the worker's own delay since the micro-batch before
    assert len(customers.arrivals["ep7"]) == EVENTS
    assert sum(len(results.outcomes) for results in here.written_background_results()) == EVENTS


def test_an_endpoint_that_the_retry_lane_holds_back_is_not_asked(platform):
    customers, here, source = platform
    suppressed = dict.fromkeys(("ep7", "somebody-else"), retry_reasons.CIRCUIT_OPEN)
    took_s, kinds = micro_batch(here, source, unhealthy.Unhealthy(suppressed, {}))
    assert (kinds["ep7", "postponed", retry_reasons.CIRCUIT_OPEN], customers.arrivals["ep7"]) == (EVENTS, [])
    assert took_s < TIMEOUT_S / 2


def test_a_worker_hardly_waits_for_an_endpoint_that_another_one_reported(platform):
    customers, here, source = platform
    here.write_background_results_by(lambda *_: None)
    customers.hanging.clear()
    micro_batch(here, source)
    customers.hanging.add("ep7")
    took_s, kinds = micro_batch(here, source, unhealthy.Unhealthy({}, {"ep7": 1.0}))
    assert kinds["ep7", "postponed", retry_reasons.UNDER_WAY] == EVENTS
    assert took_s < response_times.MIN_MARGIN_S
    customers.end()
    here.wait_until_idle(MOST_S)


def test_an_outage_is_reported_and_suppresses_no_endpoint(platform):
    _, here, _ = platform
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = registry(*(f"http://127.0.0.{n + 1}:{unused.getsockname()[1]}" for n in range(len(ENDPOINTS))))
        for _ in range(2):
            results = list(here.deliver([records()], nobody))
            assert (results[-1].reach.asked, results[-1].reach.unreachable) == (len(ENDPOINTS), len(ENDPOINTS))
