"""Protobuf becomes ProtoJSON with the fields' own names and their defaults. No bytes end the process."""

import orjson
import pytest
from google.protobuf import struct_pb2, timestamp_pb2

from delivery import errors
from delivery.webhooks.formats import schemas, wire_format
from tests.support import framing

STRING, BOOL, INT64, MESSAGE, BYTES, DOUBLE = 9, 8, 3, 11, 12, 1
ORDER = framing.proto(
    "order.proto",
    "google/protobuf/timestamp.proto",
    "money.proto",
    Order={
        "tenant_id": (1, STRING, ""),
        "paid": (2, BOOL, ""),
        "number": (3, INT64, ""),
        "placed_at": (4, MESSAGE, ".google.protobuf.Timestamp"),
        "seal": (5, BYTES, ""),
        "price": (6, MESSAGE, ".shop.Money"),
        "weight": (7, DOUBLE, ""),
        "parent": (8, MESSAGE, ".shop.Order"),
    },
    Refund={"reason": (1, STRING, "")},
)
ORDER.message_type[1].nested_type.add(name="Line").field.add(name="sku", number=1, type=STRING, label=1)
MONEY = framing.proto("money.proto", Money={"amount": (1, STRING, "")})
SCHEMA = framing.protobuf_schema(ORDER, MONEY)
FIRST = b"\0"
"""Message indexes of the first message."""


def varint(number):
    return bytes([number]) if number < 0x80 else bytes([number & 0x7F | 0x80]) + varint(number >> 7)


def decoded(body, schema=SCHEMA):
    return orjson.loads(schemas.compiled(1, schema)(body))


def test_fields_have_their_own_names_and_their_defaults():
    assert decoded(FIRST) == {"tenant_id": "", "paid": False, "number": "0", "seal": "", "weight": 0.0}


def test_each_type_has_its_json():
    placed = timestamp_pb2.Timestamp(seconds=1_777_629_600).SerializeToString()
    body = FIRST + b"\x0a\x02t1\x10\x01\x18\x05\x22" + bytes([len(placed)]) + placed + b"\x2a\x01\xff\x32\x05\x0a\x037.5"
    assert decoded(body) == {
        "tenant_id": "t1",
        "paid": True,
        "number": "5",
        "placed_at": "2026-05-01T10:00:00Z",
        "seal": "/w==",
        "price": {"amount": "7.5"},
        "weight": 0.0,
    }


def nested(number, content):
    return bytes([number << 3 | 2]) + varint(len(content)) + content


def test_each_process_makes_the_same_json():
    """Protobuf yields a map's entries in an order that differs from process to process, and `webhook-id` may depend on it."""
    names = "zyxwvutsabcdefgh"
    written = struct_pb2.Struct()
    written.update(dict.fromkeys(names, True))
    made = {"z": (1, MESSAGE, ".shop.Any.Entry"), "a": (2, MESSAGE, ".google.protobuf.Struct"), "m": (3, STRING, "")}
    file = framing.proto("any.proto", "google/protobuf/struct.proto", Any=made)
    file.message_type[0].field[0].label = 3  # repeated
    entry = file.message_type[0].nested_type.add(name="Entry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=STRING, label=1)
    entry.field.add(name="value", number=2, type=MESSAGE, label=1, type_name=".google.protobuf.Struct")
    content = written.SerializeToString()
    body = b"".join(nested(1, nested(1, name.encode()) + nested(2, content)) for name in names) + nested(2, content)
    text = schemas.compiled(1, framing.protobuf_schema(file))(FIRST + body)
    by_name = dict.fromkeys(sorted(names), True)
    assert text == orjson.dumps({"z": dict.fromkeys(sorted(names), by_name), "a": by_name, "m": ""})


def test_the_maps_of_an_extension_are_sorted_too():
    names = "zyxwvutsabcdefgh"
    written = struct_pb2.Struct()
    written.update(dict.fromkeys(names, True))
    file = framing.proto("extended.proto", "google/protobuf/struct.proto", Any={})
    file.syntax = "proto2"
    file.message_type[0].extension_range.add(start=100, end=200)
    struct = ".google.protobuf.Struct"
    file.extension.add(name="more", number=100, type=MESSAGE, label=1, type_name=struct, extendee=".shop.Any")
    content = written.SerializeToString()
    body = varint(100 << 3 | 2) + varint(len(content)) + content
    text = schemas.compiled(1, framing.protobuf_schema(file))(FIRST + body)
    assert text == orjson.dumps({"[shop.more]": dict.fromkeys(sorted(names), True)})


@pytest.mark.parametrize(
    ("indexes", "field"),
    [(b"\0", "tenant_id"), (b"\x02\0", "tenant_id"), (b"\x02\x02", "reason"), (b"\x04\x02\0", "sku")],
)
def test_the_message_indexes_choose_the_message(indexes, field):
    assert field in decoded(indexes)


def test_a_field_that_the_schema_does_not_have_is_left_out():
    assert "9" not in decoded(FIRST + b"\x4a\x01x")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        pytest.param(b"", "bad_frame", id="no message indexes"),
        pytest.param(b"\x02", "bad_frame", id="cut"),
        pytest.param(b"\x01\0", "bad_frame", id="a negative count"),
        pytest.param(b"\xfe\xff\x07\0", "bad_frame", id="more indexes than bytes"),
        pytest.param(b"\xff" * 6, "bad_frame", id="no varint"),
        pytest.param(b"\x02\x08", "bad_frame", id="no such message"),
        pytest.param(b"\x02\x01", "bad_frame", id="a negative index"),
        pytest.param(b"\x04\0\0", "bad_frame", id="no such nested message"),
        pytest.param(FIRST + b"\xff", "undecodable", id="no field"),
        pytest.param(FIRST + b"\x0a\x05ab", "undecodable", id="a field that is cut"),
        pytest.param(FIRST + b"\x0a\x01\xff", "undecodable", id="not UTF-8"),
        pytest.param(FIRST + b"\x22\x0a\x08" + b"\xff" * 8 + b"\x7f", "undecodable", id="a time after the year 9999"),
    ],
)
def test_bytes_that_do_not_decode_are_rejected(body, reason):
    with pytest.raises(errors.EventRejected) as rejected:
        decoded(body)
    assert rejected.value.reason == reason


@pytest.mark.parametrize(("count", "shown"), [(8, "[9, 9, 9, 9, 9, 9, 9, 9]"), (200_000, "[9, 9, 9, 9, 9, 9, 9, 9, …]")])
def test_an_error_shows_the_first_message_indexes_only(count, shown):
    """Regression: the error showed all, so it was longer than a Kafka record, and the lane stopped for all customers."""
    with pytest.raises(errors.EventRejected) as rejected:
        decoded(varint(2 * count) + b"\x12" * count)
    assert rejected.value.reason == "bad_frame"
    assert f"indexes {shown}: use" in rejected.value.detail


def test_a_message_that_is_nested_too_deeply_is_rejected():
    body = b""
    for _ in range(150):
        size, head = len(body), b"\x42"
        body = head + (bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])) + body
    with pytest.raises(errors.EventRejected, match="undecodable"):
        decoded(FIRST + body)


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param(framing.protobuf_schema(ORDER), id="without its reference"),
        pytest.param(schemas.Schema("PROTOBUF", 'syntax = "proto3"; message {'), id="a text that is no .proto file"),
        pytest.param(schemas.Schema("PROTOBUF", "AAAA"), id="no descriptor"),
        pytest.param(schemas.Schema("XML", "<x/>"), id="of another type"),
    ],
)
def test_a_schema_that_cannot_be_used_rejects_each_record(schema):
    with pytest.raises(errors.EventRejected, match="schema 1 cannot be used"):
        decoded(FIRST, schema)


def test_a_frame_has_the_id_and_the_body():
    assert wire_format.frame_of(framing.framed(70_000, b"body")) == (70_000, b"body")
