"""A payload of JSON keeps the media type that its producer gave it, by every way to the receiver."""

import base64

import msgspec
import orjson
import pytest

from delivery.model import Outcome, OutcomeKind
from delivery.payload_form import EndpointPayload
from delivery.registry_model import ContentMode
from delivery.webhooks.batching import segment
from delivery.webhooks.events import opaque, parsing
from delivery.webhooks.results import dead_letter_records, dead_letter_rows
from delivery.webhooks.sending import batch_payload, payload
from subscriptions_db.archive.ingest import archived_rows
from tests.support import builders, framing

LAYOUT = parsing.Layout()
ATTRIBUTES = {"specversion": "1.0", "id": "e9", "type": "order.paid", "source": "/shop", "tenantid": "t2"}
HEADERS = tuple((f"ce_{name}", value.encode()) for name, value in ATTRIBUTES.items())
STRUCTURED = (("content-type", b"application/cloudevents+json"),)
VENDOR = "application/vnd.acme+json"
DATA = b'{"a":1}'


def binary(content_type, value=DATA):
    return builders.record(value=value, headers=(*HEADERS, ("content-type", content_type.encode())))


def structured(**members):
    return builders.record(value=orjson.dumps(ATTRIBUTES | members), headers=STRUCTURED)


def directly(event):
    return event


def by_the_retry_lane(event):
    return segment.unpacked(segment.packed(segment.unpacked(segment.item(event, 0).packed))).event()


def by_a_redrive_from_the_topic(event):
    return dead_letter_records.decode(dead_letter(event)).event()


def by_a_redrive_from_the_archive(event):
    row = archived_rows.dead_letter_row(*dead_letter_records.decode_with_document(dead_letter(event)))
    return dead_letter_records.decode(archived_rows.topic_record(row.letter, row.payload)).event()


def dead_letter(event):
    outcome = Outcome(builders.delivery(event=event), OutcomeKind.DEAD_LETTERED, reason="expired")
    return dead_letter_records.encode(dead_letter_rows.dead_letter(outcome, now_ms=0))


WAYS = [directly, by_the_retry_lane, by_a_redrive_from_the_topic, by_a_redrive_from_the_archive]
CASES = [
    # record, content type of the request in binary mode
    pytest.param(binary("application/json"), "application/json", id="application/json"),
    pytest.param(binary(VENDOR), VENDOR, id="a vendor's type"),
    pytest.param(binary(" image/x+JSON; version=2 "), "image/x+JSON; version=2", id="any type, as written"),
    pytest.param(binary("application/json;profile=x"), "application/json;profile=x", id="application/json with a parameter"),
    pytest.param(binary("Application/JSON; charset=utf-8"), "application/json", id="a charset has no effect"),
    pytest.param(binary(f"{VENDOR}; charset=iso-8859-1"), "application/json", id="another charset: the body is UTF-8"),
    pytest.param(binary("a b/x+json"), "application/json", id="no media type"),
    pytest.param(structured(data={"a": 1}), "application/json", id="structured: none"),
    pytest.param(structured(datacontenttype=VENDOR, data={"a": 1}), VENDOR, id="structured: an object"),
    pytest.param(structured(datacontenttype=f" {VENDOR} ", data="x"), VENDOR, id="structured: a string"),
    pytest.param(structured(datacontenttype=VENDOR, data=None), VENDOR, id="structured: null"),
    pytest.param(
        structured(datacontenttype=VENDOR, data_base64=base64.b64encode(DATA).decode()), VENDOR, id="structured: base64"
    ),
    pytest.param(structured(datacontenttype="application/cloudevents+json", data={}), "application/json", id="another event"),
    pytest.param(structured(datacontenttype=VENDOR), None, id="structured: no payload"),
    pytest.param(binary(VENDOR, None), None, id="no payload"),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("record", "content_type"), CASES)
def test_the_receiver_gets_json_under_the_name_of_its_producer(record, content_type, way):
    """Regression: `application/vnd.acme+json` reached the receiver as `application/json`."""
    event = way(parsing.parse(record, LAYOUT))
    headers = payload.content(event, ContentMode.CLOUDEVENTS_BINARY).headers.decode().split("\r\n")
    named = [line for line in headers if line.startswith("content-type")]
    assert named == ([] if content_type is None else [f"content-type: {content_type}"])
    alone = orjson.loads(payload.content(event, ContentMode.CLOUDEVENTS_STRUCTURED).body)
    assert alone.get("datacontenttype") == content_type
    packed = segment.unpacked(segment.item(event, 0).packed)
    assert orjson.loads(batch_payload.content([packed], ContentMode.CLOUDEVENTS_STRUCTURED).body) == [alone]


@pytest.mark.parametrize("record", [case.values[0] for case in CASES])
def test_the_default_content_mode_stays_the_same(record):
    made = payload.content(parsing.parse(record, LAYOUT), ContentMode.STANDARD)
    assert made.headers == b"content-type: application/json\r\n"
    assert "datacontenttype" not in orjson.loads(made.body)


def test_filters_see_the_fields_of_json_of_any_name():
    for record in (binary(VENDOR), structured(datacontenttype=VENDOR, data={"a": 1})):
        event = parsing.parse(record, LAYOUT)
        assert (event.content, event.opaque, event.json_type) == ({"a": 1}, None, VENDOR)


def test_application_json_adds_no_stored_byte():
    events = [parsing.parse(binary(media_type), LAYOUT) for media_type in ("application/json", VENDOR)]
    assert [len(msgspec.msgpack.decode(segment.item(event, 0).packed)) for event in events] == [12, 16]
    assert [b"datacontenttype" in dead_letter(event) for event in events] == [False, True]


def test_the_version_before_decodes_json_of_another_name_as_json():
    """It knows every element but the last, `json_type`, and ignores that one."""
    known = [(field.name, field.type) for field in msgspec.structs.fields(segment.Packed)[:-1]]
    before = msgspec.defstruct("Before", known, array_like=True)
    packed = segment.item(parsing.parse(binary(VENDOR), LAYOUT), 0).packed
    read = msgspec.msgpack.decode(packed, type=before)
    assert (read.data, read.opaque, read.payload_digest) == (DATA, None, "")
    assert segment.unpacked(msgspec.msgpack.encode(read)).event().json_type == ""


def test_a_header_names_the_type_of_the_json_that_was_decoded():
    """The value in its frame is no JSON. An endpoint that wants this value gets it under the name of its format."""
    schema = {"type": "record", "name": "Order", "fields": [{"name": "a", "type": "int"}]}
    value = framing.framed(1, framing.avro(schema, {"a": 1}))
    decoded = framing.event_of(binary(VENDOR, value), framing.Reader(framing.avro_schema(schema)))
    sent = [opaque.as_received(decoded, wanted) for wanted in (EndpointPayload.JSON, EndpointPayload.ORIGINAL)]
    lines = [payload.content(event, ContentMode.CLOUDEVENTS_BINARY).headers.splitlines()[0] for event in sent]
    assert lines == [f"content-type: {VENDOR}".encode(), b"content-type: application/avro"]
