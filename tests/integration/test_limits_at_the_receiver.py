"""An endpoint's own limits, as its receiver sees them: over two workers, on real connections."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import orjson
import pytest
from aiohttp import web

from delivery.webhooks.scheduling import limits
from tests.integration.customers import Customers, Source, working
from tests.support import builders

pytestmark = pytest.mark.integration
WORKERS = 2


class Slow(Customers):
    """Takes its time, and remembers when requests came and how many were there at once."""

    def __init__(self, answers_after_s=0.0):
        super().__init__()
        self.arrivals, self.most_at_once = [], 0
        self._at_once, self._answers_after_s = 0, answers_after_s

    async def answer(self, _):
        self.arrivals.append(time.monotonic())
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        await asyncio.sleep(self._answers_after_s)
        self._at_once -= 1
        return web.Response()


def deliver(customer, events, *, made_for=WORKERS, **own):
    """Deliver `events` events by each of two workers at once; return how many were delivered.

    The workers were made for `made_for`, and learn with their task how many there are.
    """
    endpoint = builders.endpoint(url=customer.url, **own)
    source = Source(builders.snapshot(endpoint, builders.subscription(event_type="order.created")))

    def deliver_from(first):
        records = [
            builders.record(offset=number, value=orjson.dumps({"id": f"e{number}", "tenant_id": "t1"}))
            for number in range(first, first + events)
        ]
        with working(limits=limits.Limits(workers=made_for)) as here:
            here.begin_task(None, WORKERS)
            results = list(here.deliver([records], source))
        return sum(outcome.kind == "delivered" for part in results for outcome in part.outcomes)

    with ThreadPoolExecutor(WORKERS) as pool:
        return sum(pool.map(deliver_from, range(0, WORKERS * events, events)))


def test_in_no_second_do_more_requests_arrive_than_the_endpoint_allows():
    with Slow() as customer:
        assert deliver(customer, 25, max_per_second=20.0) == 50
    most = max(sum(start <= other < start + 1 for other in customer.arrivals) for start in customer.arrivals)
    # Requests that left a second apart may arrive a little closer: one more of each worker.
    assert most <= 20 + WORKERS
    assert customer.arrivals[-1] - customer.arrivals[0] > 2


def test_no_more_requests_are_there_at_once_than_the_endpoint_allows():
    with Slow(answers_after_s=0.02) as customer:
        assert deliver(customer, 40, max_in_flight=6) == 80
    assert customer.most_at_once == 6


def test_one_event_to_many_customers_at_one_host_keeps_to_the_hosts_bounds():
    """One event made 2,000 requests in 0.43 s over 256 connections to one host of ten customers."""
    with Slow(answers_after_s=0.01) as customer:
        endpoints = [builders.endpoint(f"ep{n}", url=f"{customer.url}/ep{n}", customer_id=f"c{n % 10}") for n in range(300)]
        to_all = [builders.subscription(f"s{n}", endpoint_id=f"ep{n}", event_type="order.created") for n in range(300)]
        source = Source(builders.snapshot(*endpoints, *to_all))
        record = builders.record(value=orjson.dumps({"id": "e1", "tenant_id": "t1"}))
        bounds = limits.Limits(max_per_host=4, max_per_second_per_host=200.0, queue_timeout_s=30.0)
        with working(limits=bounds) as here:
            results = list(here.deliver([[record]], source))
    assert sum(outcome.kind == "delivered" for part in results for outcome in part.outcomes) == 300
    assert customer.most_at_once <= 4
    assert max(sum(at <= other < at + 1 for other in customer.arrivals) for at in customer.arrivals) <= 200 + 4
    assert sum(part.waited_for_hosts for part in results) > 0


@pytest.mark.parametrize("made_for", [1, 50])
def test_a_worker_learns_its_share_with_each_task(made_for):
    """Executors come and go. By the share of one, 16 requests would be there at once from both, by that of fifty, two."""
    with Slow(answers_after_s=0.1) as customer:
        assert deliver(customer, 20, made_for=made_for, max_in_flight=8) == 40
    assert customer.most_at_once == 8
