"""A Protobuf value that would become far too much JSON is rejected before Protobuf parses it."""

import base64

import orjson
import pytest
from google.protobuf import descriptor_pb2

from delivery import errors
from delivery.webhooks.formats import protobuf, protobuf_expansion

LINE = f"message Line {{ {' '.join(f'string field_{number} = {number};' for number in range(1, 101))} }}"
SPARSE = f"message Sparse {{ {' '.join(f'optional string field_{number} = {number};' for number in range(1, 2001))} }}"
COLOUR = f"enum Colour {{ RED = 0; {'X' * 1000} = 1; MINUS = -1; }}"
ORDER = f"""
syntax = "proto3";
import "google/protobuf/any.proto";
import "google/protobuf/struct.proto";
message Order {{
  repeated Line lines = 1; map<int32, Line> by_number = 2; Order parent = 3; repeated Sparse sparse = 4;
  repeated Colour colours = 5; google.protobuf.Any more = 6; repeated google.protobuf.Value free = 7;
}}
{LINE} {SPARSE} {COLOUR}
"""
MANY = 100_000
"""Messages of two bytes. As JSON, those of LINE would have more than 100 MB."""


def varint(number):
    return bytes([number]) if number < 0x80 else bytes([number & 0x7F | 0x80]) + varint(number >> 7)


def part(number, content=b""):
    """Return a field with bytes, a text or a message."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def wrapped(type_name, content):
    """Return a `google.protobuf.Any` with a message of this type."""
    return part(1, f"x/{type_name}".encode()) + part(2, content)


def converted(body, text=ORDER):
    return protobuf.compiled(text, {})(b"\0" + body)


LINES = part(1) * MANY


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(LINES, id="empty messages"),
        pytest.param(LINES + b"\xff", id="broken at the end"),
        pytest.param(part(3, part(3, LINES)), id="nested"),
        pytest.param(part(3, part(1) * 3000) * 8, id="in several messages"),
        pytest.param(part(2) * MANY, id="entries of a map without a value"),
        pytest.param(part(4) * MANY, id="fields that JSON leaves out, and memory does not"),
        pytest.param(part(5, b"\1" * MANY), id="packed enums with a long name"),
        pytest.param(b"\x28\1" * MANY, id="enums with a long name"),
        pytest.param(b"\x28\x81\x80\x80\x80\x80\x80\x80\x80\x80\1" * 20_000, id="enums in more bytes than needed"),
        pytest.param(part(6, wrapped("Order", LINES)), id="in an Any"),
        pytest.param(part(6, wrapped("google.protobuf.Any", wrapped("Order", LINES))), id="in an Any of an Any"),
        pytest.param(part(6, part(2, LINES)) + part(6, part(1, b"x/Order")), id="in an Any in two parts"),
        pytest.param(b"\x4b" + part(1) * MANY + b"\x4c" + LINES, id="behind an unknown group"),
        pytest.param(b"\x48\1\x49" + b"x" * 8 + b"\x4d" + b"x" * 4 + part(9, b"x") + LINES, id="behind unknown fields"),
    ],
)
def test_a_value_that_would_become_too_much_json_is_rejected(body):
    """Regression: such a value of a few hundred bytes, compressed, blocked a worker for many seconds, and took a gigabyte."""
    with pytest.raises(errors.EventRejected) as rejected:
        converted(body)
    assert rejected.value.reason == "too_large"


def test_the_messages_of_groups_and_of_extensions_count():
    file = descriptor_pb2.FileDescriptorProto(name="old.proto", syntax="proto2")
    order, line = file.message_type.add(name="Order"), file.message_type.add(name="Line")
    order.extension_range.add(start=100, end=200)
    order.field.add(name="line", number=1, type=10, label=3, type_name=".Line")
    file.extension.add(name="lines", number=100, type=11, label=3, type_name=".Line", extendee=".Order")
    for number in range(1, 101):
        line.field.add(name=f"field_{number}", number=number, type=9, label=3)
    text = base64.b64encode(file.SerializeToString()).decode()
    assert len(orjson.loads(converted(b"\x0b\x0c" * 3, text))["line"]) == 3
    assert len(orjson.loads(converted(part(100) * 3, text))["[lines]"]) == 3
    for body in (b"\x0b\x0c" * MANY, part(100) * MANY):
        with pytest.raises(errors.EventRejected, match="too_large"):
            converted(body, text)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        pytest.param(part(1) * 530, ORDER, id="as many messages as fit"),
        pytest.param(part(6, wrapped("Order", part(1) * 530)), ORDER, id="as many in an Any"),
        pytest.param(part(7, b"\x08\0") * 90_000, ORDER, id="nulls"),
        pytest.param(part(5, b"\0" * 150_000), ORDER, id="enums with a short name"),
        pytest.param(b"\x4b" + LINES + b"\x4c", ORDER, id="in an unknown group"),
        pytest.param(part(9, LINES), ORDER, id="in an unknown field"),
        pytest.param(
            part(1) * 80_000,
            'syntax = "proto3"; import "google/protobuf/duration.proto"; message A { repeated google.protobuf.Duration d = 1;}',
            id="messages with a JSON of their own",
        ),
        pytest.param(part(1, b"\x08\1") * 70_000, 'syntax = "proto3"; message A { map<int32, bool> m = 1; }', id="a map"),
    ],
)
def test_a_value_whose_json_is_small_enough_is_converted(body, text):
    assert len(converted(body, text)) <= protobuf_expansion.MAX_JSON_BYTES


def test_the_longest_texts_are_converted():
    """The size of the JSON is bounded elsewhere, by `source.max_event_bytes`. This bound is for the conversion."""
    assert len(converted(part(1, part(1, b"x" * 700_000)))) > 700_000


def test_too_many_any_in_one_another_are_rejected():
    body = b""
    for _ in range(150):
        body = wrapped("google.protobuf.Any", body)
    with pytest.raises(errors.EventRejected, match=r"nests more than 100 messages of .*Any in one another: nest fewer"):
        converted(part(6, body))


def test_a_message_whose_bytes_cannot_be_counted_is_rejected():
    file = descriptor_pb2.FileDescriptorProto(name="old.proto", syntax="proto2")
    order, found = file.message_type.add(name="Order"), file.message_type.add(name="Set")
    order.field.add(name="set", number=1, type=11, label=1, type_name=".Set")
    found.options.message_set_wire_format = True
    found.extension_range.add(start=4, end=2**31 - 1)
    decode = protobuf.compiled(base64.b64encode(file.SerializeToString()).decode(), {})
    for _ in range(2):
        with pytest.raises(errors.EventRejected, match=r"undecodable.*message_set_wire_format"):
            decode(b"\0")
