"""Avro becomes the JSON that docs/producing.md lists, by the schema of its writer. No bytes end the process."""

import datetime as dt
import decimal
import json
import uuid

import orjson
import pytest

from delivery import errors
from delivery.webhooks.formats import avro
from tests.support import framing

DAY, MOMENT = dt.date(2026, 5, 1), dt.datetime(2026, 5, 1, 10, 0, 0, 500_000, tzinfo=dt.UTC)
NUMBER = uuid.UUID("12345678-1234-5678-1234-567812345678")
COLOUR = {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}
TREE = {"type": "record", "name": "Tree", "fields": [{"name": "next", "type": ["null", "Tree"]}]}
MONEY = {
    "type": "record", "name": "Money", "namespace": "shop.types",
    "fields": [{"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}}],
}  # fmt: skip


def logical(kind, logical_type, **more):
    return {"type": kind, "logicalType": logical_type, **more}


def decoded(schema, body, *references):
    return avro.compiled(json.dumps(schema), [json.dumps(reference) for reference in references])(body)


@pytest.mark.parametrize(
    ("schema", "value", "shown"),
    [
        ("null", None, None),
        ("boolean", True, True),
        ("int", -5, -5),
        ("long", 2**62, 2**62),
        ("double", 1.5, 1.5),
        ("double", float("nan"), None),
        ("string", "é", "é"),
        ("bytes", b"\xff\x00", "/wA="),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab", "YWI="),
        (COLOUR, "BLUE", "BLUE"),
        ({"type": "array", "items": "int"}, [1, 2], [1, 2]),
        ({"type": "map", "values": "int"}, {"a": 1}, {"a": 1}),
        (["null", "string"], None, None),
        (["null", "string"], "x", "x"),
        (logical("bytes", "decimal", precision=9, scale=2), decimal.Decimal("12.50"), "12.50"),
        (logical("string", "uuid"), NUMBER, str(NUMBER)),
        (logical("int", "date"), DAY, "2026-05-01"),
        (logical("int", "time-millis"), dt.time(10, 0, 0, 5000), "10:00:00.005000"),
        (logical("long", "timestamp-millis"), MOMENT, "2026-05-01T10:00:00.500000Z"),
        (logical("long", "timestamp-micros"), MOMENT.replace(microsecond=0), "2026-05-01T10:00:00Z"),
        (logical("long", "local-timestamp-millis"), MOMENT.replace(tzinfo=None, microsecond=0), "2026-05-01T10:00:00"),
    ],
)
def test_each_type_has_its_json(schema, value, shown):
    assert orjson.loads(decoded(schema, framing.avro(schema, value))) == shown


def test_a_large_number_keeps_its_digits():
    assert decoded("long", framing.avro("long", 2**63 - 1)) == b"9223372036854775807"


@pytest.mark.parametrize("is_recursive", [False, True])
@pytest.mark.parametrize(("unscaled", "shown"), [(1234567, "12345.67"), (-1234567, "-12345.67"), (5, "0.05"), (0, "0.00")])
def test_a_decimal_keeps_the_digits_above_its_precision(unscaled, shown, is_recursive):
    amount = {"name": "amount", "type": logical("bytes", "decimal", precision=4, scale=2)}
    more = [{"name": "next", "type": ["null", "Priced"]}] if is_recursive else []
    body = framing.avro("bytes", unscaled.to_bytes(3, "big", signed=True)) + b"\0" * len(more)
    assert orjson.loads(decoded({"type": "record", "name": "Priced", "fields": [amount, *more]}, body))["amount"] == shown


def test_a_decimal_with_more_than_1000_digits_is_rejected():
    schema = logical("bytes", "decimal", precision=9)
    assert len(orjson.loads(decoded(schema, framing.avro("bytes", b"\x7f" * avro.MAX_DECIMAL_BYTES)))) == 1000
    with pytest.raises(errors.EventRejected, match="more than 1,000 digits"):
        decoded(schema, framing.avro("bytes", b"\x7f" * (avro.MAX_DECIMAL_BYTES + 1)))


def test_each_event_is_decoded_by_its_own_writers_schema():
    old = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}
    new = {**old, "fields": [{"name": "paid", "type": "boolean", "default": False}, *old["fields"]]}
    assert decoded(old, framing.avro(old, {"id": "o1"})) == b'{"id":"o1"}'
    assert decoded(new, framing.avro(new, {"paid": True, "id": "o1"})) == b'{"paid":true,"id":"o1"}'


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param(["null", "shop.types.Money"], id="a union of references"),
        pytest.param({"type": "array", "items": ["null", "shop.types.Money"]}, id="within an array"),
    ],
)
def test_a_schema_may_need_others(schema):
    body = b"\x02\x04\x04\xe2"  # the second branch, two bytes, 1250
    if isinstance(schema, dict):
        body = b"\x02" + body + b"\0"
    assert b'{"amount":"12.50"}' in decoded(schema, body, MONEY)


@pytest.mark.parametrize("field", ["Plain", ["null", "Plain"]])
def test_a_schema_may_need_a_reference_without_a_namespace(field):
    """Regression: such a reference was looked for in a namespace of ours, so each event of the schema was rejected."""
    plain = {"type": "record", "name": "Plain", "fields": [{"name": "n", "type": "int"}]}
    schema = {"type": "record", "name": "Main", "fields": [{"name": "part", "type": field}]}
    body = b"\x06" if field == "Plain" else b"\x02\x06"
    assert decoded(schema, body, plain) == b'{"part":{"n":3}}'


@pytest.mark.parametrize("depth", [0, 100])
def test_a_recursive_schema_is_read(depth):
    assert decoded(TREE, b"\x02" * depth + b"\0").count(b"next") == depth + 1


@pytest.mark.parametrize(
    ("schema", "body"),
    [
        pytest.param(TREE, b"\x02" * 200_000 + b"\0", id="nested so deeply that C's stack would end"),
        pytest.param(TREE, b"\x02" * 270 + b"\0", id="nested more deeply than JSON may be"),
        pytest.param("string", b"", id="nothing"),
        pytest.param("string", b"\x0aab", id="cut"),
        pytest.param("string", b"\x04\xff\xfe", id="not UTF-8"),
        pytest.param("string", b"\x02ab", id="trailing bytes"),
        pytest.param("string", b"\xff" * 10, id="a length without end"),
        pytest.param({"type": "array", "items": "int"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", id="2**63 items"),
        pytest.param(["null", "string"], b"\x08", id="no such branch"),
        pytest.param(COLOUR, b"\x08", id="no such symbol"),
        pytest.param(logical("long", "timestamp-millis"), framing.avro("long", 2**62), id="a time after the year 9999"),
        pytest.param(logical("int", "date"), framing.avro("int", -(2**31)), id="a day before the year 1"),
        pytest.param(logical("string", "uuid"), framing.avro("string", "x"), id="no UUID"),
    ],
)
def test_bytes_that_do_not_decode_are_rejected(schema, body):
    with pytest.raises(errors.EventRejected) as rejected:
        decoded(schema, body)
    assert rejected.value.reason == "undecodable"
    assert len(rejected.value.detail) <= 200


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param({"type": "array", "items": "null"}, id="items without bytes"),
        pytest.param({"type": "array", "items": {"type": "record", "name": "E", "fields": []}}, id="items without fields"),
        pytest.param({"type": "array", "items": {"type": "fixed", "name": "Z", "size": 0}}, id="items of size 0"),
        pytest.param(logical("bytes", "decimal", precision=5000, scale=4000), id="a decimal of thousands of digits"),
        pytest.param("shop.Unknown", id="a type that no reference has"),
        pytest.param({"type": "record"}, id="no name"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused(schema):
    with pytest.raises(ValueError, match=r"."):
        avro.compiled(json.dumps(schema), [])


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000])
def test_a_text_that_is_no_schema_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        avro.compiled(text, [])
