"""The text of a `.proto` file becomes the descriptor that `protoc` makes of it."""

import importlib
import sysconfig
from pathlib import Path

import orjson
import pytest
from google.protobuf import descriptor_pool

from delivery.webhooks.formats import proto_text, schemas

PACKAGES = Path(sysconfig.get_paths()["purelib"])
FILES = sorted(path.relative_to(PACKAGES) for path in PACKAGES.glob("google/**/*.proto"))
"""The files that googleapis-common-protos has beside the modules that `protoc` made of them."""
TEXT = """
// A file with most of what proto3 has.
syntax = 'proto3'; /* {not; read} */
package shop.orders;
import public "google/protobuf/duration.proto";
option java_options = { name: "a;}" list: [1, 2] };
extend google.protobuf.MessageOptions { string note = 50001; }
service Orders { rpc Get(Order) returns (stream Order) { option (note) = "}"; } }
enum Kind {
  option allow_alias = true;
  reserved 7 to 9;
  NONE = 0; SALE = 0x10; BUY = 16 [deprecated = true]; LOSS = -1;
};
message Order {
  option deprecated = true;
  reserved 10, 12 to max; reserved "old";
  string message = 1 [json_name = "text", (note) = { a: [1] }];
  map<string, Line> lines_by_id = 2;
  optional int32 amount = 3;
  oneof paid { option (note) = "x"; bool cash = 4; Line.Card card = 5; }
  repeated Kind kinds = 6;
  message Line { Card card = 1; message Card { option deprecated = true; string number = 1; } }
  .google.protobuf.Duration waits = 07;
  orders.Kind kind = 8;
}
"""


def shape(message):
    """Return all of a message's descriptor that decoding depends on."""
    fields = [
        (
            field.name, field.number, field.type, field.is_repeated, field.has_presence,
            field.message_type and field.message_type.full_name, field.enum_type and field.enum_type.full_name,
            field.containing_oneof and field.containing_oneof.name,
        )
        for field in message.fields
    ]  # fmt: skip
    enums = [(enum.name, [(value.name, value.number) for value in enum.values]) for enum in message.enum_types]
    return message.full_name, fields, sorted(map(shape, message.nested_types)), enums


def pool_with(file, needed):
    """Return a pool with the file, and with all files that the descriptor `needed` imports."""
    pool = descriptor_pool.DescriptorPool()
    known = {}

    def add(descriptor):
        for imported in descriptor.dependencies:
            if imported.name not in known:
                known[imported.name] = True
                add(imported)
                pool.AddSerializedFile(imported.serialized_pb)

    add(needed)
    pool.AddSerializedFile(file.SerializeToString())
    return pool


@pytest.mark.parametrize("path", FILES, ids=str)
def test_a_text_becomes_the_descriptor_that_protoc_makes(path):
    compiled = importlib.import_module(f"{'.'.join(path.with_suffix('').parts)}_pb2").DESCRIPTOR
    file = proto_text.descriptor_of((PACKAGES / path).read_text())
    file.name = compiled.name
    read = pool_with(file, compiled).FindFileByName(compiled.name)
    assert list(read.message_types_by_name) == list(compiled.message_types_by_name)
    assert list(map(shape, read.message_types_by_name.values())) == list(map(shape, compiled.message_types_by_name.values()))
    assert list(read.enum_types_by_name) == list(compiled.enum_types_by_name)


@pytest.mark.parametrize(
    ("body", "document"),
    [
        pytest.param(b"", {}, id="defaults"),
        pytest.param(b"\x0a\x01a\x18\x00", {"message": "a", "amount": 0}, id="presence by optional"),
        pytest.param(b"\x20\x00", {"cash": False}, id="presence by oneof"),
        pytest.param(b"\x2a\x03\x0a\x01c", {"card": {"number": "c"}}, id="a message nested twice"),
        pytest.param(
            b"\x12\x0c\x0a\x01k\x12\x07\x0a\x05\x0a\x03777", {"lines_by_id": {"k": {"card": {"number": "777"}}}}, id="map"
        ),
        pytest.param(b"\x32\x02\x10\x00\x40\x10", {"kinds": ["SALE", "NONE"], "kind": "SALE"}, id="enum, packed"),
        pytest.param(b"\x3a\x02\x08\x05", {"waits": "5s"}, id="a type of another file"),
    ],
)
def test_a_value_is_decoded_by_the_text_of_its_schema(body, document):
    decode = schemas.compiled(1, schemas.Schema("PROTOBUF", TEXT))
    absent = {"message": "", "lines_by_id": {}, "kinds": [], "kind": "NONE"}
    assert orjson.loads(decode(b"\0" + body)) == absent | document


def test_the_index_of_a_message_does_not_count_entries_of_maps():
    """Writers that register text count the messages of the text."""
    decode = schemas.compiled(1, schemas.Schema("PROTOBUF", TEXT))
    assert orjson.loads(decode(b"\x06\0\0\0\x0a\x01c")) == {"number": "c"}


@pytest.mark.parametrize(
    "text",
    ["message", "message M {", "message M { string s = x; }", "message M { string s }", "message M { group G = 1 { } }",
     'edition = "2023";', "import shop;", "enum E { A = 08; }", "\n\x05Other", "hello", "message M { string s = 1 ]"],
)  # fmt: skip
def test_a_text_that_cannot_be_read_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"\.proto file|int\(\)"):
        proto_text.descriptor_of(text)


def test_deep_nesting_ends_in_a_schema_that_cannot_be_used():
    decode = schemas.compiled(1, schemas.Schema("PROTOBUF", "message M {" * 5000))
    with pytest.raises(Exception, match="schema 1 cannot be used"):
        decode(b"\0")
