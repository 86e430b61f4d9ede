"""Framed values of matching topics become events in both forms. A missing schema rejects, and an absent registry does not."""

import asyncio
import gzip

import orjson
import pytest

from delivery import errors
from delivery.payload_form import EndpointPayload, Framed, Opaque, PayloadForm
from delivery.registry_model import DeliveryMode
from delivery.webhooks.events import opaque, parsing
from delivery.webhooks.formats import decoder, schemas
from delivery.webhooks.routing import intake, registries
from tests.support import builders, framing
from tests.support.fakes import Clock

ORDER = {
    "type": "record", "name": "Order",
    "fields": [{"name": name, "type": "string"} for name in ("id", "tenant_id")] + [{"name": "amount", "type": "int"}],
}  # fmt: skip
PAYLOAD = {"type": "record", "name": "Payload", "fields": [{"name": "amount", "type": "int"}]}
JSON = schemas.Schema(schemas.SchemaType.JSON, "{}")
BINARY = tuple(
    (f"ce_{name}", b"1.0" if name == "specversion" else b"t1") for name in ("specversion", "id", "type", "source", "tenantid")
)
ORDER_VALUE = framing.framed(1, framing.avro(ORDER, {"id": "e1", "tenant_id": "t1", "amount": 5}))


@pytest.fixture
def reader():
    return framing.Reader(framing.avro_schema(ORDER), framing.avro_schema(PAYLOAD), JSON)


def test_a_decoded_object_is_a_plain_event(reader):
    record = builders.record(value=ORDER_VALUE, headers=(("content-type", b"application/avro"),))
    event = framing.event_of(record, reader)
    assert (event.event_id, event.tenant_id, event.content) == ("e1", "t1", {"id": "e1", "tenant_id": "t1", "amount": 5})
    assert orjson.loads(event.data) == event.content
    assert (event.record, event.opaque) == (record, None)


def test_a_cloud_event_in_binary_mode_has_the_decoded_payload(reader):
    value = framing.framed(2, framing.avro(PAYLOAD, {"amount": 5}))
    record = builders.record(value=value, headers=(*BINARY, ("Content-Type", b"application/vnd.shop+avro")))
    event = framing.event_of(record, reader)
    assert (event.event_type, event.data, event.opaque, event.attributes) == ("t1", b'{"amount":5}', None, ())


@pytest.mark.parametrize(
    ("schema_id", "body", "header", "media_type"),
    [
        pytest.param(2, framing.avro(PAYLOAD, {"amount": 5}), None, "application/avro", id="avro"),
        pytest.param(3, b"{}", None, "application/octet-stream", id="json in a frame is no JSON"),
        pytest.param(3, b"{}", b"application/json", "application/octet-stream", id="the media type of the JSON"),
        pytest.param(3, b"{}", b"application/x.shop", "application/x.shop", id="the producer's own"),
        pytest.param(3, b"{}", b"no media type", "application/octet-stream", id="no media type"),
    ],
)
def test_an_event_keeps_the_value_that_was_decoded(reader, schema_id, body, header, media_type):
    value = framing.framed(schema_id, body)
    headers = BINARY if header is None else (*BINARY, ("content-type", header))
    record = builders.record(
        value=gzip.compress(value), headers=(*headers, ("content-encoding", b"gzip"), ("ce_schemaid", b"x"))
    )
    event = framing.event_of(record, reader)
    assert event.framed == Framed(value, schema_id, media_type)
    sent = opaque.as_received(event, EndpointPayload.ORIGINAL)
    assert (sent.opaque, opaque.as_bytes(sent.data, sent.opaque)) == (Opaque(PayloadForm.BYTES, media_type), value)
    assert (sent.attributes, sent.content) == ((("schemaid", schema_id),), event.content)
    assert opaque.as_received(event, EndpointPayload.JSON) is event


def test_an_event_that_was_not_decoded_has_one_payload(reader):
    event = framing.event_of(builders.record(), reader)
    assert opaque.as_received(event, EndpointPayload.ORIGINAL) is event


def test_json_schema_is_the_json_behind_the_frame(reader):
    document = b'{"specversion": "1.0", "id": "e1", "type": "a", "source": "/s", "tenantid": "t1", "data": {"amount":  5}}'
    structured = (("content-type", b"application/cloudevents+json"),)
    event = framing.event_of(builders.record(value=framing.framed(3, document), headers=structured), reader)
    assert (event.source, event.data) == ("/s", b'{"amount":  5}')


def test_a_value_is_decompressed_before_its_frame_is_read(reader):
    record = builders.record(value=gzip.compress(ORDER_VALUE), headers=(("content-encoding", b"gzip"),))
    assert framing.event_of(record, reader).content["amount"] == 5


@pytest.mark.parametrize(
    ("record", "layout"),
    [
        pytest.param(builders.record(), {}, id="no frame: JSON"),
        pytest.param(builders.record(topic="other", value=b'{"tenant_id": "t1"}'), {}, id="a topic that does not match"),
        pytest.param(
            builders.record(value=b'{"tenant_id": "fanout"}'), {"operational_topic": "events.order.created"}, id="operational"
        ),
        pytest.param(builders.record(value=None, headers=BINARY), {}, id="no payload"),
    ],
)
def test_other_values_are_read_as_in_other_topics(reader, record, layout):
    layout = parsing.Layout(**layout)
    assert framing.event_of(record, reader, layout) == parsing.parse(record, layout)
    assert reader.asked == []


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        pytest.param(b"\0\0\0", "bad_frame", id="cut"),
        pytest.param(framing.framed(2**31, b"x"), "bad_frame", id="an id that no schema has"),
        pytest.param(framing.framed(2**31 - 1, b"x"), "unknown_schema", id="the highest id"),
        pytest.param(framing.framed(9, b"x"), "unknown_schema", id="no such schema"),
        pytest.param(framing.framed(1, b"x"), "undecodable", id="other bytes"),
        pytest.param(framing.framed(2, b"\x0a"), "missing_attribute", id="no tenant"),
        pytest.param(framing.framed(3, b"<x/>"), "not_json", id="no JSON behind the frame"),
        pytest.param(framing.framed(3, b""), "empty", id="nothing behind the frame"),
    ],
)
def test_a_bad_record_is_rejected_with_a_reason_of_its_own(reader, value, reason):
    with pytest.raises(errors.EventRejected) as rejected:
        framing.event_of(builders.record(value=value), reader)
    assert rejected.value.reason == reason


@pytest.mark.parametrize("spare", [1000, 0])
def test_the_bound_counts_the_json_and_all_headers(reader, spare):
    """A dead letter has both, and must fit into Kafka."""
    record = builders.record(value=ORDER_VALUE, headers=(("content-type", b"x" * 900),))
    layout = parsing.Layout(max_bytes=900 + len('{"id":"e1","tenant_id":"t1","amount":5}') + spare)
    if spare:
        assert framing.event_of(record, reader, layout)
        return
    with pytest.raises(errors.EventRejected, match="too_large"):
        framing.event_of(record, reader, layout)


def test_a_framed_value_that_no_dead_letter_could_hold_is_rejected(reader):
    """An endpoint may get the value as its producer wrote it, which is a third longer in base64."""
    large = framing.framed(3, b'{"tenant_id":"t1","text":"%s"}' % (b"x" * 530_000))
    layout = parsing.Layout(max_bytes=700_000)
    with pytest.raises(errors.EventRejected, match="as a JSON string, headers included"):
        framing.event_of(builders.record(value=large), reader, layout)


def test_a_cached_schema_works_while_the_registry_is_away(reader):
    here = decoder.Decoder(framing.FORMATS, parsing.Layout(), reader)
    here.event_now(builders.record(value=ORDER_VALUE))
    reader.is_away = True
    assert here.event_now(builders.record(value=ORDER_VALUE)).content["amount"] == 5
    with pytest.raises(errors.SchemaRegistryUnavailable):
        here.event_now(builders.record(value=framing.framed(2, b"\x0a")))
    assert reader.asked == [1, 2]


def test_an_unknown_schema_is_asked_for_again_after_a_while(reader):
    clock = Clock()
    here = decoder.Decoder(framing.FORMATS, parsing.Layout(), reader, lambda: clock.now)
    record = builders.record(value=framing.framed(4, framing.avro(ORDER, {"id": "e", "tenant_id": "t1", "amount": 1})))
    for _ in range(3):
        with pytest.raises(errors.EventRejected, match="unknown_schema"):
            here.event_now(record)
    assert reader.asked == [4]
    clock.now += decoder.UNKNOWN_S + 1
    reader.known[4] = framing.avro_schema(ORDER)
    assert here.event_now(record).event_id == "e"


def test_an_absent_registry_is_asked_once_in_a_while(reader):
    """Each request may take seconds, and records of hundreds of partitions would wait one after another."""
    clock = Clock()
    here = decoder.Decoder(framing.FORMATS, parsing.Layout(), reader, lambda: clock.now)
    reader.is_away = True
    for schema_id in (1, 2, 1):
        with pytest.raises(errors.SchemaRegistryUnavailable, match="away"):
            here.event_now(builders.record(value=framing.framed(schema_id, b"\x0a")))
    assert reader.asked == [1]
    clock.now += decoder.AWAY_S
    reader.is_away = False
    assert here.event_now(builders.record(value=ORDER_VALUE)).event_id == "e1"


def test_a_schema_that_cannot_be_read_keeps_no_other_schema_from_use(reader):
    """Regression: one schema with status 403 paused the topics of readable schemas too, again after each restart."""
    clock = Clock()
    here = decoder.Decoder(framing.FORMATS, parsing.Layout(), reader, lambda: clock.now)
    reader.unusable = {2}
    for _ in range(2):
        with pytest.raises(errors.SchemaRegistryUnavailable, match="schema 2"):
            here.event_now(builders.record(value=framing.framed(2, b"\x0a")))
        assert here.event_now(builders.record(value=ORDER_VALUE)).event_id == "e1"
    assert reader.asked == [2, 1]
    clock.now += decoder.AWAY_S
    with pytest.raises(errors.SchemaRegistryUnavailable, match="schema 2"):
        here.event_now(builders.record(value=framing.framed(2, b"\x0a")))
    assert reader.asked == [2, 1, 2]


@pytest.mark.parametrize("calls", range(6))
def test_a_refusal_that_is_forgotten_meanwhile_still_has_its_cause(reader, calls):
    """Regression: the error had no text if the refusal was forgotten between two looks at the clock."""
    times = []
    here = decoder.Decoder(framing.FORMATS, parsing.Layout(), reader, lambda: times.pop() if times else 0.0)
    reader.unusable = {2}
    for _ in range(2):
        with pytest.raises(errors.SchemaRegistryUnavailable, match="schema 2"):
            here.event_now(builders.record(value=framing.framed(2, b"\x0a")))
        times = [decoder.AWAY_S] * 50 + [0.0] * calls


def intake_of(reader, **options):
    registry = registries.WholeRegistry("base", builders.snapshot(builders.endpoint(), builders.subscription()))
    here = decoder.Decoder(framing.FORMATS, parsing.Layout(), reader)
    return intake.Intake(registry, parsing.Layout(), DeliveryMode.DIRECT, lambda event, _: event, formats=here, **options)


def test_the_intake_pauses_the_partition_of_a_record_that_waits(reader):
    """Later records of the partition wait too, also those whose schema is known: the order of a partition is kept."""
    taking = intake_of(reader, pauses_partitions=True)
    missing = framing.framed(2, b"\x0a")

    def accept(offset, value, partition=0):
        record = builders.record(offset=offset, value=value, partition=partition)
        return asyncio.run(taking.accept(record, [])) is not None

    assert accept(3, ORDER_VALUE)
    reader.is_away = True
    assert [accept(4, missing), accept(5, ORDER_VALUE), accept(6, b"no JSON")] == [False] * 3
    assert accept(9, ORDER_VALUE, partition=1)
    assert [accept(0, missing, partition=2)] == [False]
    assert taking.paused == {(builders.record().topic, 0): 4, (builders.record().topic, 2): 0}
    receipts = [(it.partition, it.first_offset, it.last_offset, it.records, it.rejected) for it in taking.receipts()]
    assert receipts == [(0, 3, 3, 1, 0), (1, 9, 9, 1, 0)]


@pytest.mark.parametrize("is_away", [False, True])
def test_the_intake_rejects_bad_records_and_raises_an_absence(reader, is_away):
    """The real-time lane and replays read the records again, so they pause no partition."""
    reader.is_away = is_away
    taking = intake_of(reader)
    rejections = []
    work = taking.accept(builders.record(value=framing.framed(9, b"x")), rejections)
    if is_away:
        with pytest.raises(errors.SchemaRegistryUnavailable):
            asyncio.run(work)
        assert rejections == []
    else:
        assert asyncio.run(work) is None
        assert [rejection.reason for rejection in rejections] == ["unknown_schema"]
