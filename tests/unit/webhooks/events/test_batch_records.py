"""A batch record is rejected as a whole, or becomes one record for each event, with the event's bytes."""

import gzip

import orjson
import pytest

from delivery import errors
from delivery.webhooks.events import batch_records, parsing
from tests.support import builders

TAKEN_APART = parsing.Layout(takes_batches_apart=True)
BATCH = ("content-type", b"application/cloudevents-batch+json")
EVENT = b'{"specversion": "1.0", "id": "e1",  "type": "order", "source": "/shop", "tenantid": "t1", "data": 1.50}'


def batch_record(*events, headers=(), content_type=BATCH, **fields):
    value = b"[ %s ]" % b" ,\n".join(events)
    return builders.record(**{"value": value, "headers": (*headers, content_type)} | fields)


def made_of(record):
    """The record of each event."""
    with pytest.raises(errors.BatchFound) as found:
        parsing.parse(record, TAKEN_APART)
    made = list(batch_records.event_records(batch_records.BatchRecord(record, *found.value.args)))
    assert found.value.events == len(made)
    return made


def events_of(record):
    return [made.value for made in made_of(record)]


def rejected(record, layout=TAKEN_APART):
    with pytest.raises(errors.EventRejected) as refusal:
        parsing.parse(record, layout)
    assert not isinstance(refusal.value, errors.BatchFound)
    return refusal.value


def test_by_default_a_batch_is_rejected_with_the_setting_that_takes_it_apart():
    refusal = rejected(batch_record(EVENT), parsing.Layout())
    assert refusal.reason == "unsupported"
    assert "source.batch_records" in refusal.detail


@pytest.mark.parametrize(
    "content_type",
    [BATCH, ("Content-Type", b" Application/CloudEvents-Batch+JSON; charset=utf-8"), ("CONTENT-TYPE", BATCH[1])],
)
def test_the_events_of_a_batch_keep_their_bytes_and_their_order(content_type):
    wrong = [b"null", b'{"id": 1.0}', b'"\xc3\xa9"', b"[[]]"]
    assert events_of(batch_record(EVENT, *wrong, EVENT, content_type=content_type)) == [EVENT, *wrong, EVENT]


def test_a_compressed_batch_is_decompressed_once():
    value = gzip.compress(b"[%s]" % EVENT)
    record = batch_record(value=value, headers=(BATCH, ("Content-Encoding", b"gzip")))
    [made] = made_of(record)
    assert made.value == EVENT
    assert [name for name, _ in made.headers] == ["content-type"]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"[]", "empty"),
        (b" [ ]\n", "empty"),
        (b" ", "empty"),
        (b"{}", "not_json"),
        (b"[1,", "not_json"),
        (b"[{]", "not_json"),
        (b"[1] 2", "not_json"),
        (b"[" * 100_000, "not_json"),
        (b"[%s]" % b",".join([b"0"] * (batch_records.MAX_EVENTS + 1)), "too_large"),
    ],
)
def test_a_batch_without_readable_events_or_with_too_many_is_rejected(value, reason):
    assert rejected(batch_record(value=value)).reason == reason


def test_a_batch_that_is_nested_too_deeply_is_not_called_no_array():
    assert "nested too deeply" in rejected(batch_record(value=b"[" * 100_000)).detail
    assert "no JSON array" in rejected(batch_record(value=b"{}")).detail


def test_the_most_events_of_a_batch_are_taken_apart():
    assert len(events_of(batch_record(*[b"0"] * batch_records.MAX_EVENTS))) == batch_records.MAX_EVENTS


def test_a_batch_whose_headers_would_be_written_too_often_is_rejected():
    trace = ("trace", b"x" * 42_000)
    assert len(events_of(batch_record(*[b"0"] * 99, headers=(trace,)))) == 99
    assert rejected(batch_record(*[b"0"] * 100, headers=(trace,))).reason == "too_large"


def test_an_event_gets_the_place_the_key_and_the_headers_of_its_batch():
    record = batch_record(EVENT, b"{}", headers=(("trace", b"a"), ("trace", b"b")), key=b"k", topic="shop", partition=5)
    made = made_of(record)
    headers = (("trace", b"a"), ("trace", b"b"), ("content-type", b"application/cloudevents+json"))
    assert made == [("shop", 5, b"k", EVENT, headers), ("shop", 5, b"k", b"{}", headers)]


@pytest.mark.parametrize("event", [EVENT, b"[%s]" % EVENT, b"[]", b"null"])
def test_no_event_of_a_batch_is_taken_apart_again(event):
    [made] = made_of(batch_record(event))
    record = builders.record(value=made.value, headers=made.headers)
    if event == EVENT:
        assert parsing.parse(record, TAKEN_APART).data == b"1.50"
    else:
        assert rejected(record).reason == "not_json"


@pytest.mark.parametrize("content_type", [b"application/cloudevents-batch+xml", b"application/cloudevents-batch"])
def test_a_batch_in_another_format_than_json_is_unsupported(content_type):
    assert rejected(batch_record(EVENT, content_type=("content-type", content_type))).reason == "unsupported"


def test_a_plain_record_with_an_array_is_no_batch():
    assert rejected(builders.record(value=orjson.dumps([{"tenant_id": "t1"}]))).reason == "not_json"
