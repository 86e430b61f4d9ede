"""Batches as their receiver sees them: records in, collected, decided, sent by a real worker over real connections."""

import asyncio
import base64
import gzip
import threading

import orjson
import pytest
from aiohttp import web
from cloudevents.core.formats.json import JSONFormat
from standardwebhooks import Webhook

from delivery.model import Batching, ContentMode
from delivery.webhooks import guard, rows, segment, tally, worker
from tests import builders
from tests.batches import endpoint
from tests.integration.test_limits_at_the_receiver import Source
from tests.shards import Shard

pytestmark = pytest.mark.integration
OPEN = guard.Guard(allow_networks=("127.0.0.0/8",), allow_http=True, allow_ports=())
WEBHOOK = Webhook(base64.b64encode(builders.KEY.secret.reveal()).decode())
SHARDS = 4


class Customers:
    """A server that keeps what came, by path, and answers what it is told."""

    def __init__(self, answer=b"ok"):
        self.received, self._answer_body = [], answer
        self._loop = asyncio.new_event_loop()

    def __enter__(self):
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._runner = asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    def __exit__(self, *_):
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _serve(self):
        app = web.Application(client_max_size=10**8)
        app.router.add_post("/{name}", self._take)
        runner = web.AppRunner(app, auto_decompress=False)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner

    async def _take(self, request):
        self.received.append(
            (request.match_info["name"], {name.lower(): value for name, value in request.headers.items()}, await request.read())
        )
        return web.Response(body=self._answer_body)


def bring(count, *endpoints):
    """Bring `count` events to the endpoints, each subscribed to all; return what came of it."""
    subscriptions = [
        builders.subscription(f"s-{to.endpoint_id}", endpoint_id=to.endpoint_id, event_type="*") for to in endpoints
    ]
    source = Source(builders.snapshot(*endpoints, *subscriptions))
    records = [builders.record(offset=n, value=b'{"id": "e%d",  "tenant_id": "t1"}' % n, partition=n % 3) for n in range(count)]
    here = worker.Worker(worker.Plan(topics=rows.Topics(attempts="a", dead_letters="d", rejected="r", retries="t"), guard=OPEN))
    try:
        collected = list(
            here.collect([records[: count // 2], records[count // 2 :]], source, shards=SHARDS, pass_through_s=0.5)
        )
        left = []
        for number in range(SHARDS):
            shard = Shard()
            shard.decide([row.segment for each in collected for row in each.rows if row.shard == number], now_ms=2**60)
            left += shard.last.batches
            assert shard.is_empty()
        told = tally.Tally()
        for results in here.deliver_batches(iter(left), source):
            told += tally.of(results, cpu_s=0)
    finally:
        here.close()
    return told, [segment.batch(one) for one in left]


def test_every_event_reaches_every_endpoint_once_in_verified_batches_of_its_own():
    with Customers() as customers:
        to = [endpoint(f"ep{n}", url=f"{customers.url}/ep{n}", batching=Batching(max_events=40)) for n in range(3)]
        told, _ = bring(250, *to)
    assert told.deliveries == {("delivered", "none"): 750}
    assert told.batches == {"count": 18, "time": 3}
    for name in ("ep0", "ep1", "ep2"):
        bodies = [WEBHOOK.verify(body, headers) for path, headers, body in customers.received if path == name]
        assert sorted(len(body) for body in bodies) == [10] + [40] * 6
        assert sorted(event["id"] for body in bodies for event in body) == sorted(f"e{n}" for n in range(250))
    assert len({headers["webhook-id"] for _, headers, _ in customers.received}) == 21


def test_a_compressed_batch_of_cloudevents_is_read_and_verified_by_the_public_libraries():
    with Customers() as customers:
        asked = Batching(is_gzipped=True, max_wait_s=0.5)
        [to] = [endpoint(url=f"{customers.url}/a", batching=asked, content_mode=ContentMode.CLOUDEVENTS_STRUCTURED)]
        bring(20, to)
    [(_, headers, body)] = customers.received
    assert (headers["content-type"], headers["content-encoding"]) == ("application/cloudevents-batch+json", "gzip")
    body = gzip.decompress(body)
    assert len(WEBHOOK.verify(body, headers)) == 20
    read = [JSONFormat().read(None, orjson.dumps(one)) for one in orjson.loads(body)]
    assert [event.get_id() for event in read] == [f"e{n}" for n in range(20)]
    assert b'{"id": "e7",  "tenant_id": "t1"}' in body


def test_what_the_receiver_rejects_of_a_batch_is_dead_lettered_alone():
    with Customers(answer=b'{"rejected":[{"index":2,"reason":"unknown order"}]}') as customers:
        told, _ = bring(10, endpoint(url=f"{customers.url}/a"))
    assert told.deliveries == {("delivered", "none"): 9, ("dead_lettered", "rejected_by_endpoint"): 1}
