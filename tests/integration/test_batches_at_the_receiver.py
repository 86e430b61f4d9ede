"""Batches as their receiver sees them: records in, collected, decided, sent by a real worker over real connections."""

import base64
import gzip

import orjson
import pytest
from cloudevents.core.formats.json import JSONFormat
from standardwebhooks import Webhook

from delivery.registry_model import Batching, ContentMode
from delivery.webhooks.batching import segment
from delivery.webhooks.results import counters
from tests.integration.customers import Keeping, Source, working
from tests.support import batches, builders
from tests.support.batches import endpoint
from tests.support.shards import Shard

pytestmark = pytest.mark.integration
WEBHOOK = Webhook(base64.b64encode(builders.KEY.secret.reveal()).decode())
SHARDS = 4


def bring(count, *endpoints):
    """Bring `count` events to the endpoints, each subscribed to all; return what came of it."""
    subscriptions = [
        builders.subscription(f"s-{to.endpoint_id}", endpoint_id=to.endpoint_id, event_type="*") for to in endpoints
    ]
    source = Source(builders.snapshot(*endpoints, *subscriptions))
    records = [builders.record(offset=n, value=b'{"id": "e%d",  "tenant_id": "t1"}' % n, partition=n % 3) for n in range(count)]
    with working() as here:
        halves = [records[: count // 2], records[count // 2 :]]
        collected = here.collect(halves, source, shards=SHARDS, immediate_flush_s=0.5)
        rows = [row for each in collected for row in each.rows]
        left = []
        for number in range(SHARDS):
            shard = Shard()
            shard.decide([row.segment for row in rows if row.shard == number], now_ms=2**60)
            left += shard.last.batches
            assert shard.is_empty()
        counted = counters.Counters()
        for results in here.deliver_batches(iter(left), source):
            counted += counters.count(results, cpu_s=0)
    return counted, [segment.decoded_batch(batch) for batch in left]


def test_every_event_reaches_every_endpoint_once_in_verified_batches_of_its_own():
    with Keeping() as customers:
        to = [endpoint(f"ep{n}", url=f"{customers.url}/ep{n}", batching=Batching(max_events=40)) for n in range(3)]
        counted, _ = bring(250, *to)
    assert counted.deliveries == {("delivered", "none"): 750}
    assert counted.batches == {"count": 18, "time": 3}
    for name in ("ep0", "ep1", "ep2"):
        bodies = [WEBHOOK.verify(body, headers) for path, headers, body in customers.received if path == name]
        assert sorted(len(body) for body in bodies) == [10] + [40] * 6
        assert sorted(event["id"] for body in bodies for event in body) == sorted(f"e{n}" for n in range(250))
    assert len({headers["webhook-id"] for _, headers, _ in customers.received}) == 21


def test_public_libraries_read_and_verify_a_compressed_batch_of_cloudevents():
    with Keeping() as customers:
        asked = Batching(is_gzipped=True, max_wait_s=0.5)
        [to] = [endpoint(url=f"{customers.url}/a", batching=asked, content_mode=ContentMode.CLOUDEVENTS_STRUCTURED)]
        bring(20, to)
    [(_, headers, body)] = customers.received
    assert (headers["content-type"], headers["content-encoding"]) == ("application/cloudevents-batch+json", "gzip")
    body = gzip.decompress(body)
    assert len(WEBHOOK.verify(body, headers)) == 20
    read = [JSONFormat().read(None, orjson.dumps(cloud_event)) for cloud_event in orjson.loads(body)]
    assert [event.get_id() for event in read] == [f"e{n}" for n in range(20)]
    assert b'{"id": "e7",  "tenant_id": "t1"}' in body


def test_what_the_receiver_rejects_of_a_batch_is_dead_lettered_alone():
    with Keeping(answer=b'{"rejected":[{"index":2,"reason":"unknown order"}]}') as customers:
        counted, _ = bring(10, endpoint(url=f"{customers.url}/a"))
    assert counted.deliveries == {("delivered", "none"): 9, ("dead_lettered", "rejected_by_endpoint"): 1}


@pytest.mark.parametrize(("event_bytes", "read_by_then"), [(400, 100), (600_000, 2)])
def test_small_batches_are_read_together_and_large_ones_as_they_are_sent(event_bytes, read_by_then):
    read = []

    def waiting():
        for number in range(100):
            read.append(number)
            event = builders.event(event_id=f"e{number}", data=orjson.dumps({"note": "x" * event_bytes}))
            yield batches.sent(batches.pending_batch(event, endpoint="ep1"))

    with Keeping() as customers, working() as here:
        source = Source(builders.snapshot(endpoint(url=f"{customers.url}/a"), builders.subscription("s1", event_type="*")))
        results = here.deliver_batches(waiting(), source)
        first = [next(results)]
        assert len(read) == read_by_then
        assert sum(len(some.batches) for some in [*first, *results]) == 100
