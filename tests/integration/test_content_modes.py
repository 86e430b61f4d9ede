"""Public libraries read the requests: CloudEvents of both modes, Standard Webhooks, custom headers."""

import json
import time

import orjson
import pytest
import standardwebhooks
from cloudevents.core.bindings import http as cloudevents
from cloudevents.core.formats.json import JSONFormat

from delivery.registry_model import Auth, AuthKind, ContentMode, SubTenantId
from delivery.secret import Secret
from delivery.webhooks.events import parsing
from delivery.webhooks.sending import sender, signing
from tests.integration import serving
from tests.integration.serving import OK, saying
from tests.support import builders

pytestmark = pytest.mark.integration

DATA = '{ "b": 1.10, "a": "ü €" ,\n"n": 12345678901234567890, "b": 2}'.encode()
"""Spaces, key order, a number no double holds, a repeated key: nothing that parses and writes it again would keep."""
EVENT = {
    "event_id": 'e 1%"ü',
    "source": "/orders/ö",
    "sub_tenant_id": SubTenantId("100"),
    "data": DATA,
    "content": orjson.loads(DATA),
    "attributes": (("subject", "größe 100%"), ("dataschema", "https://s.example.com/#1"), ("traceparent", "00-4bf9-00f0-01")),
}


def received(event=None, **endpoint):
    """Send one event; return (headers with lower-case names, body, the raw head)."""
    sent = builders.event(**EVENT) if event is None else event

    async def main():
        async with serving.serve(saying(OK)) as server, serving.network() as network:
            using = sender.Sender(network, serving.OPEN, timeout_s=2.0, clock=time.time)
            delivery = builders.delivery(event=sent, endpoint=builders.endpoint(url=server.url(), **endpoint))
            attempt = await using.attempt(delivery, 1)
            assert attempt.error_class is None, attempt
        return server.requests[0]

    head, _, body = serving.run(main()).partition(b"\r\n\r\n")
    lines = [line.split(": ", 1) for line in head.decode("ascii").split("\r\n")[1:]]
    headers = {name.lower(): value for name, value in lines}
    assert len(headers) == len(lines), "a header is there twice"
    return headers, body, head


@pytest.mark.parametrize("mode", [ContentMode.CLOUDEVENTS_BINARY, ContentMode.CLOUDEVENTS_STRUCTURED])
def test_the_cloudevents_sdk_reads_what_we_send(mode):
    headers, body, _ = received(content_mode=mode)
    event = cloudevents.from_http(cloudevents.HTTPMessage(headers=headers, body=body), JSONFormat())
    attributes = event.get_attributes()
    assert attributes.pop("time").isoformat() == "2026-01-01T00:00:00+00:00"
    assert attributes == {
        "specversion": "1.0",
        "id": EVENT["event_id"],
        "source": EVENT["source"],
        "type": "order.created",
        "datacontenttype": "application/json",
        "tenantid": "t1",
        "subtenantid": "100",
        **dict(EVENT["attributes"]),
    }
    assert event.get_data() == {"b": 2, "a": "ü €", "n": 12345678901234567890}


def _parsed(value, *headers):
    named = {"specversion": "1.0", "id": "e9", "type": "order.paid", "source": "/shop", "tenantid": "t2"}
    written = tuple((f"ce_{name}", text.encode()) for name, text in named.items())
    return parsing.parse(builders.record(value=value, headers=(*written, *headers)), parsing.Layout())


@pytest.mark.parametrize("mode", [ContentMode.CLOUDEVENTS_BINARY, ContentMode.CLOUDEVENTS_STRUCTURED])
@pytest.mark.parametrize(
    ("value", "media_type"),
    [(b"Obj\x01\xff\0", "application/avro"), ("<a>ü</a>".encode(), "text/xml"), (b"", "application/protobuf"), (None, None)],
)
def test_the_cloudevents_sdk_reads_an_opaque_payload_and_none(mode, value, media_type):
    sent = _parsed(value, *([("content-type", media_type.encode())] if media_type else []))
    headers, body, _ = received(sent, content_mode=mode)
    event = cloudevents.from_http(cloudevents.HTTPMessage(headers=headers, body=body), JSONFormat())
    read = event.get_data()
    assert (read.encode() if isinstance(read, str) else read or b"") == (value or b"")
    assert event.get_attributes().get("datacontenttype") == media_type
    verified = signing.sign([builders.KEY], headers["webhook-id"], int(headers["webhook-timestamp"]), body)
    assert headers["webhook-signature"] == verified


@pytest.mark.parametrize("mode", [ContentMode.CLOUDEVENTS_BINARY, ContentMode.CLOUDEVENTS_STRUCTURED])
def test_the_cloudevents_sdk_reads_json_under_its_producers_name(mode):
    headers, body, _ = received(_parsed(DATA, ("content-type", b"application/vnd.acme+json")), content_mode=mode)
    event = cloudevents.from_http(cloudevents.HTTPMessage(headers=headers, body=body), JSONFormat())
    assert event.get_attributes()["datacontenttype"] == "application/vnd.acme+json"
    assert event.get_data() == json.loads(DATA)


def test_in_binary_mode_the_payload_is_the_body_byte_for_byte():
    assert received(content_mode=ContentMode.CLOUDEVENTS_BINARY)[1] == DATA


@pytest.mark.parametrize("mode", [ContentMode.STANDARD, ContentMode.CLOUDEVENTS_STRUCTURED])
def test_in_the_other_modes_the_payload_stands_under_data_byte_for_byte(mode):
    assert received(content_mode=mode)[1].endswith(b',"data":' + DATA + b"}")


@pytest.mark.parametrize("mode", ContentMode)
def test_the_signature_covers_the_body_of_every_mode(mode):
    headers, body, _ = received(content_mode=mode)
    verified = standardwebhooks.Webhook(signing.to_text(builders.KEY)).verify(body, headers)
    assert verified == json.loads(body)


def test_custom_headers_arrive_and_exactly_one_header_frames_the_body():
    custom = (("X-Environment", "staging"), ("X-Team", "a b"))
    auth = Auth(kind=AuthKind.API_KEY, header="X-Key", secret=Secret(b"k"))
    headers, body, head = received(headers=custom, auth=auth)
    assert (headers["x-environment"], headers["x-team"], headers["x-key"]) == ("staging", "a b", "k")
    framing = [line for line in head.lower().split(b"\r\n") if line.startswith((b"content-length", b"transfer-encoding"))]
    assert framing == [b"content-length: %d" % len(body)]
