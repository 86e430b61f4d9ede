"""An endpoint with `payload: original` receives the bytes of the producer, by whatever way a delivery goes."""

import base64
import json

import orjson
import pytest
from aiohttp import web

from delivery.payload_form import EndpointPayload
from delivery.registry_model import Batching, ContentMode, DeliveryMode, EndpointStatus, Retrying, Revision
from delivery.webhooks.batching import segment
from delivery.webhooks.formats import decoder, registry_client
from delivery.webhooks.results import dead_letter_records, topic_rows
from delivery.webhooks.retries import retry_records
from delivery.webhooks.sending import batch_payload, payload
from tests.integration.customers import TOPICS, Keeping, Source, working
from tests.support import builders, framing
from tests.support.schema_registry import SchemaRegistry

pytestmark = pytest.mark.integration
ORDER = {"type": "record", "name": "Order", "fields": [{"name": name, "type": "string"} for name in ("id", "tenant_id")]}
CONTENT = {"id": "e1", "tenant_id": "t1"}


class Refusing(Keeping):
    """Refuses each delivery for good."""

    async def answer(self, request):
        await super().answer(request)
        return web.Response(status=400)


@pytest.fixture
def registry():
    with SchemaRegistry() as made:
        for number in range(6):  # the id of the schema is none of the numbers that are there anyway
            made.register(f"other-{number}", f'{{"type": "fixed", "name": "Other", "size": {number + 1}}}')
        made.register("order", json.dumps(ORDER))
        yield made


VALUE = framing.framed(7, framing.avro(ORDER, CONTENT))
RECORD = builders.record(value=VALUE)


def worker(registry):
    access = registry_client.Access(url=registry.url, wait_s=0.01)
    return working(formats=decoder.Formats(access=access, topic_pattern=".+"))


def endpoint(name, **fields):
    return builders.endpoint(name, **{"payload": EndpointPayload.ORIGINAL} | fields)


def source_of(*endpoints):
    subscriptions = [builders.subscription(f"s-{each.endpoint_id}", endpoint_id=each.endpoint_id) for each in endpoints]
    return Source(builders.snapshot(*endpoints, *subscriptions))


def test_each_endpoint_receives_the_payload_of_its_choice(registry):
    with Keeping() as customers, worker(registry) as here:
        binary = {"content_mode": ContentMode.CLOUDEVENTS_BINARY}
        endpoints = (
            endpoint("json", url=f"{customers.url}/json", payload=EndpointPayload.JSON),
            endpoint("text", url=f"{customers.url}/text"),
            endpoint("json-bytes", url=f"{customers.url}/json-bytes", payload=EndpointPayload.JSON, **binary),
            endpoint("bytes", url=f"{customers.url}/bytes", **binary),
        )
        list(here.deliver([[RECORD]], source_of(*endpoints)))
        received = {name: (headers, body) for name, headers, body in customers.received}
    assert orjson.loads(received["json"][1])["data"] == CONTENT
    document = orjson.loads(received["text"][1])
    assert (base64.b64decode(document["data_base64"]), document["datacontenttype"]) == (VALUE, "application/avro")
    assert (document["attributes"], document["id"], "data" in document) == ({"schemaid": 7}, "e1", False)
    headers, body = received["json-bytes"]
    assert (orjson.loads(body), headers["content-type"], "ce-schemaid" in headers) == (CONTENT, "application/json", False)
    headers, body = received["bytes"]
    assert (body, headers["content-type"], headers["ce-schemaid"], headers["ce-id"]) == (VALUE, "application/avro", "7", "e1")


def test_a_batch_has_the_payload_of_its_endpoint(registry):
    in_batches = {"mode": DeliveryMode.BATCH, "batching": Batching()}
    endpoints = (endpoint("original", **in_batches), endpoint("json", payload=EndpointPayload.JSON, **in_batches))
    with worker(registry) as here:
        collected = list(here.collect([[RECORD]], source_of(*endpoints), shards=1, immediate_flush_s=0))
    bodies = {}
    for row in (row for part in collected for row in part.rows):
        for pending in segment.decoded(row.segment):
            events = [segment.unpacked(item.packed) for item in pending.items]
            content = batch_payload.content(events, ContentMode.STANDARD)
            [bodies[pending.endpoint_id]] = orjson.loads(content.body)
            assert len(content.body) <= pending.size
    assert (base64.b64decode(bodies["original"]["data_base64"]), bodies["original"]["attributes"]) == (VALUE, {"schemaid": 7})
    assert bodies["json"]["data"] == CONTENT


def test_retries_and_dead_letters_keep_the_payload(registry):
    with Refusing() as customers, worker(registry) as here:
        endpoints = (
            endpoint("waits", status=EndpointStatus.PAUSED),
            endpoint("refuses", url=f"{customers.url}/refuses", retrying=Retrying(schedule_s=())),
        )
        results = list(here.deliver([[RECORD]], source_of(*endpoints)))
    rows = [row for part in results for row in topic_rows.rows(part, TOPICS, now_ms=1)]
    [letter] = [dead_letter_records.decode(row.value) for row in rows if row.topic == TOPICS.dead_letters]
    deferred = [
        row.value
        for part in results
        for row in topic_rows.deferral_rows(part, TOPICS, now_ms=1, revision=Revision(1))
        if row.topic == TOPICS.retries
    ]
    [entry] = [entry for message in retry_records.messages(*deferred) for entry in message.entries]
    for event in (letter.event(), segment.unpacked(entry.packed[0]).event()):
        content = payload.content(event, ContentMode.CLOUDEVENTS_BINARY)
        assert content.body == VALUE
        assert b"content-type: application/avro\r\n" in content.headers
        assert b"ce-schemaid: 7\r\n" in content.headers
