"""An endpoint's own limits, as its receiver sees them: over two workers, on real connections."""

import asyncio
import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import orjson
import pytest
from aiohttp import web

from delivery.webhooks import guard, limits, routing, rows, worker
from tests import builders

pytestmark = pytest.mark.integration
OPEN = guard.Guard(allow_networks=("127.0.0.0/8",), allow_http=True, allow_ports=())
WORKERS = 2


class Customer:
    """A server that takes its time, and remembers when requests came and how many were there at once."""

    def __init__(self, answers_after_s=0.0):
        self.arrivals, self.most_at_once = [], 0
        self._at_once, self._answers_after_s = 0, answers_after_s
        self._loop = asyncio.new_event_loop()

    def __enter__(self):
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._runner = asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/"
        return self

    def __exit__(self, *_):
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _serve(self):
        app = web.Application()
        app.router.add_post("/", self._answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner

    async def _answer(self, _):
        self.arrivals.append(time.monotonic())
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        await asyncio.sleep(self._answers_after_s)
        self._at_once -= 1
        return web.Response()


class Source:
    def __init__(self, snapshot):
        self._snapshot = snapshot

    def registry(self, last):
        return last or routing.WholeRegistry("limits", self._snapshot)


def deliver(customer, events, **own):
    """Deliver `events` events by each of two workers at once; return how many were delivered."""
    endpoint = builders.endpoint(url=customer.url, **own)
    source = Source(builders.snapshot(endpoint, builders.subscription(event_type="order.created")))
    topics = rows.Topics(attempts="a", dead_letters="d", rejected="r", retries="t")
    plan = worker.Plan(topics=topics, guard=OPEN, limits=limits.Limits(workers=WORKERS))

    def one(first):
        records = [
            builders.record(offset=number, value=orjson.dumps({"id": f"e{number}", "tenant_id": "t1"}))
            for number in range(first, first + events)
        ]
        with contextlib.closing(worker.Worker(plan)) as here:
            results = list(here.deliver([records], source))
        return sum(outcome.kind == "delivered" for part in results for outcome in part.outcomes)

    with ThreadPoolExecutor(WORKERS) as pool:
        return sum(pool.map(one, range(0, WORKERS * events, events)))


def test_in_no_second_do_more_requests_arrive_than_the_endpoint_allows():
    with Customer() as customer:
        assert deliver(customer, 25, max_per_second=20.0) == 50
    most = max(sum(start <= other < start + 1 for other in customer.arrivals) for start in customer.arrivals)
    # Requests that left a second apart may arrive a little closer: one more of each worker.
    assert most <= 20 + WORKERS
    assert customer.arrivals[-1] - customer.arrivals[0] > 2


def test_no_more_requests_are_there_at_once_than_the_endpoint_allows():
    with Customer(answers_after_s=0.02) as customer:
        assert deliver(customer, 40, max_in_flight=6) == 80
    assert customer.most_at_once == 6
