"""An Avro body that would become far too much JSON is rejected before fastavro reads it."""

import json

import orjson
import pytest

from delivery import errors
from delivery.webhooks.formats import avro
from tests.support import framing

LIMIT = 700_000
"""Largest allowed `source.max_event_bytes`."""
LONG = {"type": "record", "name": "Long", "fields": [{"name": "n" * 4000, "type": "boolean"}]}
COLOUR = {"type": "enum", "name": "Colour", "symbols": ["RED", "B" * 4000]}
KINDS = (
    LONG, {"type": "fixed", "name": "F", "size": 9}, "double", {"type": "map", "values": ["float", "boolean"]},
    {"type": "enum", "name": "Letter", "symbols": ["A"]},
)  # fmt: skip
SMALL = {"type": "bytes", "logicalType": "decimal", "precision": 1000, "scale": 1000}


def decoded(schema, body):
    return avro.compiled(json.dumps(schema), [])(body)


def items(number, item):
    """Return the bytes of an array; of a map, if the item begins with a key."""
    return framing.avro("long", number) + item * number + b"\0"


def fields(*types):
    return [{"name": f"f{number}", "type": each} for number, each in enumerate(types)]


def records(levels):
    """Return a record of ten records of ten records, and so on: `levels` deep. The innermost have no fields."""
    schema = {"type": "record", "name": "L0", "fields": []}
    for level in range(1, levels + 1):
        inner = fields(schema, *[f"L{level - 1}"] * 9)
        schema = {"type": "record", "name": f"L{level}", "fields": inner}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param(records(4), id="a record"),
        pytest.param({"type": "record", "name": "R", "fields": fields("int", records(4))}, id="beside a number"),
        pytest.param({"type": "record", "name": "R", "fields": fields("int", records(3), *["L3"] * 9)}, id="in parts"),
        pytest.param({"type": "array", "items": ["null", records(4)]}, id="in a union in an array"),
        pytest.param({"type": "map", "values": records(4)}, id="in a map"),
    ],
)
def test_a_schema_whose_few_bytes_are_very_many_records_is_refused(schema):
    """Regression: an empty body became millions of records, which blocked a worker."""
    with pytest.raises(ValueError, match="more than 10000 records without bytes"):
        avro.compiled(json.dumps(schema), [])


def test_records_of_few_bytes_are_read():
    schema = {"type": "array", "items": ["null", records(2)]}
    assert len(orjson.loads(decoded(schema, b"\x06" + b"\x02" * 3 + b"\0"))[0]) == 10
    assert len(orjson.loads(decoded(records(3), b""))) == 10


def test_a_schema_of_very_many_records_with_bytes_is_read():
    schema = records(4)
    innermost = schema
    while innermost["fields"]:
        innermost = innermost["fields"][0]["type"]
    innermost["fields"] = fields("int")
    assert decoded(schema, b"\x02" * 10_000).count(b'"f0":1') == 10_000


def holder(*branches):
    """Return a record that has numbers, texts, and values of these types."""
    return {
        "type": "record", "name": "Holder",
        "fields": [
            {"name": "numbers", "type": {"type": "array", "items": "int"}},
            {"name": "text", "type": "string"},
            {"name": "more", "type": {"type": "array", "items": ["null", *branches]}},
        ],
    }  # fmt: skip


def recursive(*types):
    """Return a record A of 1,111 records without fields, and of these types, which name A."""
    return {"type": "record", "name": "A", "fields": fields(records(3), *types)}


def tree(depth):
    """Return the body of a tree with two branches at each node."""
    return b"\0\0" if depth == 0 else (b"\x02" + tree(depth - 1)) * 2


@pytest.mark.parametrize(
    ("schema", "body"),
    [
        pytest.param({"type": "array", "items": ["null", records(3)]}, items(100_000, b"\x02"), id="records without fields"),
        pytest.param({"type": "array", "items": ["null", records(3)]}, items(3500, b"\x02"), id="fewer of them"),
        pytest.param({"type": "array", "items": LONG}, items(50_000, b"\1"), id="a long name of a field"),
        pytest.param({"type": "map", "values": LONG}, items(50_000, b"\2k\1"), id="in a map"),
        pytest.param({"type": "array", "items": COLOUR}, items(50_000, b"\2"), id="a long symbol"),
        pytest.param({"type": "array", "items": SMALL}, items(50_000, b"\2\1"), id="a decimal with many digits"),
        pytest.param(holder(LONG), b"\0\0" + items(50_000, b"\2\1"), id="beside other fields"),
        pytest.param(holder(LONG), b"\0" + framing.avro("string", "x" * 5000) + items(270, b"\2\1"), id="a little too much"),
        pytest.param(holder(LONG), b"\0\0" + b"\1\4\2\1" * 50_000 + b"\0", id="in many blocks with their bytes"),
        pytest.param(holder(LONG), b"\0\0" + items(50_000, b"\2\1") + b"x", id="before more bytes"),
        pytest.param(recursive(["null", "A"], ["null", "A"]), tree(10), id="a record in itself"),
        pytest.param(recursive({"type": "array", "items": "A"}), items(2000, b"\0"), id="in an array in itself"),
        pytest.param(recursive({"type": "map", "values": "A"}), items(2000, b"\2k\0"), id="in a map in itself"),
        pytest.param(
            recursive(["null", {"type": "record", "name": "B", "fields": fields("A", "A")}]),
            b"\2" * 1000 + b"\0" * 1001,
            id="in a record in itself",
        ),
        pytest.param(
            {
                "type": "record",
                "name": "A",
                "fields": fields(
                    {"type": "array", "items": {"type": "record", "name": "B", "fields": fields(records(3), "A")}}
                ),
            },
            items(2000, b"\0"),
            id="beside itself in an array",
        ),
    ],
)
def test_a_body_that_would_become_too_much_json_is_rejected(schema, body):
    """Regression: such a body of a few hundred bytes became hundreds of megabytes, which blocked a worker."""
    with pytest.raises(errors.EventRejected) as rejected:
        decoded(schema, body)
    assert rejected.value.reason == "too_large"
    assert "bytes as JSON" in rejected.value.detail


@pytest.mark.parametrize(
    ("schema", "body"),
    [
        pytest.param(holder(LONG), items(300_000, b"\0") + b"\0\0", id="many numbers"),
        pytest.param(holder(LONG), b"\2\0" * 300_000 + b"\0\0\0", id="many blocks"),
        pytest.param(holder(LONG), b"\3\4\0\0" * 100_000 + b"\0\0\0", id="many blocks with their bytes"),
        pytest.param(holder(LONG), b"\0" + framing.avro("string", "x" * 650_000) + b"\0", id="a long text"),
        pytest.param(holder(LONG), b"\0\0" + items(120_000, b"\0"), id="many nulls"),
        pytest.param(holder(LONG), b"\0" + framing.avro("string", "x" * 50_000) + items(150, b"\2\1"), id="a few long names"),
        pytest.param(holder(COLOUR), items(100_000, b"\0") + b"\0" + items(80_000, b"\2\0"), id="short symbols"),
        pytest.param(holder(records(3)), items(100_000, b"\0") + b"\0" + items(50, b"\2"), id="a few records of many records"),
        pytest.param(holder(SMALL), items(100_000, b"\0") + b"\0" + items(400, b"\2\2\1"), id="a few long decimals"),
        pytest.param(
            holder(*KINDS),
            framing.avro(holder(*KINDS), {"numbers": [], "text": "", "more": [b"x" * 9, 1.5, {"k": True}, "A"] * 2000}),
            id="values of each kind",
        ),
    ],
)
def test_a_body_whose_json_is_small_enough_is_converted(schema, body):
    assert len(decoded(schema, body)) <= LIMIT


@pytest.mark.parametrize(
    "more",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\2\2", id="a value is cut"),
        pytest.param(b"\2\6", id="no such branch"),
        pytest.param(framing.avro("long", 10**6) + b"\4\3", id="texts of less than no bytes"),
        pytest.param(b"\x82" + b"\x80" * 9 + b"\0\0\0", id="a number of eleven bytes"),
        pytest.param(b"\x82" + b"\x80" * 8 + b"\2\0\0", id="a number of 65 bits"),
    ],
)
def test_a_broken_body_whose_json_may_be_large_is_rejected(more):
    with pytest.raises(errors.EventRejected, match=r"undecodable"):
        decoded(holder(LONG, "string"), b"\0" + framing.avro("string", "x" * 10_000) + more)


def test_a_body_that_needs_more_bytes_than_any_number_has_is_rejected():
    """Regression: the number of its bytes of JSON is too large for a float."""
    levels = [{"type": "record", "name": "L0", "fields": fields("int")}]
    levels += [{"type": "record", "name": f"L{level}", "fields": fields(*[f"L{level - 1}"] * 100)} for level in range(1, 160)]
    decode = avro.compiled('"L159"', [json.dumps(level) for level in levels])
    with pytest.raises(errors.EventRejected, match=r"undecodable"):
        decode(b"\2" * 100)
