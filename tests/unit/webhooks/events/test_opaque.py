"""Any payload reaches the receiver: JSON, text, bytes, `null` and none, in every content mode and by every way."""

import base64

import msgspec
import orjson
import pytest

from delivery import errors
from delivery.model import Outcome, OutcomeKind
from delivery.payload_form import Opaque, PayloadForm
from delivery.registry_model import ContentMode
from delivery.webhooks.batching import segment
from delivery.webhooks.events import opaque, ordering_key, parsing
from delivery.webhooks.filters import event_pattern
from delivery.webhooks.results import dead_letter_records, dead_letter_rows
from delivery.webhooks.routing import matching
from delivery.webhooks.sending import batch_payload, payload
from tests.support import builders

LAYOUT = parsing.Layout()
ATTRIBUTES = {"specversion": "1.0", "id": "e9", "type": "order.paid", "source": "/shop", "tenantid": "t2"}
HEADERS = tuple((f"ce_{name}", value.encode()) for name, value in ATTRIBUTES.items())
STRUCTURED = (("content-type", b"application/cloudevents+json"),)
AVRO = b"Obj\x01\xff\0"


def binary(value, content_type=None, *headers):
    named = () if content_type is None else (("content-type", content_type),)
    return builders.record(value=value, headers=(*HEADERS, *named, *headers))


def structured(**members):
    return builders.record(value=orjson.dumps(ATTRIBUTES | members), headers=STRUCTURED)


def in_base64(value):
    return base64.b64encode(value).decode()


def opaque_members(media_type, **member):
    return {"datacontenttype": media_type, **member}


XML, CSV = '<a b="é"/>', "a;b\r\n1;2\r\n"
CASES = [
    # record, members of a structured body beside the attributes, content type and body in binary mode
    pytest.param(
        binary(AVRO, b"application/avro"),
        opaque_members("application/avro", data_base64=in_base64(AVRO)),
        "application/avro",
        AVRO,
        id="binary: Avro",
    ),
    pytest.param(
        binary(XML.encode(), b" text/xml; charset=UTF-8 "),
        opaque_members("text/xml; charset=UTF-8", data=XML),
        "text/xml; charset=UTF-8",
        XML.encode(),
        id="binary: XML",
    ),
    pytest.param(
        binary(CSV.encode(), b"text/csv"), opaque_members("text/csv", data=CSV), "text/csv", CSV.encode(), id="binary: CSV"
    ),
    pytest.param(
        binary(XML.encode(), b"application/atom+xml"),
        opaque_members("application/atom+xml", data=XML),
        "application/atom+xml",
        XML.encode(),
        id="binary: +xml",
    ),
    pytest.param(
        binary(b"\x01\x02", b"text/plain"),
        opaque_members("text/plain", data_base64="AQI="),
        "text/plain",
        b"\x01\x02",
        id="binary: control characters, which JSON writes six times as long",
    ),
    pytest.param(
        binary(AVRO, b"text/plain"),
        opaque_members("text/plain", data_base64=in_base64(AVRO)),
        "text/plain",
        AVRO,
        id="binary: text that is not UTF-8",
    ),
    pytest.param(
        binary(b"a", b"text/plain;charset=iso-8859-1"),
        opaque_members("text/plain;charset=iso-8859-1", data_base64="YQ=="),
        "text/plain;charset=iso-8859-1",
        b"a",
        id="binary: text of another charset",
    ),
    pytest.param(
        binary(b"{}", b"application/octet-stream"),
        opaque_members("application/octet-stream", data_base64="e30="),
        "application/octet-stream",
        b"{}",
        id="binary: bytes that look like JSON",
    ),
    pytest.param(
        binary(b"", b"application/protobuf"),
        opaque_members("application/protobuf", data_base64=""),
        "application/protobuf",
        b"",
        id="binary: a message of no bytes",
    ),
    pytest.param(
        binary(b" ", b"text/plain"), opaque_members("text/plain", data=" "), "text/plain", b" ", id="binary: text of a space"
    ),
    pytest.param(binary(None), {}, None, b"", id="binary: no payload"),
    pytest.param(binary(None, b"application/avro"), {}, None, b"", id="binary: no payload, and a content type"),
    pytest.param(
        binary(b"null"), opaque_members("application/json", data=None), "application/json", b"null", id="binary: null"
    ),
    pytest.param(
        binary(b'{"a":1}', b"application/vnd.acme+json"),
        opaque_members("application/vnd.acme+json", data={"a": 1}),
        "application/vnd.acme+json",
        b'{"a":1}',
        id="binary: JSON of another name",
    ),
    pytest.param(
        structured(datacontenttype="application/avro", data_base64=in_base64(AVRO)),
        opaque_members("application/avro", data_base64=in_base64(AVRO)),
        "application/avro",
        AVRO,
        id="structured: bytes",
    ),
    pytest.param(
        structured(datacontenttype="text/xml", data_base64=in_base64(XML.encode())),
        opaque_members("text/xml", data_base64=in_base64(XML.encode())),
        "text/xml",
        XML.encode(),
        id="structured: text in base64 stays in base64",
    ),
    pytest.param(
        structured(datacontenttype="application/xml", data=XML),
        opaque_members("application/xml", data=XML),
        "application/xml",
        XML.encode(),
        id="structured: text",
    ),
    pytest.param(
        structured(datacontenttype="application/yaml", data="a: 1"),
        opaque_members("application/yaml", data="a: 1"),
        "application/yaml",
        b"a: 1",
        id="structured: text of any type",
    ),
    pytest.param(
        structured(datacontenttype="text/plain; charset=iso-8859-1", data="é"),
        opaque_members("application/json", data="é"),
        "application/json",
        '"é"'.encode(),
        id="structured: text of another charset is a JSON string",
    ),
    pytest.param(
        structured(datacontenttype="application/avro", data={"a": 1}),
        opaque_members("application/json", data={"a": 1}),
        "application/json",
        b'{"a":1}',
        id="structured: an object is JSON under any datacontenttype",
    ),
    pytest.param(
        structured(datacontenttype="application/vnd.acme+json", data={"a": 1}),
        opaque_members("application/vnd.acme+json", data={"a": 1}),
        "application/vnd.acme+json",
        b'{"a":1}',
        id="structured: JSON of another name",
    ),
    pytest.param(
        structured(data_base64=in_base64(b'{"a":1}')),
        opaque_members("application/json", data={"a": 1}),
        "application/json",
        b'{"a":1}',
        id="structured: JSON in base64",
    ),
    pytest.param(
        structured(datacontenttype=5, data="x"),
        opaque_members("application/json", data="x"),
        "application/json",
        b'"x"',
        id="structured: datacontenttype is no text",
    ),
    pytest.param(structured(), {}, None, b"", id="structured: no payload"),
    pytest.param(
        structured(data=None), opaque_members("application/json", data=None), "application/json", b"null", id="structured: null"
    ),
]


def directly(event):
    return event


def by_the_retry_lane(event):
    """Pack the event as a batch or a retry entry does; rewrite it, as a redrive of a batch does."""
    return segment.unpacked(segment.packed(segment.unpacked(segment.item(event, 0).packed))).event()


def by_a_dead_letter(event):
    delivery = builders.delivery(event=event)
    letter = dead_letter_rows.dead_letter(Outcome(delivery, OutcomeKind.DEAD_LETTERED, reason="expired"), now_ms=0)
    return dead_letter_records.decode(dead_letter_records.encode(letter)).event()


@pytest.mark.parametrize("way", [directly, by_the_retry_lane, by_a_dead_letter])
@pytest.mark.parametrize(("record", "members", "content_type", "body"), CASES)
def test_a_payload_reaches_the_receiver_in_every_mode(record, members, content_type, body, way):
    event = way(parsing.parse(record, LAYOUT))
    made = payload.content(event, ContentMode.CLOUDEVENTS_STRUCTURED)
    assert orjson.loads(made.body) == ATTRIBUTES | {"time": event.time} | members
    made = payload.content(event, ContentMode.CLOUDEVENTS_BINARY)
    lines = [line for line in made.headers.decode().split("\r\n") if line.startswith("content-type")]
    assert (lines, made.body) == ([] if content_type is None else [f"content-type: {content_type}"], body)
    standard = orjson.loads(payload.content(event, ContentMode.STANDARD).body)
    wanted = {name: value for name, value in members.items() if name != "datacontenttype" or not opaque.is_json(value)}
    assert {name: value for name, value in standard.items() if name.startswith("data")} == wanted


@pytest.mark.parametrize("mode", [ContentMode.STANDARD, ContentMode.CLOUDEVENTS_STRUCTURED])
def test_a_batch_holds_each_payload_as_a_request_of_its_own_does(mode):
    events = [parsing.parse(case.values[0], LAYOUT) for case in CASES]
    packed = [segment.unpacked(segment.item(event, 0).packed) for event in events]
    alone = [orjson.loads(payload.content(event, mode).body) for event in events]
    assert orjson.loads(batch_payload.content(packed, mode).body) == alone


@pytest.mark.parametrize("mode", [ContentMode.STANDARD, ContentMode.CLOUDEVENTS_STRUCTURED])
def test_the_estimated_size_covers_the_body(mode):
    for case in CASES:
        event = parsing.parse(case.values[0], LAYOUT)
        length = len(payload.content(event, mode).body)
        assert length < segment.item(event, 0).size < length + 140


@pytest.mark.parametrize(("record", "content_type", "body"), [(case.values[0], *case.values[2:]) for case in CASES])
def test_a_dead_letter_holds_the_payload_as_an_older_version_can_redrive_it(record, content_type, body):
    """Regression: the record held the bytes `1,"tenant_id":"victim"`, and an older version put them unquoted into JSON."""
    event = parsing.parse(record, LAYOUT)
    outcome = Outcome(builders.delivery(event=event), OutcomeKind.DEAD_LETTERED, reason="expired")
    written = orjson.loads(dead_letter_records.encode(dead_letter_rows.dead_letter(outcome, now_ms=0)))
    letter = dead_letter_records.decode(orjson.dumps(written))
    assert base64.b64decode(written["payload_base64"]) == event.data
    assert letter.event().data == event.data
    assert letter.payload() == (body if content_type else b"null")
    orjson.loads(event.data)
    # An older version reads a dead letter without `payload_form` as JSON.
    assert written.get("payload_form") == (None if event.opaque is None else str(event.opaque.form))
    assert written.get("datacontenttype") == (None if content_type == "application/json" else content_type)


@pytest.mark.parametrize(
    "record",
    [binary(AVRO, b"application/avro"), binary(None), binary(XML.encode(), b"text/xml"), binary(b"1", b"image/x+json")],
)
def test_an_older_version_reads_the_state_as_json(record):
    """The older version ignores the elements that name the payload's type, so the bodies of that version stay JSON."""
    read = msgspec.msgpack.decode(segment.item(parsing.parse(record, LAYOUT), 0).packed)
    older = segment.Packed(*read[:11])
    assert "data" in orjson.loads(payload.structured(older))


@pytest.mark.parametrize(
    ("record", "pattern", "is_match"),
    [
        (binary(AVRO, b"application/avro"), {"data": {"a": [1]}}, False),
        (binary(b'{"a":1}', b"application/octet-stream"), {"data": {"a": [1]}}, False),
        (binary(AVRO, b"application/avro"), {"data": {"a": [{"exists": False}]}}, True),
        (binary(AVRO, b"application/avro"), {"data": [{"exists": True}]}, False),
        (binary(AVRO, b"application/avro"), {"type": ["order.paid"]}, True),
        (binary(XML.encode(), b"text/xml"), {"data": {"a": [1]}}, False),
        (binary(XML.encode(), b"text/xml"), {"data": [{"prefix": "<a "}]}, True),
        (structured(datacontenttype="text/plain", data="hello"), {"data": ["hello"]}, True),
        (binary(None), {"data": [None]}, False),
        (binary(None), {"data": [{"exists": False}]}, True),
        (structured(data=None), {"data": [None]}, True),
        (structured(data=None), {"data": [{"exists": False}]}, False),
    ],
)
def test_a_filter_sees_no_field_of_an_opaque_payload(record, pattern, is_match):
    document = matching.filter_document(parsing.parse(record, LAYOUT))
    assert event_pattern.compile_pattern(pattern).matches(document) is is_match


@pytest.mark.parametrize("record", [binary(AVRO, b"application/avro"), binary(XML.encode(), b"text/xml"), binary(None)])
def test_an_opaque_payload_has_no_field_to_order_by(record):
    assert ordering_key.key_of(parsing.parse(record, LAYOUT).content, "account.number") == ordering_key.MISSING


@pytest.mark.parametrize(
    "media_type",
    [b"avro", b"text/", b"/xml", b"", b"text/xml\r\nx: y", "text/é".encode(), b"text/xml;\x00", b"text/" + b"x" * 260,
     b"text/xml, text/html", b"text/x ml"],
)  # fmt: skip
def test_a_text_that_is_no_media_type_is_rejected(media_type):
    with pytest.raises(errors.EventRejected) as rejected:
        parsing.parse(binary(b"<a/>", media_type), LAYOUT)
    assert rejected.value.reason == "unsupported"
    assert len(rejected.value.detail) < 300


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        pytest.param(builders.record(value=None), "tombstone", id="no headers"),
        pytest.param(builders.record(value=None, headers=HEADERS[1:]), "tombstone", id="no specversion"),
        pytest.param(builders.record(value=None, headers=(*HEADERS, *STRUCTURED)), "tombstone", id="structured mode"),
        pytest.param(builders.record(value=b" ", headers=(*HEADERS, *STRUCTURED)), "empty", id="structured mode, blank"),
        pytest.param(binary(b""), "empty", id="JSON of no bytes"),
        pytest.param(binary(b"\n", b"application/json"), "empty", id="JSON of white space"),
        pytest.param(binary(None, None, ("trace", b"x" * 262_144)), "too_large", id="headers beyond the bound"),
        pytest.param(binary(b"x" * 262_144, b"text/plain"), "too_large", id="text beyond the bound"),
    ],
)
def test_a_record_without_content_is_an_event_in_binary_mode_only(record, reason):
    with pytest.raises(errors.EventRejected) as rejected:
        parsing.parse(record, LAYOUT)
    assert rejected.value.reason == reason


@pytest.mark.parametrize(
    ("value", "media_type"),
    [
        pytest.param(b"\xff" * 530_000, b"application/avro", id="bytes, a third more in base64"),
        pytest.param(b'"' * 360_000, b"text/plain", id="text, two bytes for each quote in JSON"),
    ],
)
def test_a_payload_that_no_dead_letter_could_hold_is_rejected(value, media_type):
    """Regression: with `source.max_event_bytes` above 525,000, the dead letter was too large for Kafka, and the lane stood."""
    layout = parsing.Layout(max_bytes=700_000)
    with pytest.raises(errors.EventRejected, match="as a JSON string, headers included") as rejected:
        parsing.parse(binary(value, media_type), layout)
    assert rejected.value.reason == "too_large"
    event = parsing.parse(binary(value[: len(value) * 19 // 20], media_type), layout)
    outcome = Outcome(builders.delivery(event=event), OutcomeKind.DEAD_LETTERED, (), "expired")
    assert len(dead_letter_records.bounded(dead_letter_rows.dead_letter(outcome, now_ms=0))) < dead_letter_records.MAX_BYTES


def test_an_invalid_media_type_never_becomes_a_header():
    """An event from the state or from a topic may have any text as media type."""
    event = parsing.parse(binary(AVRO, b"application/avro"), LAYOUT)
    invalid = "a/b\r\nwebhook-id: msg_1"
    for stored in (event._replace(opaque=event.opaque._replace(media_type=invalid)), builders.event(json_type=invalid)):
        with pytest.raises(ValueError, match="another header"):
            payload.content(stored, ContentMode.CLOUDEVENTS_BINARY)


@pytest.mark.parametrize(
    "media_type", ["application/cloudevents+avro", "Application/CloudEvents", "application/cloudevents-batch+xml"]
)
def test_a_payload_is_not_declared_as_another_event(media_type):
    assert not opaque.is_media_type(media_type)
    event = parsing.parse(structured(datacontenttype=media_type, data="x"), LAYOUT)
    assert event.opaque is None


@pytest.mark.parametrize("data", [b"1", b"null", b'{"a": 1}'])
def test_a_payload_of_text_that_is_no_string_is_refused(data):
    """Regression: one such record on the dead-letter topic ended `fanout archive` with an AttributeError at each start."""
    with pytest.raises(ValueError, match="is not a JSON string"):
        opaque.as_bytes(data, Opaque(PayloadForm.TEXT, "text/csv"))
